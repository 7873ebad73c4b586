"""Judge whether the cluster admitted, scheduled and started the job, and if not, which component failed."""
