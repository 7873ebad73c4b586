"""Build the stack without a container registry: a kind node image and the controllers' images.

A cluster from `build` is configured like one from published images, because both use `manifests.adapt`.
"""

from harness.provision.source.make import SourceStack, build

__all__ = ["SourceStack", "build"]
