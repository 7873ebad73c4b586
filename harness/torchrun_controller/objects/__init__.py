"""Build the Kubernetes objects for a job, a queue and the controller. These modules do no I/O."""
