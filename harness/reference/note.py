"""What every document says of itself."""

WRITTEN = "Written from the code by `make reference`; a test holds the two together."
