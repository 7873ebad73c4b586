"""Judge whether the cluster admitted, scheduled and started the job, and find the component that failed."""
