"""Judge whether the run holds every point that a rank logged, and no other."""
