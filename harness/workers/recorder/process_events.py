"""Record a process's identity, rank and world size, and how it ends. Also record what torchrun's agent does.

Each event is one line on the container's own stdout, even if the script redirects its output:

    @process1 <base64 of compact JSON> <MAC>        (framed as in truth_frames.py)

The JSON has "k" (kind), "id" ("<pod uid>/<pid>/<start time in ticks>"), and fields specific to the kind:
    {"k":"start","pid":n,"ppid":n,"host":h,"role":"agent"|"rank"|"python","argv":[...],"env":{...},"t":ms}
                               and, if it runs under `timeout N`, "limit":"timeout N","limit_since_ms":ms
    {"k":"group","rank":n,"world":n,"backend":text,"t":ms}    torch.distributed was initialised
    {"k":"workers","restart":n,"max_restarts":n,"group_rank":n,"nodes":n,"run_id":text,
     "workers":[[pid, local rank, global rank, world size], ...],"t":ms}       the agent started its ranks
    {"k":"failed","failures":[[pid, local rank, global rank, exit code, message], ...],"oom_kills":n,"t":ms}
    {"k":"stack","pid":n,"local":n,"rank":n,"text":text,"t":ms}   the stack of a rank when it received SIGTERM
    {"k":"result","state":text,"error":text,"t":ms}        the agent's own result
    {"k":"end","how":"exit"|"exception"|"os._exit"|"exec","code":n|null,"error":text,
     "open":runs_not_finished,"gpu":true|false|null,"t":ms}
This module uses only the standard library, and supports Python 3.9 and later.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from . import exit_status, hooks, rank_stacks

MAX_COMMAND, MAX_ARGUMENT = 1200, 200
"""Maximum length of a command line, and of each of its arguments, in characters. Longer ones would not
fit into a frame."""
WORLD = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    *("TORCHELASTIC_RUN_ID", "PET_NNODES", "PET_STANDALONE", "PET_NPROC_PER_NODE"),
)
"""Environment variables that contain a process's rank, world size and rendezvous settings."""
HEADER = "X-Harness-Process"
"""The request header that identifies the process (harness/tracker/api/http.py)."""
MAX_ANCESTORS = 8
STACK_SECONDS = 1.0
"""Interval in seconds at which the agent checks for its ranks' stacks."""
_MEMORY_EVENTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""The files that contain the number of OOM kills in the container, for cgroup v2 and v1."""
_OTHER_GPU_LIBRARIES = (
    *(
        "jax",
        "jaxlib",
        "tensorflow",
        "cupy",
        "numba.cuda",
        "onnxruntime",
        "tensorrt",
        "paddle",
        "mxnet",
        "pycuda",
    ),
    *("torch_xla", "torch_npu", "torch_musa", "torch_mlu", "habana_frameworks", "warp", "rmm", "nvidia.dali"),
)
"""Modules through which a process can use a GPU or another accelerator without PyTorch's CUDA or XPU code."""
_DEVICE = re.compile(r"/dev/(nvidia|kfd|dri/|dxg|nvhost|nvmap|accel|davinci|neuron|xpu|cambricon|vfio)")
"""Pattern for the device files of accelerators. NVML also opens some of them, so an open file alone does not
prove that a library computes on a GPU."""
_DURATION = re.compile(r"\d+(\.\d+)?[smhd]?$")
_POD = re.compile(r"/pods/([0-9a-f]{8}-[0-9a-f-]{27})/")
_PROCESS_EXIT = os._exit


class _State:
    """This process's state, such as which events it has recorded. A forked child creates its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.started = self.ended = False
        self.open: set[int] = set()
        """The ids of the Pluto run objects that this process created and has not finished."""
        self.group: tuple[int, int] | None = None
        """The process's rank and world size in torch.distributed, or None."""
        self.workers: list[list[int]] = []
        """The ranks that this agent started most recently, as [pid, local rank, rank, world size]."""
        self.watches_stacks = False


_state = _State()


def _current() -> _State:
    global _state  # noqa: PLW0603
    if _state.pid != os.getpid():
        _state = _State()
        identity.cache_clear()
    return _state


