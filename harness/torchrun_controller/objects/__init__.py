"""The objects that are created for a job. Pure."""
