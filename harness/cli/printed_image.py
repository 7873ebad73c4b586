"""Choose the worker image for printed manifests, preferably an image that the cluster's nodes already
have."""

from __future__ import annotations

import sys
from pathlib import Path

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Kube, Object
from harness.evidence.kubernetes.node_images import other_tags
from harness.launch.labels import LOCAL_IMAGE
from harness.provision.lifecycle import cluster_of
from harness.settings import Settings


def printed_image(settings: Settings, image: str | None) -> str:
    """Return the worker image for printed manifests.

    It is `image` if given, or else the image in the settings, or else the only worker image on the nodes. If
    no node has the chosen image, other versions of it on the nodes are listed on stderr. If no image is
    known, a placeholder is returned. Raises UsageError if `image` and the settings are empty and the nodes
    have several worker images.
    """
    chosen = image or settings.worker_image
    tagged = other_tags(chosen or LOCAL_IMAGE, _nodes(settings))
    if chosen:
        if tagged:
            _note(f"no node reports having the image {chosen}; the nodes have {', '.join(tagged)}")
        return chosen
    if len(tagged) > 1:
        raise UsageError(
            f"--image is required, because the nodes have several worker images: {', '.join(tagged)}",
            hint="use --image to name the image that the pods should run",
        )
    if not tagged:
        _note(f"{LOCAL_IMAGE} is a placeholder for the worker image: use --image to name one on your nodes")
    return next(iter(tagged), LOCAL_IMAGE)


def _nodes(settings: Settings) -> list[Object]:
    """Return the nodes in the configured cluster, or an empty list if the cluster cannot be reached."""
    cluster = cluster_of(settings)
    if not Path(cluster.kubeconfig).is_file():
        return []
    try:
        return Kube(cluster.kubeconfig, cluster.context).objects("v1", "Node")
    except (HarnessError, ApiException, HTTPError, OSError) as error:
        _note(f"the images on the nodes could not be listed: {error}")
        return []


def _note(text: str) -> None:
    print(f"# {text}", file=sys.stderr)
