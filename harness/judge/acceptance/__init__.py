"""Judge the acceptance tests of nodes by comparing each node with limits and with other nodes."""
