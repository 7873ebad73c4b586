"""What objects and messages of Kubernetes mean."""
