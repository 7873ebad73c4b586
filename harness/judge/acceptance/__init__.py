"""Judge the acceptance tests of nodes: each node by itself, against limits and against other nodes."""
