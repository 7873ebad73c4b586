"""Put a recorder around the public calls of Pluto's client, from outside: no worker imports this.

`outside_sitecustomize.py` calls `install` in every Python process of a rank's container. When a process
imports the client, its calls are wrapped (outside_client.py). What the process is, and how it ends, is
recorded too (outside_process.py). Standard library only, Python 3.9 and later.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

CLIENT = "pluto.op"
"""The module of the client that has the class of a run."""
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX")
LAUNCH = ("HARNESS_NONCE", "HARNESS_LOG", "HARNESS_TRUTH_ROWS")
"""Variables that a process with a clean environment takes from its ancestors."""
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
"""Module of a launcher of ranks → its name."""
"""Modules that are torchrun."""
MAX_ANCESTORS = 64
RECORDED_BY = "HARNESS_RECORDED_BY"
"""The process that records for a rank, and the rank: "<process>:<rank>". Its children inherit it."""


_inherited: dict[str, str] = {}
"""What the nearest ancestor with the launch's variables had, where this process was started without them."""
_given: dict[str, str] = {}
"""The launch's variables as they were at the start. A program may clear its environment afterwards."""
_installed = False


def install() -> None:
    """Wrap the client as soon as this process imports it. Does nothing outside a launch of the harness.

    Python calls this twice where both the .pth file and PYTHONPATH lead here. A process whose HARNESS_NONCE
    is empty is not recorded.
    """
    global _installed  # noqa: PLW0603
    nonce = os.environ.get("HARNESS_NONCE")
    if _installed or nonce == "" or not (nonce or _inherit()):
        return
    _installed = True
    _given.update({name: os.environ[name] for name in (*LAUNCH, *RANKS) if name in os.environ})
    is_rank = started_by_torchrun(os.environ)
    # As early as possible: what is registered later runs before it, and the parent may be gone at the end.
    atexit.register(_at_exit, os.getpid(), is_rank)
    for name in _WRAPPED:
        if name in sys.modules:
            _wrap(sys.modules[name])
    sys.meta_path.insert(0, _Finder())
    if is_rank or launcher(command_line()):
        try:
            from . import outside_process

            outside_process.start("rank" if is_rank else "agent")
        except Exception as error:
            say(f"cannot record this process: {error!r}")


def _inherit() -> bool:
    """Take the launch's variables from an ancestor, where this process has a clean environment.

    Returns whether there was one. The variables that say which rank it is stay out of the environment.
    """
    pid = os.getppid()
    for _ in range(MAX_ANCESTORS):
        try:
            pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found = dict(pair.decode(errors="replace").partition("=")[::2] for pair in pairs)
            if found.get("HARNESS_NONCE"):
                break
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
        if pid < 1:
            return False
    else:
        return False
    _inherited.update(found)
    for name in LAUNCH:
        if name in found:
            os.environ.setdefault(name, found[name])
    # The init sets this one after it was started, so its own environment does not show it.
    os.environ.setdefault("HARNESS_LOG", f"/proc/{pid}/fd/1")
    return True


class _Finder:
    """Finds no module itself. It wraps some modules when another finder has found them."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give. Its loader wraps what it has loaded."""
        if name not in _WRAPPED:
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
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
        say(f"cannot be put around {spec.name}: {error!r}")


def _wrap(module: ModuleType) -> None:
    """Wrap a module's calls. A module that is not as expected stays as it is, and the log says so."""
    for ours, function in _WRAPPED[module.__name__]:
        try:
            getattr(import_module(f".{ours}", __package__), function)(module)
        except Exception as error:
            say(f"does not know this {module.__name__}: {error!r}")


_WRAPPED = {
    CLIENT: (("outside_client", "wrap"), ("outside_process", "wrap_run")),
    "pluto.iface": (("outside_process", "wrap_interface"),),
    "pluto.sync.process": (("outside_process", "wrap_uploader"),),
    "torch.distributed.distributed_c10d": (("outside_process", "wrap_group"),),
    "torch.distributed.elastic.agent.server.local_elastic_agent": (("outside_process", "wrap_agent"),),
}
"""Module → which function of which of our modules wraps it. Ours is imported only where it is needed."""


