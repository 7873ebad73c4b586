"""Download Go's modules before the build asks for them: half a minute in which the processors are idle."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.context import RunContext
from harness.core.errors import HarnessError
from harness.provision.source import versions
from harness.provision.source.golang import Go
from harness.provision.source.plan import Plan
from harness.provision.source.shell import Shell
from harness.provision.source.store import Store


def download_modules(context: RunContext) -> None:
    """Bring what `build` will compile into Go's module cache, unless all is compiled. Needs Go on PATH.

    What fails is told and not raised: the build tries again, and raises with its cause.
    """
    settings, progress = context.settings, context.progress
    plan = Plan(Store.of(settings), versions.load(settings))
    if all(plan.programs(name).is_dir() for name in plan.modules):
        return
    go = Go(Shell(plan.store.logs() / "modules.log"), plan.versions.go, plan.store.go_cache)
    progress("Go modules: downloading meanwhile …")
    try:
        # In a folder of its own: another process may be building, and that one clears what it does not know.
        with tempfile.TemporaryDirectory() as folder:
            go.require(plan.modules.values(), Path(folder))
            go.packages(plan.modules.values(), Path(folder))
    except HarnessError as error:
        progress(f"Go modules: the build will download them ({error})")
