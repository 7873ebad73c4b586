"""The controller's runtime: watches, the work queue, reconciles, writes to the API server, and the Lease."""
