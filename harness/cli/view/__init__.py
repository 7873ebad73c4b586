"""What commands show: the live view of a launch and its verdict. Imported when they are needed."""
