"""Launch a job with many versions of konduktor, Pluto's client and other packages."""
