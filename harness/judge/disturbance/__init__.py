"""Find changes that other clients made to the cluster during a launch, and the findings that they explain."""
