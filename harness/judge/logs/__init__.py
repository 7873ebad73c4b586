"""Read the last lines of a rank's log: its last error and the stacks of its threads."""
