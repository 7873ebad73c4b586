"""Judge the acceptance tests of nodes: each node against limits and against other nodes."""
