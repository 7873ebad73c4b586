"""Build KWOK's controller, which keeps simulated nodes and their pods alive in an API server.

What the cluster itself is made of is not touched by it: it has a lock and a key of its own.
"""

from __future__ import annotations

import time
import tomllib
from pathlib import Path

from harness.context import RunContext
from harness.core.errors import UsageError
from harness.core.locks import locked
from harness.provision.source import versions
from harness.provision.source.golang import Go, Module
from harness.provision.source.shell import Shell
from harness.provision.source.store import Store, code_input, key
from harness.provision.source.versions import LOCK


def program(context: RunContext) -> Path:
    """Return the path of `kwok`, built from its Go module unless it is in the cache.

    Raises ToolError or HarnessError with cause cluster.node_image. Raises UsageError where the lock has no
    version.
    """
    try:
        version = str(tomllib.loads(LOCK.read_text())["simulation"]["kwok"])
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{LOCK}: [simulation] names no version of kwok: {error!r}") from None
    module = Module("kwok", "sigs.k8s.io/kwok", version, {"kwok": "sigs.k8s.io/kwok/cmd/kwok"})
    oldest = versions.load(context.settings).go
    store = Store(context.settings.cache_dir / "source")
    target = store.path(module.name, version, key("kwok", repr(module), oldest, code_input(__file__)))
    logs = store.root / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with locked(store.root / "kwok-lock", lambda: context.progress("kwok: waiting for another build to end")):
        if not target.is_dir():
            context.progress(f"kwok {version}: building …")
            shell = Shell(logs / time.strftime("kwok-%Y%m%d-%H%M%S.log", time.gmtime()))
            with store.work() as work, store.making(target) as made:
                go = Go(shell, oldest, work / "go-build")
                go.check()
                (work / "module").mkdir()
                go.build(module, work / "module", made)
    return target / "kwok"
