"""Print the verdict and the list of runs in a terminal."""
