"""Choose a cluster's images, build the worker and tracker images, and load them into the nodes."""
