"""Provide a cluster's images and manifests, which are either published or built on this machine.

Other modules do not depend on where the images and manifests come from.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

import httpx

from harness.context import RunContext
from harness.core.concurrency import in_background
from harness.core.errors import HarnessError, UsageError
from harness.core.http_client import client
from harness.provision.images import mirror, unpacked, versions
from harness.provision.images.containerd_import import LocalImage
from harness.provision.images.debian import Bases, bases
from harness.provision.images.origin import Origin, origin, require_usable
from harness.provision.images.versions import Controller, Registry, Versions
from harness.provision.platforms import require_native, target
from harness.provision.source import build, manifests
from harness.provision.source import versions as source_versions

_MANIFEST_CAUSE: Final = "controllers.manifest"
_DOWNLOAD_SECONDS = 60.0


Own = Callable[[Bases], Sequence[LocalImage]]
"""A function that builds the harness's own images on top of the base images, and returns them. Every cluster
runs the harness's own images."""


@dataclass(frozen=True)
class Stack:
    """References to all images and manifests for a cluster, its controllers and the harness's own pods."""

    image_source: Literal["registry", "source"]
    node_image: str
    kubernetes: str
    jobset_manifest: Path
    """The path of JobSet's cached manifest, which is ready for server-side apply. `kueue_manifest` is the
    path of Kueue's manifest."""
    kueue_manifest: Path
    node_images: tuple[str, ...]
    """Local Docker images that every node needs before the controllers start. Empty if the nodes pull
    published images."""
    torch_base: str
    """The worker image's base image. `python_base` is the base image of the tracker image."""
    python_base: str
    versions: dict[str, str]
    containerd_patches: tuple[str, ...] = ()
    """Patches for containerd's configuration on the nodes (containerdConfigPatches in kind's
    configuration)."""
    mirrors: dict[str, str] = field(default_factory=dict)
    """The mirrors to pass to `mirror.teach` once the nodes are running, before they pull images."""

    @property
    def controllers(self) -> tuple[Path, Path]:
        """Return the paths of JobSet's and Kueue's manifests."""
        return self.jobset_manifest, self.kueue_manifest


def resolve(context: RunContext, then: Own = lambda _bases: ()) -> Stack:
    """Return the stack for HARNESS_IMAGES. Missing images and manifests are downloaded or built.

    `then` is called once the base images exist, so that it can build images from them before the cluster's
    images are complete. If a node image is built, the images that `then` returns are unpacked while the
    controllers are compiled.

    Raises HarnessError if a manifest cannot be downloaded or does not match its hash (controllers.manifest),
    or if a build fails (cluster.node_image, controllers.image_failed, image.build_failed). Raises UsageError
    for a Kubernetes version that is not available.
    """
    settings, progress = context.settings, context.progress
    locked = versions.load(settings)
    if settings.kubernetes and settings.node_image:
        raise UsageError(
            f"a Kubernetes version ({settings.kubernetes}) and a node image ({settings.node_image}) are "
            "both set",
            hint="unset HARNESS_KUBERNETES, because the node image determines the version",
        )
    # HARNESS_IMAGES=registry needs no check: if a host does not respond, the download or pull fails.
    if settings.images == "registry":
        image_origin, reason = Origin("registry"), "set by HARNESS_IMAGES"
    else:
        image_origin = origin(locked, context)
        reason = image_origin.reason or "the registries and manifest hosts respond"
        reason = reason if settings.images == "auto" else "set by HARNESS_IMAGES"
    progress(f"images: {image_origin.image_source} ({reason})")
    if image_origin.image_source == "source":
        _require_version(context)
        require_native(target())
        require_usable(image_origin)
    make = (
        partial(_published, locked.registry)
        if image_origin.image_source == "registry"
        else partial(_built, locked)
    )
    stack = make(context, then)
    return replace(stack, node_image=settings.node_image) if settings.node_image else stack


def _require_version(context: RunContext) -> None:
    """Raise UsageError if the requested Kubernetes version cannot be built from source."""
    requested, available = context.settings.kubernetes, source_versions.load(context.settings).kubernetes
    if not versions.is_of(available, requested):
        raise UsageError(
            f"only Kubernetes {available} can be built from source, but {requested} was requested",
            hint="use HARNESS_IMAGES=registry if a registry responds, or change [source] in versions.toml",
        )


