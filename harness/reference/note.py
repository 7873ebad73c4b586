"""The note at the top of every generated document."""

WRITTEN = "Generated from the code by `make reference`. A test checks that this page matches the code."
