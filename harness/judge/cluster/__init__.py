"""Judge whether the cluster admitted, scheduled and started the job, and which part of it failed."""
