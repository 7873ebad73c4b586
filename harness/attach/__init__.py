"""Attach to a job that the harness did not launch: find it, read its objects and logs, and judge it."""
