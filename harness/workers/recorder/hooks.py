"""Record calls to the Pluto client by wrapping its public functions, without changes to the workers.

`sitecustomize.py` calls `install` in every Python process of a rank's container. When a process imports the
client, the recorder wraps the client's functions (client_calls.py). It also records the process's identity
and how it ends (process_events.py). This module uses only the standard library, and supports Python 3.9 and
later.
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
"""The Pluto client's module that defines the run class."""
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX")
MODE = "HARNESS_RECORDER_MODE"
"""The environment variable with the recorder's mode. An admission policy sets it to ADMITTED."""
ADMITTED = "admitted"
LAUNCH = ("HARNESS_NONCE", "HARNESS_LOG", "HARNESS_TRUTH_ROWS", "HARNESS_CPU_FREQUENCY", MODE)
"""Environment variables that the launch sets. A process whose environment lacks them copies them from
an ancestor."""
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
"""Maps each module that launches ranks to the launcher's name."""
MAX_ANCESTORS = 64
RECORDED_BY = "HARNESS_RECORDED_BY"
"""Environment variable that identifies the process that records a rank, as "<pid>:<rank>". Child processes
inherit it."""


_inherited: dict[str, str] = {}
"""The environment of the nearest ancestor that has the launch variables, if this process lacks them."""
_launch_variables: dict[str, str] = {}
"""The launch variables at process start. They are kept because the program may clear its environment
later."""
_installed = False


def install() -> None:
    """Wrap the client as soon as this process imports it. Do nothing outside a harness launch.

    The recorder's .pth file and its sitecustomize can both call this function. The second call does nothing.
    A process whose HARNESS_NONCE is empty is not recorded.
    """
    global _installed  # noqa: PLW0603
    nonce = os.environ.get("HARNESS_NONCE")
    if _installed or nonce == "" or not (nonce or _inherit()):
        return
    _installed = True
    _launch_variables.update({name: os.environ[name] for name in (*LAUNCH, *RANKS) if name in os.environ})
    is_rank = started_by_torchrun(os.environ)
    # Exit handlers run in reverse order, so this one is registered early to run late. `is_rank` is computed
    # now, because the parent process may end before this process.
    atexit.register(_at_exit, os.getpid(), is_rank)
    for name in _wrapped():
        if name in sys.modules:
            _wrap(sys.modules[name])
    sys.meta_path.insert(0, _Finder())
    if not admitted() and (is_rank or launcher(command_line())):
        try:
            from . import process_events

            process_events.start("rank" if is_rank else "agent")
        except Exception as error:
            say(f"cannot record this process: {error!r}")


def _inherit() -> bool:
    """Copy the launch variables from an ancestor process into this process's environment, except the
    variables that contain the rank. Return whether an ancestor process has launch variables.
    """
    pid = os.getppid()
    for _ in range(MAX_ANCESTORS):
        try:
            pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            variables = dict(pair.decode(errors="replace").partition("=")[::2] for pair in pairs)
            if variables.get("HARNESS_NONCE"):
                break
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
        if pid < 1:
            return False
    else:
        return False
    _inherited.update(variables)
    for name in LAUNCH:
        if name in variables:
            os.environ.setdefault(name, variables[name])
    # The container's init sets HARNESS_LOG in its own environment at runtime, so /proc/<pid>/environ does not
    # contain it.
    os.environ.setdefault("HARNESS_LOG", f"/proc/{pid}/fd/1")
    return True


class _Finder:
    """An import finder that delegates to the other finders and wraps certain modules."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return another finder's spec with a loader that wraps the module, or None for other modules."""
        if name not in _wrapped():
            return None
        for finder in [finder for finder in sys.meta_path if finder is not self]:
            find_in = getattr(finder, "find_spec", None)
            spec = find_in(name, path, target) if find_in else None
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
        say(f"cannot wrap {spec.name}: {error!r}")


def _wrap(module: ModuleType) -> None:
    """Wrap a module's functions.

    If the module does not have the expected functions, write a message to the log.
    """
    for submodule, function in _wrapped()[module.__name__]:
        try:
            getattr(import_module(f".{submodule}", __package__), function)(module)
        except Exception as error:
            say(f"does not support this version of {module.__name__}: {error!r}")


_WRAPPED: dict[str, tuple[tuple[str, str], ...]] = {
    CLIENT: (("client_calls", "wrap"), ("process_events", "wrap_run")),
    "pluto.iface": (("process_events", "wrap_interface"),),
    "pluto.sys": (("client_calls", "wrap_system"),),
    "pluto.sync.process": (("process_events", "wrap_uploader"),),
    "torch.distributed.distributed_c10d": (("process_events", "wrap_group"),),
    "torch.distributed.elastic.agent.server.local_elastic_agent": (("process_events", "wrap_agent"),),
}
"""Maps each wrapped module to its wrappers. A wrapper is given as (module in this package, function), and
imported when it is needed."""
_WRAPPED_ADMITTED: dict[str, tuple[tuple[str, str], ...]] = {CLIENT: (("client_calls", "wrap"),)}


