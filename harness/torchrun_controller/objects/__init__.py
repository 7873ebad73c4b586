"""Build the Kubernetes objects for a job, a queue and the controller. These modules perform no I/O."""
