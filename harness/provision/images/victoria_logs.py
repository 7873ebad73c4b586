"""Provide the images of VictoriaLogs and its collector vlagent.

They are either published, or built from one Go module.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.context import RunContext
from harness.provision import platforms
from harness.provision.images.program_image import program_image
from harness.provision.source.golang import Module
from harness.provision.source.programs import pinned, programs

PATH = "github.com/VictoriaMetrics/VictoriaLogs"
DOCKERFILE = 'FROM scratch\nCOPY {0} /{0}\nENTRYPOINT ["/{0}"]\n'
"""The Dockerfile of a locally built image. The entrypoint of the published images has another path."""


@dataclass(frozen=True)
class LogImages:
    """References to the images of VictoriaLogs and vlagent. If `local` is true, the images exist only in this
    machine's Docker."""

    server: str
    agent: str
    local: bool


def victoria_logs_images(context: RunContext, *, published: bool) -> LogImages:
    """Return the published images if `published` is true, and otherwise local images.

    Missing local images are built. Raises ToolError or HarnessError with the cause image.build_failed or
    cluster.node_image.
    """
    if published:
        return LogImages(pinned("logs", "server_image"), pinned("logs", "agent_image"), local=False)
    version = pinned("logs", "victoria_logs")
    packages = {name: f"{PATH}/app/{name}" for name in ("victoria-logs", "vlagent")}
    module = Module("victoria-logs", PATH, version, packages)
    folder = programs(module, context, platforms.target().architecture)
    server, agent = (
        program_image(folder / name, version, DOCKERFILE.format(name), context) for name in packages
    )
    return LogImages(server, agent, local=True)
