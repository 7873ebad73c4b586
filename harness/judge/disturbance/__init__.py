"""Find changes that other clients made to the cluster during a launch, and findings that they explain."""
