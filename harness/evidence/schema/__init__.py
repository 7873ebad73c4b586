"""The types of the records in a bundle. Nothing here reads or writes a file."""