def _built(locked: Versions, context: RunContext, then: Own) -> Stack:
    def debian() -> tuple[Bases, Sequence[LocalImage]]:
        debian_bases = bases(locked.worker.debian, context)
        return debian_bases, then(debian_bases)

    with in_background(debian) as future:
        source = build(context, lambda node_image: unpacked.attempt(future.result()[1], node_image, context))
    base_images, _ = future.result()
    return Stack(
        image_source="source",
        node_image=source.node_image,
        kubernetes=source.kubernetes,
        jobset_manifest=source.jobset_manifest,
        kueue_manifest=source.kueue_manifest,
        node_images=(source.jobset_image, source.kueue_image),
        torch_base=base_images.torch_base,
        python_base=base_images.python_base,
        versions={
            "jobset": _tag(source.jobset_image),
            "kueue": _tag(source.kueue_image),
            "node_image": source.node_image,
        },
    )


def _published(registry: Registry, context: RunContext, then: Own) -> Stack:
    kubernetes, node = registry.node_of(context.settings.kubernetes)
    jobset = _manifest("jobset", registry.jobset, context)
    kueue = _manifest("kueue", registry.kueue, context)
    then(Bases(registry.torch_base, registry.python_base))
    return Stack(
        image_source="registry",
        node_image=node,
        kubernetes=kubernetes,
        jobset_manifest=jobset,
        kueue_manifest=kueue,
        node_images=(),
        torch_base=registry.torch_base,
        python_base=registry.python_base,
        versions={
            "jobset": registry.jobset.version,
            "kueue": registry.kueue.version,
            "node_image": node,
        },
        containerd_patches=mirror.patches(registry.mirrors),
        mirrors=registry.mirrors,
    )


def _manifest(name: str, controller: Controller, context: RunContext) -> Path:
    """Return the path of a controller's pinned and adapted manifest.

    The published manifest is cached by its hash, so later runs download nothing.
    """
    folder = context.settings.cache_dir / "manifests"
    manifest_path = folder / f"{controller.sha256 or f'{name}-{controller.version}'}.yaml"
    if not manifest_path.is_file():
        context.progress(f"{name}: downloading the manifest of {controller.version}")
        write(manifest_path, verified(download(controller.manifest), controller))
    documents = manifests.parse(manifest_path.read_text())
    adapted = manifests.render(
        manifests.adapt(documents, {f"{name}-controller-manager": controller.image})
    ).encode()
    target = folder / f"{name}-{hashlib.sha256(adapted).hexdigest()[:12]}.yaml"
    if not target.is_file():
        write(target, adapted)
    return target


def download(url: str) -> bytes:
    """Return the body of a GET response. Raises HarnessError (cause controllers.manifest)."""
    try:
        with client(timeout=_DOWNLOAD_SECONDS, follow_redirects=True) as downloads:
            return downloads.get(url).raise_for_status().content
    except httpx.HTTPError as error:
        raise HarnessError(
            f"the manifest {url} could not be downloaded: {error or type(error).__name__}",
            hint="check the network, or build the controllers from source with HARNESS_IMAGES=source",
            cause=_MANIFEST_CAUSE,
        ) from None


def verified(content: bytes, controller: Controller) -> bytes:
    """Return `content` unchanged.

    Raises HarnessError (cause controllers.manifest) if its hash differs from the pinned hash.
    """
    digest = hashlib.sha256(content).hexdigest()
    if controller.sha256 is not None and digest != controller.sha256:
        raise HarnessError(
            f"{controller.manifest}: expected sha256 {controller.sha256}, found {digest} "
            f"({len(content)} bytes)",
            hint="check whether a proxy responded instead; if the release was really changed, review the "
            "new manifest, then set "
            "its sha256 in versions.toml",
            cause=_MANIFEST_CAUSE,
        )
    return content


def write(path: Path, content: bytes) -> None:
    """Write the file atomically, even if another process writes the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_bytes(content)
    partial.replace(path)


def _tag(reference: str) -> str:
    return reference.partition("@")[0].rpartition(":")[2]
