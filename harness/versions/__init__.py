"""Launch a job with many versions of konduktor, the Pluto client and other packages."""
