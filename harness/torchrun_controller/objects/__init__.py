"""Build the Kubernetes objects of a job, a queue and the controller. These modules do no I/O."""
