"""Choose where images come from: published images, or images built from source on this machine.

`harness doctor` and launches make the same choice. With HARNESS_IMAGES=auto, images are built only if a
registry does not respond and this machine can build them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.context import RunContext
from harness.core.errors import HarnessError
from harness.provision.images import debian as bases
from harness.provision.images import registry_access
from harness.provision.images.versions import Versions
from harness.provision.source import debian, make
from harness.provision.source.shell import CAUSE


@dataclass(frozen=True)
class Origin:
    """The chosen origin of images (`image_source`), and the reasons why published or locally built images
    cannot be used."""

    image_source: Literal["registry", "source"]
    missing: Sequence[str] = ()
    """A message for each registry or host that does not respond. Empty if no registry was contacted."""
    obstacle: str = ""
    """The reason why this machine cannot build images, or "" if it can."""

    @property
    def reason(self) -> str:
        """Return a message that names the first registry or host that does not respond, or "" if there is
        none."""
        suffix = f", and {len(self.missing) - 1} more" if self.missing[1:] else ""
        return f"not reached: {self.missing[0]}{suffix}" if self.missing else ""

    @property
    def usable(self) -> bool:
        return not (self.missing if self.image_source == "registry" else self.obstacle)


def origin(locked: Versions, context: RunContext) -> Origin:
    """Choose the origin of images according to HARNESS_IMAGES.

    If the setting is not `source`, check whether the registries respond.
    """
    mode = context.settings.images
    missing = [] if mode == "source" else registry_access.unreached(locked.registry)
    if mode == "registry" or (mode == "auto" and not missing):
        return Origin("registry", missing)
    return Origin("source", missing, obstacle(locked, context))


def require_usable(image_origin: Origin) -> None:
    """Raise HarnessError (cause cluster.node_image) if images must be built here, but cannot be."""
    if image_origin.image_source == "source" and image_origin.obstacle:
        requirement = "images must be built from source" + (
            f" ({image_origin.reason})" if image_origin.missing else ""
        )
        raise HarnessError(
            f"{requirement}, but {image_origin.obstacle}",
            hint="give this machine access to the hosts that `harness doctor` lists, or set HTTPS_PROXY",
            cause=CAUSE,
        )


def obstacle(locked: Versions, context: RunContext) -> str:
    """Return why this machine cannot build the missing images, or "" if it can.

    Building needs root privileges and a Debian mirror in apt's sources. Existing images need neither.
    """
    if os.geteuid() != 0:
        reason = "only root can build them"
    else:
        try:
            debian.mirror()
        except HarnessError as error:
            reason = f"this machine does not run Debian: {error.message}"
        else:
            return ""
    try:
        is_complete = bases.complete(locked.worker.debian) and make.complete(context)
    except HarnessError:  # Docker does not respond.
        is_complete = False
    return "" if is_complete else reason
