"""The running controller: watches, the work queue, reconciles, writes to the API server, the Lease."""
