"""Download Go modules in advance, while `harness doctor --fix` installs packages and the CPUs are mostly
idle."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.context import RunContext
from harness.core.errors import HarnessError
from harness.provision import platforms
from harness.provision.source import versions
from harness.provision.source.golang import Go
from harness.provision.source.plan import Plan
from harness.provision.source.shell import Shell
from harness.provision.source.store import Store


def download_modules(context: RunContext) -> None:
    """Download the Go modules that `make.build` compiles, and store them in Go's module cache.

    Requires Go on PATH. If a download fails, a progress message reports the reason. The build tries again,
    and then raises the error.
    """
    settings, progress = context.settings, context.progress
    # Docker may not be installed yet, so its platform may be unknown. Source builds are always for this
    # machine's platform.
    plan = Plan(Store.of(settings), versions.load(settings), platforms.here())
    if all(plan.programs(name).is_dir() for name in plan.modules):
        return
    shell = Shell(plan.store.logs() / "modules.log")
    go = Go(shell, plan.versions.go, plan.store.go_cache, plan.platform.architecture)
    progress("Go modules: downloading in the background …")
    try:
        # This folder is outside the store, because a concurrent build would remove unknown files from the
        # store.
        with tempfile.TemporaryDirectory() as folder:
            go.require(plan.modules.values(), Path(folder))
            go.packages(plan.modules.values(), Path(folder))
    except HarnessError as error:
        progress(f"Go modules: the download failed, so the build will download them ({error})")
