"""Build the stack without a container registry: a kind node image and the controllers' images.

`build` gives the same cluster as the published images do. `manifests.adapt` serves both ways.
"""

from harness.provision.source.make import SourceStack, build

__all__ = ["SourceStack", "build"]