@functools.lru_cache(maxsize=1)
def identity() -> str:
    """Return "<pod uid>/<pid>/<start time in ticks>". The pod uid is "" if no mount path contains it."""
    return _identity_of(str(os.getpid()))


def _identity_of(pid: str) -> str:
    match, ticks = None, "0"
    with contextlib.suppress(OSError, IndexError, ValueError):
        match = _POD.search(Path("/proc/self/mountinfo").read_text())
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{match[1] if match else ''}/{pid}/{ticks}"


def start(role: str = "python") -> None:
    """Record that this process is running, and ensure that its exit is recorded. Never raises.

    `role` is "rank" for a process that torchrun started as a rank, and "agent" for torchrun or another
    launcher. Any other process is recorded when it initialises torch.distributed or starts the Pluto client.
    """
    state = _current()
    if state.started:
        return
    state.started = True
    if os._exit is not _exit_at_once:
        exit_status.watch()
        os._exit = _exit_at_once  # type: ignore[assignment]
        os.execv, os.execve = _before_exec(os.execv), _before_exec(os.execve)
    if role == "rank":
        try:
            rank_stacks.register()
        except Exception as error:
            hooks.say(f"could not prepare to record the stack: {error!r}")
    environment = {name: os.environ[name][:200] for name in WORLD if name in os.environ}
    head = {"pid": os.getpid(), "ppid": os.getppid(), "host": os.uname().nodename, "role": role}
    write({"k": "start", **head, "argv": _arguments(), "env": environment, **_limit()})


def end(how: str, code: int | None, error: str = "") -> None:
    """Record how this process ends, if its start was recorded. Never raises."""
    state = _current()
    if not state.started or state.ended:
        return
    state.ended = how != "exec"  # After a failed exec, the process continues, so its end is still unknown.
    fields = {"error": error[:300], "open": len(state.open), "gpu": used_gpu()}
    write({"k": "end", "how": how, "code": code, **fields})


def at_exit() -> None:
    """Record how the interpreter ends: by an exception, by `sys.exit`, or after the script's last line."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None:
        end("exception", 1, f"{type(error).__name__}: {error}")
    else:
        end("exit", exit_status.code())


def group_rank() -> int | None:
    """Return this process's rank in torch.distributed, or None before it is initialised."""
    group = _current().group
    return group[0] if group else None


def finished_all() -> bool:
    """Return whether this process has finished every Pluto run that it started."""
    return not _current().open


def used_gpu() -> bool | None:
    """Return whether PyTorch initialised CUDA, ROCm or XPU in this process.

    PyTorch initialises them when it first uses a GPU. The result is None if PyTorch is not imported, or if
    another library may have used a GPU: it is imported, and an accelerator's device file is open.
    """
    torch: Any = sys.modules.get("torch")
    try:
        devices = [device for device in (torch.cuda, getattr(torch, "xpu", None)) if device is not None]
        if any(device.is_initialized() for device in devices):
            return True
    except Exception:  # PyTorch is not imported, or only a part of it.
        return None
    others = any(name in sys.modules for name in _OTHER_GPU_LIBRARIES)
    return None if others and _has_device_open() else False


def _has_device_open() -> bool:
    """Return whether this process has the device file of an accelerator open."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if _DEVICE.match(os.readlink(f"/proc/self/fd/{number}")):
                return True
    return False


def write(event: dict[str, Any]) -> None:
    """Write one event. If this fails, write a message to the log. Never raises."""
    try:
        from ..ground_truth import truth_frames

        body = {**event, "id": identity(), "t": int(time.time() * 1000)}
        line = truth_frames.encode(hooks.variable("HARNESS_NONCE"), body, truth_frames.PROCESS_MARK)
        os.write(hooks.log_of_the_container(), (line + "\n").encode())
    except Exception as error:
        hooks.say(f"could not record process {os.getpid()}: {error!r}")


def _arguments() -> list[str]:
    """Return this process's command line, truncated to fit into a frame."""
    room, words = MAX_COMMAND, []
    for word in hooks.command_line():
        if room <= 0:
            break
        words.append(word[: min(MAX_ARGUMENT, room)])
        room -= len(word)
    return words


