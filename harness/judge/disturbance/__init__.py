"""Find changes by others in the cluster during a launch, and the findings that they explain."""
