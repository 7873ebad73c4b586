"""Judge whether every point that a rank logged is in the one run, and no other."""
