"""Record the code that a launch provides for its ranks.

The check `code` compares this record with the code that the ranks ran.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.evidence.schema.bundle import SentCode
from harness.provision.images import docker_images, scripts
from harness.provision.images.build import ImageRef


def code(image: str, ours: ImageRef | None, mounted: Mapping[str, bytes]) -> SentCode:
    """Return the ranks' code: the image, and the digests of its files and the mounted files.

    `mounted` maps paths in /workspace to the content of the files that are mounted there. `ours` is the
    worker image if the ranks use it, otherwise None. The files in other images are unknown.
    """
    built = ours is not None and bool(ours.scripts)
    files = {**(ours.scripts if ours else {}), **scripts.digests(mounted)}
    return SentCode(
        files={f"{scripts.WORKSPACE}/{name}": digest for name, digest in sorted(files.items())},
        mounted=[f"{scripts.WORKSPACE}/{name}" for name in sorted(mounted)],
        whole=[scripts.WORKSPACE] if built else [],
        image=image,
        ours=built,
        image_id=docker_images.status_id(ours.image_id) if ours and ours.image_id else None,
        versions={"pluto": ours.components["pluto"]} if ours and "pluto" in ours.components else {},
    )
