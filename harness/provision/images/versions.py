"""Read the `[registry]` and `[worker]` tables from the versions file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.core.errors import UsageError
from harness.core.replacements import CONTROLLERS, controller_version
from harness.core.user_files import toml
from harness.settings import Settings

LOCK = Path(__file__).parents[2] / "versions.toml"


def is_of(version: str, requested: str | None) -> bool:
    """Return whether a version such as `v1.35.8` satisfies `requested`, which is `1.35`, `1.35.8` or None."""
    return requested is None or f"{version}.".startswith(f"v{requested.removeprefix('v')}.")


Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""The type of a field that contains a SHA-256 in hex digits."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Controller(_Table):
    """A controller's published image and manifest.

    `sha256` is the manifest's hash in 64 hex digits. It is None only for a version that the user chose.
    """

    version: str
    image: str
    manifest: str
    sha256: Sha256 | None

    def of(self, version: str) -> Controller:
        """Return the controller at another version. The copy's `sha256` is None, because the manifest's hash
        is not known."""
        image = self.image.partition("@")[0].replace(self.version, version)
        manifest = self.manifest.replace(self.version, version)
        return Controller(version=version, image=image, manifest=manifest, sha256=None)


class Registry(_Table):
    """References to published images. `mirrors` maps a registry host to the base URL at which the nodes reach
    it."""

    kubernetes: str
    node: str
    torch_base: str
    python_base: str
    jobset: Controller
    kueue: Controller
    nodes: dict[str, str] = {}
    """Node images for other Kubernetes versions, keyed by `vX.Y.Z`."""
    mirrors: dict[str, str] = {}

    def node_of(self, requested: str | None) -> tuple[str, str]:
        """Return the Kubernetes version and node image for `requested`, such as `1.35` or `1.35.8`.

        None means the default version. If there is no such image, raises UsageError with the available
        versions.
        """
        images = {self.kubernetes: self.node, **self.nodes}
        for version, image in images.items():
            if is_of(version, requested):
                return version, image
        raise UsageError(
            f"versions.toml has no node image for Kubernetes {requested}, only for {', '.join(images)}",
            hint="add an image to [registry.nodes] in versions.toml, or set HARNESS_NODE_IMAGE",
        )

    def images(self) -> list[str]:
        """Return all image references except those in `nodes`."""
        return [self.node, self.torch_base, self.python_base, self.jobset.image, self.kueue.image]


class Worker(_Table):
    """The versions in the worker image: Python (major.minor), PyTorch, and the Debian suite.

    The PyTorch version is used only if the base image lacks PyTorch.
    """

    python: str = Field(pattern=r"^3\.\d+$")
    torch: str
    torch_sha256: dict[Literal["amd64", "arm64"], Sha256] = {}
    """Maps an architecture to the hash of PyTorch's CPU wheel. Without a hash, only the version is pinned."""
    debian: str


class Versions(BaseModel):
    """The contents of the `[registry]` and `[worker]` tables in the versions file.

    Other modules read the remaining tables.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    registry: Registry
    worker: Worker


def load(settings: Settings) -> Versions:
    """Load settings.versions_file, or harness/versions.toml.

    If the user replaces a controller's version, the result contains the user's version.

    Raises UsageError with the invalid values.
    """
    path = settings.versions_file or LOCK
    try:
        versions = Versions.model_validate(toml(path, "versions file", hint=f"compare it with {LOCK}"))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise UsageError(f"{path}: {'; '.join(problems)}", hint=f"compare it with {LOCK}") from None
    own = {
        name: getattr(versions.registry, name).of(version)
        for name in CONTROLLERS
        if (version := controller_version(name, settings.replace)) is not None
    }
    return versions.model_copy(update={"registry": versions.registry.model_copy(update=own)})
