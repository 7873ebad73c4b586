"""Choose the images of a cluster, build the worker and tracker images, and load them into the nodes."""
