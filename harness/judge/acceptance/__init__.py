"""Judge the acceptance tests of nodes: each node by itself, beside its limits, and beside the fleet."""
