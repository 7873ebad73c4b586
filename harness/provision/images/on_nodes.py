"""Images that the nodes of a cluster already have, by the nodes' own status."""

from __future__ import annotations

from harness.core.kubernetes import Kube

_DEFAULT = "docker.io/library/"
"""What a node puts before a name without a registry."""


def names(kube: Kube) -> set[str]:
    """Return the names of all images on the nodes. A kubelet reports its 50 largest images."""
    found = {
        str(name)
        for node in kube.objects("v1", "Node")
        for image in (node.get("status") or {}).get("images") or []
        for name in image.get("names") or []
    }
    return {name.removeprefix(_DEFAULT) for name in found if "@" not in name}


def other_tags(image: str, there: set[str]) -> list[str]:
    """Return the names of the same repository under other tags; none where a node has `image` itself."""
    wanted = image.removeprefix(_DEFAULT)
    if wanted in there:
        return []
    return sorted(name for name in there if _repository(name) == _repository(wanted))


def _repository(image: str) -> str:
    name, at, _ = image.partition("@")
    head, colon, tag = name.rpartition(":")
    return name if at or not colon or "/" in tag else head
