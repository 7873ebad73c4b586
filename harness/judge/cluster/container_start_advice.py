"""Give advice on a container that could not start, based on the kubelet's message about it."""

from __future__ import annotations

from harness.evidence.kubernetes import nvidia_runtime
from harness.evidence.kubernetes.waiting_reasons import without_names

_ADVICE = (
    (
        ("toomanyrequests", "pull rate limit", "429 too many requests"),
        "the registry limits anonymous pulls: name a Secret with credentials in imagePullSecrets, or use a "
        "mirror of the image",
    ),
    (
        ("authorization token has expired",),
        "the credentials in the pull Secret have expired: recreate the Secret, or use a credential provider "
        "on the nodes",
    ),
    (
        ("no space left on device",),
        "the node's disk is full: remove unused images there (`crictl rmi --prune`), or use a larger disk",
    ),
    (
        ("has expired or is not yet valid",),
        "compare the node's clock with the validity dates of the registry's certificate",
    ),
    (
        ("signed by unknown authority",),
        "install the registry's CA certificate in the nodes' container runtime",
    ),
    (
        ("gave http response to https client",),
        "the registry uses plain HTTP: allow this in the nodes' container runtime, or enable TLS",
    ),
    (
        ("no runtime for",),
        "the container runtime on this node does not have this runtime handler: install it (for NVIDIA, the "
        "container toolkit of the GPU operator), or correct runtimeClassName",
    ),
    (
        ("runasnonroot",),
        "set runAsUser to a user other than root, build the image with USER, or remove runAsNonRoot",
    ),
    (
        ("lifecycle hook",),
        "run the lifecycle.postStart command in the image by hand, and correct the command",
    ),
    (
        ("subpath",),
        "make sure that the subPath exists in the volume, or that the kubelet can create it there",
    ),
    (("failed to stat",), "create this path on the node, or correct the hostPath"),
    (
        ("cgroup",),
        "look at the logs of the kubelet and the container runtime on this node, or reboot the node",
    ),
    (
        ("context deadline exceeded", "context canceled"),
        "the node's container runtime is slow or hangs: look at its log and at the disk load",
    ),
)
"""Pairs of (parts, advice). The advice applies if a message in lower case contains one of the parts."""


def of(message: str) -> str:
    """Return advice for the kubelet's message about a container, or ""."""
    if (fault := nvidia_runtime.fault(message)) is not None:
        return fault.advice
    text = without_names(message.lower())
    return next((advice for parts, advice in _ADVICE if any(part in text for part in parts)), "")
