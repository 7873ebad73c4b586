"""The live view of a launch and the output of verdicts. Commands import these modules when they need them."""