def admitted() -> bool:
    """Return whether an admission policy, rather than a harness launch, added the recorder to the pod."""
    return variable(MODE) == ADMITTED


def _wrapped() -> dict[str, tuple[tuple[str, str], ...]]:
    return _WRAPPED_ADMITTED if admitted() else _WRAPPED


def _at_exit(process: int, is_rank: bool) -> None:
    """Finish recording this process. A rank that created no run records that it logged nothing.

    In a forked child that runs exit handlers, this finishes the child's own recording.
    """
    is_rank = is_rank and os.getpid() == process
    try:
        if is_rank or f"{__package__}.client_calls" in sys.modules:
            from . import client_calls

            client_calls.at_exit(is_rank)
    except Exception as error:
        say(f"could not end: {error!r}")
    if (process_events := sys.modules.get(f"{__package__}.process_events")) is not None:
        process_events.at_exit()


def ended_at_once(complete: bool) -> None:
    """Flush pending records before this process exits without running its exit handlers.

    If `complete` is true, no point can be lost, and an end frame is written to the ground truth.
    """
    client = sys.modules.get(f"{__package__}.client_calls")
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
    """Record the outcome of all points if this process is a child of a rank. Never raises.

    This is called when the process has finished all its runs.
    """
    client = sys.modules.get(f"{__package__}.client_calls")
    recording = getattr(client, "_recording", None)
    if recording is None or not recording.here or recording.stream.parent is None:
        return
    try:
        recording.pause()
    except Exception as error:
        say(f"could not account for the points of a child process of the rank: {error!r}")


def rank_of(environment: Mapping[str, str]) -> int | None:
    """Return the rank that a launcher assigned to this process, or None if it is not a rank."""
    values = [environment[name] for name in RANKS if environment.get(name, "").isdecimal()]
    return int(values[0]) if values else None


def rank_here() -> int | None:
    """Return the rank of this process, from torch.distributed, its environment or its ancestors."""
    process = sys.modules.get(f"{__package__}.process_events")
    of_group: int | None = process.group_rank() if process is not None else None
    if of_group is not None:
        return of_group
    ranks = (rank_of(environment) for environment in (os.environ, _launch_variables, _inherited))
    return next((rank for rank in ranks if rank is not None), None)


def variable(name: str) -> str:
    """Return an environment variable or "".

    Launch variables are available even after the program has cleared its environment.
    """
    return os.environ.get(name) or _launch_variables.get(name, "")


def recorded_by(environment: Mapping[str, str], rank: int) -> int | None:
    """Return the pid of the rank that is an ancestor of this process, or None if this is a rank itself."""
    process, _, of_rank = environment.get(RECORDED_BY, "").partition(":")
    if not process.isdecimal() or int(process) == os.getpid() or of_rank != str(rank):
        return None
    return None if started_by_torchrun(environment) else int(process)


def started_by_torchrun(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun started this process as a rank. Returns False for a rank's child process."""
    if rank_of(environment) is None or "LOCAL_RANK" not in environment:
        return False
    try:
        return b"LOCAL_RANK=" not in Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return False


def launcher(words: Sequence[str]) -> str:
    """Return the name of the launcher (such as torchrun) that a command line runs, or "".

    A launcher is recorded as soon as it starts, because it may fail or exit before it parses its options.
    """
    words_left = iter(words[1:])
    for word in words_left:
        if word == "-m":
            return _MODULES.get(next(words_left, ""), "")
        if word == "-c":
            return ""
        if word in {"-X", "-W"}:
            next(words_left, "")
        elif not word.startswith("-"):
            name = os.path.basename(word)
            if name == "accelerate" and next(words_left, "") == "launch":
                return "accelerate launch"
            return name if name in {"torchrun", "deepspeed"} else ""
    return ""


def command_line() -> list[str]:
    """Return the command line of this process, including the interpreter's options."""
    try:
        return Path("/proc/self/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except OSError:
        return list(getattr(sys, "argv", []))


def log_of_the_container() -> int:
    """Return a file descriptor for the container's own stdout, even if the program's stdout is redirected.

    Each process opens the descriptor once, and its child processes do not inherit it. If the program has
    closed the descriptor, as daemons do, or reused its number, a new one is opened.
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
    """Write one line to the log, and ignore write errors."""
    with contextlib.suppress(OSError):
        os.write(2, f"[harness] the recorder around Pluto's client {text}\n".encode())
