"""Find container images in the status of nodes.

Each kubelet reports only the 50 largest images on its node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.evidence.kubernetes.objects import items, mapping
from harness.evidence.kubernetes.unschedulable import in_words

_DEFAULT = ("docker.io/library/", "index.docker.io/library/", "docker.io/", "index.docker.io/")
"""The prefixes that a container runtime adds to image names without a registry."""


def holders(nodes: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Map each image (name:tag) to the names of the nodes that report it."""
    by_image: dict[str, list[str]] = {}
    for node in nodes:
        for image in items(node, "status", "images"):
            names = image.get("names")
            for name in names if isinstance(names, list) else []:
                if "@" not in str(name):
                    node_name = str(mapping(node, "metadata").get("name"))
                    by_image.setdefault(normal(str(name)), []).append(node_name)
    return by_image


def other_tags(image: str, nodes: Iterable[dict[str, Any]]) -> list[str]:
    """Return the images on the nodes that differ from `image` only in their tag.

    The list is empty if a node has `image` itself.
    """
    images, normalized = holders(nodes), normal(image)
    if normalized in images:
        return []
    return sorted(name for name in images if _repository(name) == _repository(normalized))


def same_name(image: str, nodes: Iterable[dict[str, Any]]) -> list[str]:
    """Return the images on the nodes that differ from `image` only in the registry or path.

    For example, an image that was built locally can have the registry `localhost/`.
    """
    normalized = normal(image)
    return sorted(
        name
        for name in holders(nodes)
        if name != normalized and name.split("/")[-1] == normalized.split("/")[-1]
    )


def instead(image: str, node: str | None, nodes: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """If `node` lacks `image`, return which nodes have it or a similar image, and advice for the user.

    Returns two empty strings if `node` has the image, or if no node has it or a similar one.
    """
    if nodes_with_image := holders(nodes).get(normal(image), []):
        if node in nodes_with_image:
            return "", ""
        return f"this image is on {in_words(nodes_with_image)}, but not on {node}", (
            f"load {image} into every node that can run the pods, or push it to a registry"
        )
    if tags := other_tags(image, nodes):
        description = f"the nodes have this image only with other tags: {in_words(tags, 'tags')}"
        return description, f"use a tag that the nodes have, or load {image} into the nodes"
    if similar := same_name(image, nodes):
        description = (
            f"the nodes have {in_words(similar, 'images')}, which Kubernetes treats as a different image"
        )
        return description, f"use the image name that the nodes have: {similar[0]}"
    return "", ""


def normal(image: str) -> str:
    """Return an image's name without the default registry, and with the tag `latest` if it has no tag or
    digest."""
    name = next((image.removeprefix(prefix) for prefix in _DEFAULT if image.startswith(prefix)), image)
    return name if "@" in name or ":" in name.split("/")[-1] else f"{name}:latest"


def _repository(image: str) -> str:
    """Return an image's name without digest and tag."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]
