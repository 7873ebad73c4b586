"""Judge whether the run contains every point that the ranks logged, and no other points."""
