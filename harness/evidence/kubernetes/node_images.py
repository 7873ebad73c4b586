"""Images that the nodes of a cluster have, as their status reports them: a kubelet reports its 50 largest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.evidence.kubernetes.objects import items, mapping
from harness.evidence.kubernetes.unschedulable import in_words

_DEFAULT = ("docker.io/library/", "index.docker.io/library/", "docker.io/", "index.docker.io/")
"""What a node puts before a name without a registry."""


def holders(nodes: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Return each image's name with its tag, and the names of the nodes that report it."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for image in items(node, "status", "images"):
            names = image.get("names")
            for name in names if isinstance(names, list) else []:
                if "@" not in str(name):
                    found.setdefault(normal(str(name)), []).append(str(mapping(node, "metadata").get("name")))
    return found


def other_tags(image: str, nodes: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of the same repository under other tags; none where a node has `image` itself."""
    there, wanted = holders(nodes), normal(image)
    if wanted in there:
        return []
    return sorted(name for name in there if _repository(name) == _repository(wanted))


def same_name(image: str, nodes: Iterable[dict[str, Any]]) -> list[str]:
    """Return images of the same name and tag in other registries, as where `localhost/` was put before it."""
    wanted = normal(image)
    return sorted(
        name for name in holders(nodes) if name != wanted and name.split("/")[-1] == wanted.split("/")[-1]
    )


def instead(image: str, node: str | None, nodes: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Return what the nodes have in place of an image that one of them lacks, and what to do about it.

    Both are "" where the nodes have nothing like it.
    """
    if having := holders(nodes).get(normal(image), []):
        if node in having:
            return "", ""
        return f"this image is on {in_words(having)}, and not on {node}", (
            f"load {image} into every node that takes the pods, or push it to a registry"
        )
    if tags := other_tags(image, nodes):
        there = f"the nodes have it under other tags: {in_words(tags, 'tags')}"
        return there, f"name one of the tags that the nodes have, or bring {image} to the nodes"
    if alike := same_name(image, nodes):
        there = f"the nodes have {in_words(alike, 'images')}, which is another image to Kubernetes"
        return there, f"name the image as the nodes have it: {alike[0]}"
    return "", ""


def normal(image: str) -> str:
    """Return an image's name without the default registry, and with the tag that no tag stands for."""
    name = next((image.removeprefix(prefix) for prefix in _DEFAULT if image.startswith(prefix)), image)
    return name if "@" in name or ":" in name.split("/")[-1] else f"{name}:latest"


def _repository(image: str) -> str:
    """Return the name without its digest and tag."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]
