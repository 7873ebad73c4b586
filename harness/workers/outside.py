"""Put a recorder around the public calls of Pluto's client, from outside: no worker imports this.

`outside_sitecustomize.py` calls `install` in every Python process of a rank's container. When a process
imports the client, its calls are wrapped (outside_client.py). Standard library only, Python 3.9 and later.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

CLIENT = "pluto.op"
"""The module of the client that has the class of a run."""
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX")
RECORDED_BY = "HARNESS_RECORDED_BY"
"""What records for a rank: "<process>:<rank>:<attempt>". Its children inherit it, and so record nothing."""


def install() -> None:
    """Wrap the client as soon as this process imports it. Does nothing outside a launch of the harness."""
    if not os.environ.get("HARNESS_NONCE"):
        return
    # As early as possible: what is registered later runs before it, and the parent may be gone at the end.
    atexit.register(_at_exit, os.getpid(), started_by_torchrun(os.environ))
    if CLIENT in sys.modules:
        _wrap(sys.modules[CLIENT])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds no module itself. It wraps the client's module when another finder has found it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give. Its loader wraps what it has loaded."""
        if name != CLIENT:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                _after_loading(spec)
                return spec  # type: ignore[no-any-return]
        return None


def _after_loading(spec: ModuleSpec) -> None:
    try:
        loader: Any = spec.loader
        load = loader.exec_module

        def load_and_wrap(module: ModuleType) -> None:
            load(module)
            _wrap(module)

        loader.exec_module = load_and_wrap
    except Exception as error:
        say(f"cannot be put around the client: {error!r}")


def _wrap(module: ModuleType) -> None:
    """Wrap the client's calls. A client that is not as expected stays as it is, and the log says so."""
    try:
        from . import outside_client

        outside_client.wrap(module)
    except Exception as error:
        say(f"does not know this client: {error!r}")


def _at_exit(process: int, is_rank: bool) -> None:
    """End what was recorded. A rank that made no run tells that it logged nothing."""
    if os.getpid() != process or not (is_rank or f"{__package__}.outside_client" in sys.modules):
        return
    try:
        from . import outside_client

        outside_client.at_exit(is_rank)
    except Exception as error:
        say(f"could not end: {error!r}")


def rank_of(environment: Mapping[str, str]) -> int | None:
    """Return the rank that a launcher gave this process, or None for a process that is no rank."""
    given = [environment[name] for name in RANKS if environment.get(name, "").isdecimal()]
    return int(given[0]) if given else None


def records_elsewhere(environment: Mapping[str, str]) -> bool:
    """Return whether this process is a child of the process that records for its rank."""
    given = environment.get(RECORDED_BY, "")
    return bool(given) and not given.startswith(f"{os.getpid()}:")


def started_by_torchrun(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun started this process as a rank, and not a rank as a helper of its own."""
    if rank_of(environment) is None or "LOCAL_RANK" not in environment:
        return False
    try:
        return b"LOCAL_RANK=" not in Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return False


def say(text: str) -> None:
    """Write one line to the log. It is never an error when that fails."""
    with contextlib.suppress(OSError):
        os.write(2, f"[harness] the recorder around Pluto's client {text}\n".encode())
