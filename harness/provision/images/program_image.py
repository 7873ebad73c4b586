"""Build local images that contain only one statically linked program."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from harness.context import RunContext
from harness.core.errors import HarnessError
from harness.provision.images.docker_images import CAUSE, image_id, making
from harness.provision.source.shell import build_command
from harness.provision.source.store import key


def program_image(program: Path, version: str, dockerfile: str, context: RunContext) -> str:
    """Return the tag of a local image that contains only `program`.

    If the image does not exist, it is built. Raises ToolError or HarnessError (cause image.build_failed).
    """
    tag = f"harness/{program.name}:{version}-{key(dockerfile, program.parent.name)}"
    with making(tag, context) as shell:
        if shell is not None:
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "Dockerfile").write_text(dockerfile)
                shutil.copy2(program, Path(folder) / program.name)
                shell.run([*build_command(), "-t", tag, folder])
    if image_id(tag) is None:
        raise HarnessError(
            f"{tag} was built, but Docker no longer has this image", hint="try again", cause=CAUSE
        )
    return tag
