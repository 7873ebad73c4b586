"""Find changes made to the cluster by others during a launch, and the findings that they explain."""
