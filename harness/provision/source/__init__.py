"""Build the stack without a container registry: a kind node image and the controllers' images.

Clusters that use these images are configured like those with published images, because both use
`manifests.adapt`.
"""

from harness.provision.source.make import SourceStack, build

__all__ = ["SourceStack", "build"]