def _limit() -> dict[str, Any]:
    """Return the command and start time of the nearest ancestor that is a `timeout N` process, or {}."""
    pid = os.getppid()
    for _ in range(MAX_ANCESTORS):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if words and os.path.basename(words[0]) == "timeout":
                age = float(Path("/proc/uptime").read_text().split()[0]) - int(status[19]) / os.sysconf(
                    "SC_CLK_TCK"
                )
                at = next(
                    at for at, word in enumerate(words) if _DURATION.match(word) and not _is_option(words, at)
                )
                limit = " ".join(["timeout", *words[1 : at + 1]])[:MAX_ARGUMENT]
                return {"limit": limit, "limit_since_ms": int((time.time() - age) * 1000)}
            pid = int(status[1])
        except (OSError, ValueError, IndexError, StopIteration):
            return {}
        if pid <= 1:
            return {}
    return {}


def _is_option(words: list[str], at: int) -> bool:
    """Return whether a word is the value of a `timeout` option, as in -k 5 or -s 9."""
    return words[at - 1] in {"-k", "-s", "--kill-after", "--signal"}


def _oom_kills() -> int:
    """Return the number of this container's processes killed by the OOM killer, or 0 if it is unknown."""
    for path in _MEMORY_EVENTS:
        with contextlib.suppress(OSError, ValueError, KeyError):
            counts = dict(line.split() for line in Path(path).read_text().splitlines())
            return int(counts["oom_kill"])
    return 0


def _exit_at_once(status: int) -> None:
    if _state.pid == os.getpid() and _state.started:
        # Points in an unfinished run may be lost, so no end frame is written.
        hooks.ended_at_once(complete=status == 0 and finished_all())
        end("os._exit", exit_status.exit_code(status))
    _PROCESS_EXIT(status)


