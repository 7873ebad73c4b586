"""Find what others changed in the cluster during a launch, and which findings that explains."""
