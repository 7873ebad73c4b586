"""Provide the etcd image for torchrun's etcd-v2 rendezvous backend.

It is either published, or built from etcd's Go module.
"""

from __future__ import annotations

from harness.context import RunContext
from harness.provision import platforms
from harness.provision.images import registry_access, versions
from harness.provision.images.program_image import program_image
from harness.provision.source.golang import Module
from harness.provision.source.programs import pinned, program

PATH = "go.etcd.io/etcd/server/v3"
DOCKERFILE = "FROM scratch\nCOPY etcd /usr/local/bin/etcd\nUSER 65532:65532\n"


def etcd_image(context: RunContext) -> str:
    """Return the reference of the published image if the registries are reachable, and otherwise the tag of a
    local image. Raises ToolError or HarnessError with the cause image.build_failed or cluster.node_image.
    """
    settings = context.settings
    published = settings.images == "registry"
    if settings.images == "auto":
        published = not registry_access.unreached(versions.load(settings).registry)
    if published or settings.kubeconfig is not None:
        return pinned("rendezvous", "image")
    version = pinned("rendezvous", "etcd")
    module = Module("etcd-v2", PATH, version, {"etcd": PATH})
    folder = program(module, context, platforms.target().architecture)
    return program_image(folder, version, DOCKERFILE, context)
