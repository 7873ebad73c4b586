"""Judge node acceptance tests by comparing each node's results with limits and with other nodes' results."""
