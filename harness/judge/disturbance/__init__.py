"""Find changes that others made in the cluster during a launch, and the findings that they explain."""
