"""Which images a cluster is made of, how worker and tracker images are built, how they reach the nodes."""
