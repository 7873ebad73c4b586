"""The image of printed manifests: one that the nodes of the cluster at hand have, where that is known."""

from __future__ import annotations

import sys
from pathlib import Path

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Kube, Object
from harness.evidence.kubernetes.node_images import other_tags
from harness.launch.names import LOCAL_IMAGE
from harness.provision.lifecycle import cluster_of
from harness.settings import Settings


def printed_image(settings: Settings, named: str | None) -> str:
    """Return the image for manifests: the one that is `named`, that of the settings, or one of the nodes.

    What the nodes have instead is said on stderr. Raises UsageError where the nodes have several.
    """
    wanted = named or settings.worker_image
    others = other_tags(wanted or LOCAL_IMAGE, _nodes(settings))
    if wanted:
        if others:
            _say(f"no node reports the image {wanted}; nodes have {', '.join(others)}")
        return wanted
    if len(others) > 1:
        raise UsageError(
            f"--image is expected: the nodes have several worker images, {', '.join(others)}",
            hint="name the one that the pods are to run",
        )
    if not others:
        _say(f"{LOCAL_IMAGE} stands for the worker image: name one that the nodes have with --image")
    return next(iter(others), LOCAL_IMAGE)


def _nodes(settings: Settings) -> list[Object]:
    """Return the nodes of the cluster that the settings name; none where it is not reached."""
    cluster = cluster_of(settings)
    if not Path(cluster.kubeconfig).is_file():
        return []
    try:
        return Kube(cluster.kubeconfig, cluster.context).objects("v1", "Node")
    except (HarnessError, ApiException, HTTPError, OSError) as error:
        _say(f"the nodes were not asked for their images: {error}")
        return []


def _say(text: str) -> None:
    print(f"# {text}", file=sys.stderr)
