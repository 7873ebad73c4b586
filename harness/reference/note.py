"""The note at the top of every generated document."""

WRITTEN = "Written from the code by `make reference`. A test compares the two."
