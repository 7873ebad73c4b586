"""Build KWOK's controller, which keeps simulated nodes and their pods alive in an API server.

What the cluster itself is made of is not touched by it: it has a lock and a key of its own.
"""

from __future__ import annotations

import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from harness.context import RunContext
from harness.core.errors import UsageError
from harness.core.locks import locked
from harness.provision.source import golang, versions
from harness.provision.source.golang import Go, Module
from harness.provision.source.shell import Shell
from harness.provision.source.store import Store, code_input, key
from harness.provision.source.versions import LOCK

STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
)
"""What a simulated node and its pods do: KWOK's own files. Without them its controller does not start."""


@dataclass(frozen=True)
class Kwok:
    """The controller, and the stages to give it as --config."""

    program: Path
    stages: Path


def kwok(context: RunContext) -> Kwok:
    """Return KWOK, built from its Go module unless it is in the cache.

    Raises ToolError or HarnessError with cause cluster.node_image. Raises UsageError where the lock has no
    version.
    """
    module = _module()
    oldest = versions.load(context.settings).go
    store = Store(context.settings.cache_dir / "source")
    made_by = code_input(golang.__file__)
    built = store.path(module.name, module.version, key("kwok", repr(module), oldest, made_by))
    stages = store.path("kwok-stages", module.version, key("kwok-stages", *STAGES))
    logs = store.root / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with locked(store.root / "kwok-lock", lambda: context.progress("kwok: waiting for another build to end")):
        shell = Shell(logs / time.strftime("kwok-%Y%m%d-%H%M%S.log", time.gmtime()))
        if not built.is_dir():
            context.progress(f"kwok {module.version}: building …")
            with store.work() as work, store.making(built) as made:
                go = Go(shell, oldest, work / "go-build")
                go.check()
                (work / "module").mkdir()
                go.build(module, work / "module", made)
        if not stages.is_dir():
            with store.work() as work, store.making(stages) as made:
                source = Go(shell, oldest, work).download(module.path, module.version, work)
                texts = [(source / "kustomize/stage" / name).read_text() for name in STAGES]
                (made / "stages.yaml").write_text("\n---\n".join(texts))
    return Kwok(built / module.name, stages / "stages.yaml")


def _module() -> Module:
    try:
        version = str(tomllib.loads(LOCK.read_text())["simulation"]["kwok"])
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{LOCK}: [simulation] names no version of kwok: {error!r}") from None
    return Module("kwok", "sigs.k8s.io/kwok", version, {"kwok": "sigs.k8s.io/kwok/cmd/kwok"})
