"""The note that every generated document carries."""

WRITTEN = "Written from the code by `make reference`; a test holds the two together."
