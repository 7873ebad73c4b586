"""Build KWOK's controller, which keeps simulated nodes and their pods alive in an API server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.context import RunContext
from harness.provision.source import versions
from harness.provision.source.golang import Go, Module
from harness.provision.source.programs import building, pinned, program
from harness.provision.source.store import Store, key

PATH = "sigs.k8s.io/kwok"
STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
)
"""The files with KWOK's own Stages for simulated nodes and pods. KWOK's controller does not start without
Stages."""


@dataclass(frozen=True)
class Kwok:
    """The path of KWOK's controller, and the path of the Stages to pass to it as --config."""

    program: Path
    stages: Path


def kwok(context: RunContext) -> Kwok:
    """Return KWOK's controller and stages.

    If the controller is not cached, it is built from its Go module.

    Raises ToolError or HarnessError (cause cluster.node_image), and UsageError if the versions file does not
    specify a KWOK version.
    """
    version = pinned("simulation", "kwok")
    controller = program(Module("kwok", PATH, version, {"kwok": f"{PATH}/cmd/kwok"}), context)
    store = Store.of(context.settings)
    stages = store.path("kwok-stages", version, key("kwok-stages", *STAGES))
    with building("kwok", store, context) as shell:
        if not stages.is_dir():
            with store.work() as work, store.making(stages) as folder:
                oldest = versions.load(context.settings).go
                source = Go(shell, oldest, work).download(PATH, version, work)
                texts = [(source / "kustomize/stage" / name).read_text() for name in STAGES]
                (folder / "stages.yaml").write_text("\n---\n".join(texts))
    return Kwok(controller, stages / "stages.yaml")
