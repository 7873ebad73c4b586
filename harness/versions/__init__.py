"""Launch a job with different versions of konduktor, the Pluto client and other packages."""
