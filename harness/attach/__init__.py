"""Judge a job that somebody else launched: find its pods, read its objects and logs, and follow it."""
