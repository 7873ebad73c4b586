"""What is to be done about a job or a queue, from what the cluster shows. Pure."""
