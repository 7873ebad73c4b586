"""Adapt the JobSet and Kueue manifests to a small test cluster. All functions are pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from harness.core.errors import HarnessError

Document = dict[str, Any]
CONTAINER = "manager"


class _Loader(yaml.CSafeLoader):
    """A YAML loader that parses scalars as Kubernetes does: a date or a lone `=` is a string."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":value"))]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def parse(text: str) -> list[Document]:
    """Return the non-empty documents of a YAML stream."""
    return [document for document in yaml.load_all(text, _Loader) if document]


def render(documents: Iterable[Document]) -> str:
    """Return the documents as a YAML stream. The order of their fields is kept."""
    return yaml.dump_all(documents, Dumper=yaml.CSafeDumper, sort_keys=False, width=2**31 - 1)


def adapt(
    documents: Iterable[Document], images: Mapping[str, str | None], *, cpu_request: str = "50m"
) -> list[Document]:
    """Return copies of the documents in which the Deployments named in `images` start quickly on a machine
    with 2 CPUs. `images` maps the name of each expected Deployment to the image for its `manager` container.
    None keeps the published image. Images that exist on the node are not pulled. The CPU request is
    `cpu_request`. The published request of 500m is more than the CPU that is left on 2 cores. The readiness
    probe runs immediately and then every second, instead of after 5 s and then every 10 s. Everything else is
    unchanged, including the command and CRDs.

    Raises HarnessError if an expected Deployment or its container is missing.
    """
    adapted = copy.deepcopy(list(documents))
    deployments = {doc["metadata"]["name"]: doc for doc in adapted if doc.get("kind") == "Deployment"}
    for name, image in images.items():
        if name not in deployments:
            raise HarnessError(
                f"expected Deployment {name} in the manifests, found "
                f"{', '.join(deployments) or 'no Deployment'}",
                hint="check the version in versions.toml: another version may name this object differently",
                cause="controllers.install_failed",
            )
        _adapt_manager(deployments[name], image, cpu_request)
    return adapted


def _adapt_manager(deployment: Document, image: str | None, cpu_request: str) -> None:
    containers = {c["name"]: c for c in deployment["spec"]["template"]["spec"]["containers"]}
    if CONTAINER not in containers:
        raise HarnessError(
            f"Deployment {deployment['metadata']['name']}: expected a container {CONTAINER}, "
            f"found {', '.join(containers)}",
            hint="check the version in versions.toml: another version may name this object differently",
            cause="controllers.install_failed",
        )
    manager = containers[CONTAINER]
    if image is not None:
        manager["image"] = image
    manager["imagePullPolicy"] = "IfNotPresent"
    manager.setdefault("resources", {}).setdefault("requests", {})["cpu"] = cpu_request
    if "readinessProbe" in manager:
        manager["readinessProbe"].update(initialDelaySeconds=0, periodSeconds=1)
