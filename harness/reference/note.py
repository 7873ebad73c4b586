"""The note that every generated document carries."""

WRITTEN = "Written from the code by `make reference`. A test compares the two."
