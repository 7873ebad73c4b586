"""The types of the records in a bundle. This package does not read or write files."""
