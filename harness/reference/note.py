"""The note in every generated document."""

WRITTEN = "Written from the code by `make reference`. A test compares the two."
