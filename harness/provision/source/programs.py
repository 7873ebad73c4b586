"""Build programs from a Go module that is not part of the cluster's images.

The module has its own lock and cache key, so a change of its version triggers no other build.
"""

from __future__ import annotations

import platform
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.context import RunContext
from harness.core.errors import UsageError
from harness.core.locks import locked
from harness.provision.source import golang, versions
from harness.provision.source.golang import Go, Module
from harness.provision.source.shell import Shell
from harness.provision.source.store import Store, code_input, key
from harness.provision.source.versions import LOCK


def pinned(section: str, name: str) -> str:
    """Return a module's version from the versions file.

    Raises UsageError if the file does not contain this version.
    """
    try:
        return str(tomllib.loads(LOCK.read_text())[section][name])
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{LOCK}: [{section}] does not contain a version for {name}: {error!r}") from None


def program(module: Module, context: RunContext, architecture: str = "") -> Path:
    """Return the path of a module's program. The module must have only one program. Raises the same errors as
    `programs`."""
    return programs(module, context, architecture) / module.programs[0]


def programs(module: Module, context: RunContext, architecture: str = "") -> Path:
    """Return the folder of a module's compiled programs, building them if they are not cached.

    The default `architecture` is this machine's. For an image, pass the image's architecture.

    Raises ToolError or HarnessError (cause cluster.node_image).
    """
    oldest = versions.load(context.settings).go
    store = Store.of(context.settings)
    code_digest, built_for = code_input(golang.__file__), architecture or platform.machine()
    inputs = key(module.name, repr(module), oldest, code_digest, built_for)
    program_folder = store.path(module.name, module.version, inputs)
    with building(module.name, store, context) as shell:
        if not program_folder.is_dir():
            context.progress(f"{module.name} {module.version}: building …")
            with store.work() as work, store.making(program_folder) as folder:
                go = Go(shell, oldest, work / "go-build", architecture)
                go.check()
                (work / "module").mkdir()
                go.require([module], work / "module")
                go.build(module, work / "module", folder)
    return program_folder


@contextmanager
def building(name: str, store: Store, context: RunContext) -> Iterator[Shell]:
    """Return a context manager that holds the build lock for `name`.

    It yields a shell that logs to a new file.
    """
    with locked(
        store.root / f"{name}-lock", lambda: context.progress(f"{name}: waiting for another build to end")
    ):
        yield Shell(store.logs() / time.strftime(f"{name}-%Y%m%d-%H%M%S.log", time.gmtime()))