def _at_exit(process: int, is_rank: bool) -> None:
    """End what was recorded. A rank that made no run tells that it logged nothing.

    A child that was forked from it, and ends as a program does, ends what it recorded itself.
    """
    is_rank = is_rank and os.getpid() == process
    try:
        if is_rank or f"{__package__}.outside_client" in sys.modules:
            from . import outside_client

            outside_client.at_exit(is_rank)
    except Exception as error:
        say(f"could not end: {error!r}")
    if (recorded := sys.modules.get(f"{__package__}.outside_process")) is not None:
        recorded.at_exit()


def ended_at_once(complete: bool) -> None:
    """Write what is pending before this process ends without its exit handlers.

    The record of what was logged has an end only where nothing can be lost by that.
    """
    client = sys.modules.get(f"{__package__}.outside_client")
    recording = getattr(client, "_recording", None)
    if recording is None or not recording.here:
        return
    try:
        if complete:
            recording.end()
        else:
            recording.stream.flush()
    except Exception as error:
        say(f"could not end: {error!r}")


def finished_in_a_child() -> None:
    """Account for what a child of the rank logged, when it has finished its runs. Never raises."""
    client = sys.modules.get(f"{__package__}.outside_client")
    recording = getattr(client, "_recording", None)
    if recording is None or not recording.here or recording.stream.parent is None:
        return
    try:
        recording.pause()
    except Exception as error:
        say(f"could not account for a child of the rank: {error!r}")


def rank_of(environment: Mapping[str, str]) -> int | None:
    """Return the rank that a launcher gave this process, or None for a process that is no rank."""
    given = [environment[name] for name in RANKS if environment.get(name, "").isdecimal()]
    return int(given[0]) if given else None


def rank_here() -> int | None:
    """Return the rank of this process: as torch.distributed, its environment or its ancestors say."""
    process = sys.modules.get(f"{__package__}.outside_process")
    of_group: int | None = process.group_rank() if process is not None else None
    if of_group is not None:
        return of_group
    known = (rank_of(environment) for environment in (os.environ, _given, _inherited))
    return next((rank for rank in known if rank is not None), None)


def variable(name: str) -> str:
    """Return a variable of the launch, also where the program has cleared its environment. "" without it."""
    return os.environ.get(name) or _given.get(name, "")


def recorded_by(environment: Mapping[str, str], rank: int) -> int | None:
    """Return the process of the same rank whose child this process is, or None for a rank of its own."""
    process, _, of_rank = environment.get(RECORDED_BY, "").partition(":")
    if not process.isdecimal() or int(process) == os.getpid() or of_rank != str(rank):
        return None
    return None if started_by_torchrun(environment) else int(process)


def started_by_torchrun(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun started this process as a rank, and not a rank as a helper of its own."""
    if rank_of(environment) is None or "LOCAL_RANK" not in environment:
        return False
    try:
        return b"LOCAL_RANK=" not in Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return False


def launcher(words: Sequence[str]) -> str:
    """Return the launcher of ranks that a command line runs, as a script or a module, or "".

    It is recorded from its first moment: its options may be wrong, and it may be ended before it knows them.
    """
    left = iter(words[1:])
    for word in left:
        if word == "-m":
            return _MODULES.get(next(left, ""), "")
        if word == "-c":
            return ""
        if word in {"-X", "-W"}:
            next(left, "")
        elif not word.startswith("-"):
            name = os.path.basename(word)
            if name == "accelerate" and next(left, "") == "launch":
                return "accelerate launch"
            return name if name in {"torchrun", "deepspeed"} else ""
    return ""


def command_line() -> list[str]:
    """Return the command line of this process, the interpreter's options included."""
    try:
        return Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return list(getattr(sys, "argv", []))


def log_of_the_container() -> int:
    """Return the container's own stdout, also when the program's is redirected into a file or a pipe.

    It is opened once in a process, and not inherited by programs that the process starts. A program that
    closes all files, as daemons do, may have opened another one under the same number.
    """
    global _log  # noqa: PLW0603
    if _log is None or _file(_log[0]) != _log[1]:
        path = variable("HARNESS_LOG")
        try:
            opened = os.open(path, os.O_WRONLY | os.O_APPEND) if path else os.dup(1)
        except OSError:
            opened = os.dup(1)
        _log = opened, _file(opened)
    return _log[0]


def _file(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino


_log: tuple[int, tuple[int, int] | None] | None = None


def say(text: str) -> None:
    """Write one line to the log. It is never an error when that fails."""
    with contextlib.suppress(OSError):
        os.write(2, f"[harness] the recorder around Pluto's client {text}\n".encode())
