"""Judge whether the run contains every point that a rank logged, and no other points."""