def _before_exec(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def execute(path: Any, arguments: Any, *rest: Any) -> Any:
        if _state.pid == os.getpid() and _state.started:
            end("exec", 0, " ".join(map(str, arguments))[:200])
        return original(path, arguments, *rest)

    return execute


# -- wrappers for functions in other modules, applied when the modules are imported -------------------------
def wrap_group(module: ModuleType) -> None:
    """Record the rank and world size when torch.distributed is initialised (`distributed_c10d`)."""
    distributed: Any = module
    original = distributed.init_process_group

    @functools.wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        try:
            start()
            state, group = _current(), (int(distributed.get_rank()), int(distributed.get_world_size()))
            if state.group != group:
                state.group = group
                backend = str(distributed.get_backend())[:40]
                write({"k": "group", "rank": group[0], "world": group[1], "backend": backend})
        except Exception as error:
            hooks.say(f"could not record the process group: {error!r}")
        return result

    distributed.init_process_group = init_process_group


def wrap_run(module: ModuleType) -> None:
    """Record that this process uses the Pluto client, and track its unfinished runs (`pluto.op`)."""
    run: Any = module.Op
    original_init, finish = run.__init__, run.finish

    @functools.wraps(original_init)
    def init(op: Any, *arguments: Any, **options: Any) -> None:
        start()
        _current().open.add(id(op))
        original_init(op, *arguments, **options)

    @functools.wraps(finish)
    def finished(op: Any, *arguments: Any, **options: Any) -> Any:
        result = finish(op, *arguments, **options)
        _current().open.discard(id(op))
        if finished_all():
            hooks.finished_in_a_child()
        return result

    run.__init__, run.finish = init, finished


def wrap_interface(module: ModuleType) -> None:
    """Add this process's identity to each of the client's requests (`pluto.iface`)."""
    interface: Any = module.ServerInterface
    original = interface.__init__

    @functools.wraps(original)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        for headers in (self.headers, self.headers_num):
            headers[HEADER] = identity()

    interface.__init__ = init


def wrap_uploader(module: ModuleType) -> None:
    """Add the identity of the process that logged the points to each upload (`pluto.sync.process`)."""
    uploader: Any = module._SyncUploader
    original = uploader._get_headers

    @functools.wraps(original)
    def headers(self: Any) -> dict[str, str]:
        return {**original(self), HEADER: uploads_for() or identity()}

    uploader._get_headers = headers


@functools.lru_cache(maxsize=1)
def uploads_for() -> str:
    """Return the identity of the process that started this one if this is an upload process, otherwise ""."""
    words = hooks.command_line()
    if "pluto.sync" not in words or "--parent-pid" not in words[:-1]:
        return ""
    return _identity_of(words[words.index("--parent-pid") + 1])


def wrap_agent(module: ModuleType) -> None:
    """Record the actions of torchrun's agent (`torch.distributed.elastic.agent.server.local_elastic_agent`).

    The wrapped methods exist in PyTorch 2.0 to 2.12. If one is missing, its calls are not recorded.
    """
    agent: Any = module.LocalElasticAgent
    _wrap_method(agent, "_start_workers", _workers, before=_prepare_stacks)
    _wrap_method(agent, "_monitor_workers", _failed)
    original = agent.run

    @functools.wraps(original)
    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        start("agent")
        try:
            result = original(self, *arguments, **options)
        except BaseException as error:
            _stacks()
            write({"k": "result", "state": "raised", "error": f"{type(error).__name__}: {error}"[:300]})
            raise
        state = str(getattr(result.state, "value", result.state))
        write({"k": "result", "state": state, "error": ""})
        return result

    agent.run = run


def _wrap_method(
    owner: Any, name: str, after: Callable[[Any, Any], None], before: Callable[[Any], None] | None = None
) -> None:
    """Wrap a method. `before` is called before the method, and `after` with the method's result."""
    original = getattr(owner, name, None)
    if original is None:
        hooks.say(f"does not support this version of torchrun: it has no {name}")
        return

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            if before is not None:
                before(self)
        except Exception as error:
            hooks.say(f"could not prepare to record torchrun's actions: {error!r}")
        result = original(self, *arguments, **options)
        try:
            after(self, result)
        except Exception as error:
            hooks.say(f"could not record torchrun's action: {error!r}")
        return result

    setattr(owner, name, method)


def _prepare_stacks(agent: Any) -> None:
    """Record the stacks of the ranks that this agent has stopped, and create files for new ranks."""
    _stacks()
    rank_stacks.provide(worker.local_rank for worker in agent.get_worker_group().workers)
    if not _current().watches_stacks:
        _current().watches_stacks = True
        threading.Thread(target=_watch_stacks, name="harness-stacks", daemon=True).start()


def _watch_stacks() -> None:
    """Record stacks periodically, because the kubelet may kill the agent while it waits for its ranks."""
    while True:
        time.sleep(STACK_SECONDS)
        _stacks()


def _stacks() -> None:
    """Record the stacks that the agent's ranks had when they received SIGTERM."""
    workers = {local: (pid, rank) for pid, local, rank, _ in _current().workers}
    for local, text in rank_stacks.taken():
        pid, rank = workers.get(local, (0, -1))
        write({"k": "stack", "pid": pid, "local": local, "rank": rank, "text": text})


def _workers(agent: Any, pids: dict[int, int]) -> None:
    """Record the processes that an agent started, with the ranks that the rendezvous assigned to them."""
    start("agent")
    group = agent.get_worker_group()
    spec = group.spec
    restart = spec.max_restarts - agent._remaining_restarts
    each = [[pids[w.local_rank], w.local_rank, w.global_rank, w.world_size] for w in group.workers]
    _current().workers = each
    head = {"restart": restart, "max_restarts": spec.max_restarts, "group_rank": group.group_rank}
    head["nodes"] = group.group_world_size
    run_id = str(spec.rdzv_handler.get_run_id())[:100]
    for first in range(0, len(each), 64):
        write({"k": "workers", **head, "run_id": run_id, "workers": each[first : first + 64]})


def _failed(agent: Any, result: Any) -> None:
    """Record the rank failures that an agent detected, and the stacks of the ranks that it then stopped."""
    if not result.is_failed():
        return
    _stacks()
    del agent
    each = [
        [f.pid, f.local_rank, rank, f.exitcode, _message(f)] for rank, f in sorted(result.failures.items())
    ]
    for first in range(0, len(each), 8):
        write({"k": "failed", "failures": each[first : first + 8], "oom_kills": _oom_kills()})


def _message(failure: Any) -> str:
    """Return the message from a failed rank's error file, or torchrun's description of its exit code."""
    message = failure.message
    while isinstance(message, dict) and "message" in message:
        message = message["message"]
    return str(message)[:120]
