"""Record the code that a launch provides for its ranks.

The check `code` compares this record with the code that the ranks ran.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.evidence.schema.bundle import SentCode
from harness.provision.images import docker_images, scripts
from harness.provision.images.build import ImageRef


def code(image: str, worker_image: ImageRef | None, mounted: Mapping[str, bytes]) -> SentCode:
    """Return the ranks' code: the image, and the digests of its files and the mounted files.

    `mounted` maps paths in /workspace to the content of the files that are mounted there. `worker_image` is
    the worker image if the ranks use it, otherwise None. The content of other images is unknown.
    """
    is_own = worker_image is not None and bool(worker_image.scripts)
    files = {**(worker_image.scripts if worker_image else {}), **scripts.digests(mounted)}
    return SentCode(
        files={f"{scripts.WORKSPACE}/{name}": digest for name, digest in sorted(files.items())},
        mounted=[f"{scripts.WORKSPACE}/{name}" for name in sorted(mounted)],
        whole=[scripts.WORKSPACE] if is_own else [],
        image=image,
        ours=is_own,
        image_id=docker_images.status_id(worker_image.image_id)
        if worker_image and worker_image.image_id
        else None,
        versions={"pluto": worker_image.components["pluto"]}
        if worker_image and "pluto" in worker_image.components
        else {},
    )
