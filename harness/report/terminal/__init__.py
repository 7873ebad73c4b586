"""The verdict and the list of runs on a terminal."""
