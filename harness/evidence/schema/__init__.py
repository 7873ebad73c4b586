"""The types of the records in a bundle. This package reads and writes no files."""
