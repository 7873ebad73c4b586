"""Judge a job that the harness did not launch: find its pods, read its objects and logs, and follow it."""
