"""Run a generated training program, and write a journal of its calls: python3 program.py PROGRAM.

PROGRAM is the base64-encoded JSON from harness/faults/programs/generator.py. Each process writes a journal
below FOLDER, on a disk that outlives the container. The journal contains a line for the start of the process,
a line for each `run.log` call with all its values, and a line for the end of the process with its exit code.
Each line is synced to disk before the event takes place. If the journal has no "end" line, the process was
killed from outside. Only the oracle reads the journals (harness/faults/programs/oracle.py).
"""

from __future__ import annotations

import base64
import collections
import contextlib
import decimal
import fractions
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = os.environ.get("PROGRAM_JOURNALS", "/witness")
UPLOAD_SECONDS = 60.0
CODES = {"os._exit 3": 3, "sys.exit 3": 3, "SystemExit 3": 3, "sys.exit text": 1, "exception": 1}
CODES |= {"SIGKILL": 137, "SIGTERM": 143, "SIGABRT": 134, "interrupt": 130, "SIGINT": 130}
"""Maps each way of ending a program with a failure to the exit code."""
KEPT_VARIABLES = ("PLUTO_", "PATH", "HOME", "NO_PROXY")
"""Prefixes of the variables that remain in a clean environment, because the client needs them."""


class OnlyItems:
    """A mapping whose only method is `items`."""

    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content

    def items(self) -> Any:
        return self._content.items()


class Journal:
    """The journal of one process: a JSON Lines file with one line per event.

    Each line is synced to disk when it is written.
    """

    def __init__(self, folder: str, role: str) -> None:
        os.makedirs(folder, exist_ok=True)
        name = f"{os.uname().nodename}-{os.getpid()}-{time.time_ns()}.jsonl"
        self._file = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._lock = threading.Lock()
        numbers = {name.lower(): os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        self.write("start", role=role, pid=os.getpid(), host=os.uname().nodename, **numbers)

    def write(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, "time": time.time(), **fields}) + "\n"
        with self._lock:
            os.write(self._file, line.encode())
            os.fsync(self._file)


def value_of(kind: str, number: float) -> tuple[Any, list[float | None]]:
    """Return a value of the given kind, and the numbers that it contains.

    An item that is not a number is None.
    """
    import numpy

    plain: dict[str, Any] = {
        "float": lambda: number,
        "int": lambda: int(number * 100),
        "nan": lambda: math.nan,
        "inf": lambda: math.inf,
        "bool": lambda: int(number * 100) % 2 == 0,
        "numpy bool": lambda: numpy.bool_(int(number * 100) % 2 == 0),
        "float32": lambda: numpy.float32(number),
        "float64": lambda: numpy.float64(number),
        "float16": lambda: numpy.float16(number),
        "int64": lambda: numpy.int64(number * 100),
        "decimal": lambda: decimal.Decimal(number),
        "fraction": lambda: fractions.Fraction(number),
        "complex": lambda: complex(number, 0),
        "none": lambda: None,
        "text": lambda: "warm-up",
        "long text": lambda: "x" * 300,
        "number as text": lambda: str(number),
        "bytes": lambda: str(number).encode(),
    }
    if kind in plain:
        value = plain[kind]()
        item = None if isinstance(value, (str, bytes, type(None))) else float(getattr(value, "real", value))
        return value, [item]
    if kind.startswith("array"):
        size = int(kind.split()[1])
        array = numpy.array(number) if size == 0 else numpy.arange(size) + number
        return array, [float(one) for one in numpy.atleast_1d(array)]
    if kind.startswith("tensor"):
        import torch

        size = int(kind.split()[1])
        tensor = torch.tensor(number, dtype=torch.float64)
        tensor = tensor if size == 0 else torch.arange(size, dtype=torch.float64) + number
        return tensor, [float(one) for one in tensor.reshape(-1)]
    if kind == "list of none":
        return [None], [None]
    if kind.startswith(("list", "tuple", "set")):
        name, length = kind.split()
        numbers: list[float | None] = [number + at for at in range(int(length))]
        return {"list": list, "tuple": tuple, "set": set}[name](numbers), numbers
    raise ValueError(f"unknown kind of value: {kind}")


def entries_of(
    spec: list[Any], prefix: str, own: str, number: float
) -> tuple[dict[str, Any], list[list[Any]]]:
    """Return the mapping to pass to one `log` call, and a list [name, kind, number] for each value in it.

    An entry in `spec` is a list [name, kind]. If its value is a mapping, the list is [name, "nested" or
    "items", spec], with the spec of the inner mapping.
    """
    data: dict[str, Any] = {}
    leaves: list[list[Any]] = []
    for at, (name, kind, *inside) in enumerate(spec):
        full_name = f"{prefix}{name}{own}"
        if kind in ("nested", "items"):
            inner, inner_leaves = entries_of(inside[0], f"{full_name}/", "", number + at)
            data[name + own if not prefix else name] = OnlyItems(inner) if kind == "items" else inner
            leaves += [[path, f"in {kind}", each] for path, _, each in inner_leaves]
            continue
        data[name + own if not prefix else name], numbers = value_of(kind, number + at)
        leaves += [[full_name, kind, encoded(each)] for each in numbers]
    return data, leaves


def encoded(number: float | None) -> float | str | None:
    """Return the number in a form that JSON can represent. NaN and infinity become strings."""
    return number if number is None or math.isfinite(number) else str(number)


def wrapped(data: dict[str, Any], container: str) -> Any:
    """Return the data of a `log` call as a mapping of the given type."""
    kinds: dict[str, Any] = {
        "dict": dict,
        "ordered": collections.OrderedDict,
        "user dict": collections.UserDict,
        "proxy": types.MappingProxyType,
        "only items": OnlyItems,
    }
    return kinds[container](data)


def step_of(kind: str, step: int) -> Any:
    """Return `step` as a value of the given kind.

    For the kind "none", return None. The client then chooses the step.
    """
    import numpy

    kinds: dict[str, Any] = {
        "int": lambda: step,
        "numpy": lambda: numpy.int64(step),
        "float": lambda: float(step),
        "array": lambda: numpy.array(step),
        "none": lambda: None,
        "negative": lambda: -1 - step,
    }
    return kinds[kind]()


class Program:
    """One process of a generated program. It opens a run, logs to it, and ends as the program specifies."""

    def __init__(self, spec: dict[str, Any], role: str, folder: str) -> None:
        self.spec, self.role, self.folder = spec, role, folder
        self.journal = Journal(folder, role)
        self.rank = int(os.environ.get("RANK") or os.environ.get("JOB_COMPLETION_INDEX") or "0")
        self.is_victim = self.rank == spec["victim"]
        self.run: Any = None
        self.calls_made = 0

    def open_run(self) -> None:
        """Start the client with a queue that only this process uses."""
        os.environ["PLUTO_DIR"] = f"/tmp/pluto/{self.role.replace(' ', '-')}-{os.getpid()}-{time.time_ns()}"  # noqa: S108
        Path(os.environ["PLUTO_DIR"]).mkdir(parents=True, exist_ok=True)
        import pluto

        self.run = pluto.init(project=os.environ.get("PLUTO_PROJECT", "e2e"), name=f"program-{self.rank}")

    def log(self, call: dict[str, Any], own: str, offset: int = 0) -> None:
        """Write a `log` call to the journal, and then make the call."""
        step = call["step"] + offset
        data, leaves = entries_of(call["data"], "", own, call["number"] + self.rank / 8 + offset / 64)
        step_argument = step_of(call["step_kind"], step)
        step_number = None if step_argument is None else int(step_argument)
        self.journal.write(
            "call", leaves=leaves, step=step_number, step_kind=call["step_kind"], container=call["container"]
        )
        if step_argument is None:
            self.run.log(wrapped(data, call["container"]))
        else:
            self.run.log(wrapped(data, call["container"]), step=step_argument)

    def calls(self, part: list[dict[str, Any]], name: str, offset: int = 0) -> None:
        """Make the `log` calls in `part` in this thread, and again in each additional thread.

        Each thread logs metrics with its own names.
        """
        own = f"/{name}{self.rank}"
        threads = [
            threading.Thread(target=self.one_by_one, args=(part, f"{own}.{at}", offset))
            for at in range(self.spec["threads"])
        ]
        for thread in threads:
            thread.start()
        self.one_by_one(part, "" if self.spec["shared_names"] and name == "rank" else own, offset)
        for thread in threads:
            thread.join()

    def one_by_one(self, part: list[dict[str, Any]], own: str, offset: int) -> None:
        for number, call in enumerate(part):
            self.log(call, own, offset)
            self.calls_made += 1
            os.write(1, f"[rank {self.rank}] step {self.calls_made - 1} logged, call {number}\n".encode())
            time.sleep(self.spec["pause"])

    def close_run(self) -> None:
        """Finish the run, and wait until the client's upload process has ended.

        In a job with several ranks, `finish` does not wait for the upload process.
        """
        if self.spec["patient"]:  # `finish` sends SIGTERM, which kills an uploader that has no handler yet.
            self.wait_until(lambda: all(map(_handles_sigterm, self.uploads())))
        if self.spec["finish"]:
            self.run.finish()
            self.wait_until(lambda: not self.uploads())

    def uploads(self) -> list[Path]:
        """Return the /proc folders of the processes that upload this process's queue.

        If containers share /proc, this function also reads the command lines of other containers' processes.
        It never returns them, because they do not have this queue's folder as an argument.
        """
        own = os.environ["PLUTO_DIR"].encode()
        return [each for each in Path("/proc").iterdir() if each.name.isdigit() and _uploads(each, own)]

    def wait_until(self, is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + UPLOAD_SECONDS
        while not is_over() and time.monotonic() < deadline:
            time.sleep(0.05)

    # -- processes ---------------------------------------------------------------------------------------
    def words(self, role: str) -> list[str]:
        """Return the arguments for a Python interpreter that runs another process of this program."""
        return [os.path.abspath(__file__), sys.argv[1], role, self.folder]

    def child(self, kind: str) -> None:
        """Start a child process that also logs, and wait for it."""
        clean = {name: text for name, text in os.environ.items() if name.startswith(KEPT_VARIABLES)}
        if kind == "fork":
            if (pid := os.fork()) == 0:
                self.forked()
            os.waitpid(pid, 0)
        elif kind in ("multiprocessing fork", "multiprocessing spawn"):
            context: Any = multiprocessing.get_context(kind.split()[1])
            process = context.Process(target=started, args=(self.spec, self.folder))
            process.start()
            process.join()
        elif kind == "pool":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                pool.apply(started, (self.spec, self.folder))
        elif kind == "subprocess":
            subprocess.run([sys.executable, *self.words("child")], check=False)
        elif kind == "clean environment":
            subprocess.run([sys.executable, *self.words("child")], check=False, env=clean)
        elif kind == "env -i":
            variables = [f"{name}={text}" for name, text in clean.items()]
            subprocess.run(["env", "-i", *variables, sys.executable, *self.words("child")], check=False)
        elif kind == "isolated":
            subprocess.run([sys.executable, "-I", *self.words("child")], check=False)
        elif kind == "no site":
            packages = os.pathsep.join(entry for entry in sys.path if entry)
            environment = {**clean, "PYTHONPATH": packages}
            subprocess.run([sys.executable, "-S", *self.words("child")], check=False, env=environment)
        elif kind == "without PYTHONPATH":
            unset = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
            subprocess.run([sys.executable, *self.words("child")], check=False, env=unset)
        elif kind == "helper":
            subprocess.run([sys.executable, "-c", "print('a helper that logs nothing')"], check=False)

    def forked(self) -> None:
        """Log to the parent's run in a forked child. Then exit without running the parent's exit handlers."""
        self.journal, self.role = Journal(self.folder, "child"), "child"
        try:
            for call in self.spec["child_calls"]:
                self.log(call, f"/child{self.rank}")
        finally:
            self.journal.write("end", how="os._exit", code=0)
            os._exit(0)

    # -- ending the process ------------------------------------------------------------------------------
    def end(self, ending: str) -> None:
        """End the process in the way that `ending` specifies.

        If the script should run to its last line, return normally.
        """
        self.journal.write("end", how=ending, code=CODES.get(ending, 0))
        if ending.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, ending))
            time.sleep(10)
            self.journal.write("end", how="return", code=0)  # The signal did not end the process.
        if ending.startswith("os._exit"):
            os._exit(CODES.get(ending, 0))
        if ending == "sys.exit text":
            sys.exit("a text")
        if ending == "sys.exit caught":
            with contextlib.suppress(SystemExit):
                sys.exit(5)
        elif ending == "sys.exit in a thread":
            thread = threading.Thread(target=sys.exit, args=(5,))
            thread.start()
            thread.join()
        elif ending.startswith("SystemExit"):
            raise SystemExit(CODES.get(ending, 0))
        elif ending.startswith("sys.exit"):
            sys.exit(CODES.get(ending, 0))
        if ending == "exception":
            raise RuntimeError("a generated program ends with an exception")
        if ending == "interrupt":
            raise KeyboardInterrupt

    def main(self) -> None:
        """Run the generated program as a rank."""
        spec = self.spec
        if spec["group"]:
            import torch.distributed as dist

            dist.init_process_group("gloo")
            dist.barrier()
        self.open_run()
        calls, half = spec["calls"], len(spec["calls"]) // 2
        ends_early = self.is_victim and spec["early"]
        self.calls(calls[:half], "rank")
        if self.is_victim:
            self.child(spec["child"])
        if ends_early:
            self.end(spec["end"])
            return self.close_run()
        if self.is_victim and spec["second"] == "init":
            self.close_run()
            self.open_run()
            self.calls(calls[:half], "rank", offset=1 if spec["second_differs"] else 0)
        if self.is_victim and spec["second"] == "exec":
            self.close_run()
            self.journal.write("end", how="exec", code=None)
            os.execv(sys.executable, [sys.executable, *self.words("rank again")])  # noqa: S606
        self.calls(calls[half:], "rank")
        self.close_run()
        if self.is_victim and spec["second"] == "late":
            self.calls(calls[:1], "late")
        self.end(spec["end"] if self.is_victim else "return")
        return None

    def as_child(self) -> None:
        """Log from a child process that has its own client."""
        self.open_run()
        for call in self.spec["child_calls"]:
            self.log(call, f"/child{self.rank}")
        self.close_run()
        self.journal.write("end", how="return", code=0)

    def again(self) -> None:
        """Log the second half of the calls, after the rank has replaced its process with exec."""
        self.open_run()
        self.calls(self.spec["calls"][len(self.spec["calls"]) // 2 :], "rank")
        self.close_run()
        self.end(self.spec["end"])


def started(spec: dict[str, Any], folder: str) -> None:
    """Run the program in a `multiprocessing` child process."""
    Program(spec, "child", folder).as_child()


def _uploads(process: Path, own: bytes) -> bool:
    """Return whether a process is running and uploads the queue in the folder `own`."""
    try:
        command = (process / "cmdline").read_bytes()
        state = (process / "stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return b"pluto.sync" in command and own in command and state != "Z"


def _handles_sigterm(process: Path) -> bool:
    """Return whether a process handles SIGTERM. Also return True if the process has ended."""
    try:
        (mask_line,) = (line for line in (process / "status").read_text().splitlines() if "SigCgt" in line)
    except (OSError, ValueError):
        return True
    return bool(int(mask_line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def main(words: list[str]) -> None:
    """Run the process that the arguments specify: PROGRAM [ROLE FOLDER]."""
    spec = json.loads(base64.b64decode(words[0]))
    role = words[1] if len(words) > 1 else "rank"
    folder = words[2] if len(words) > 2 else f"{FOLDER}/{os.environ.get('HARNESS_NONCE', 'none')}"
    program = Program(spec, role, folder)
    {"rank": program.main, "child": program.as_child, "rank again": program.again}[role]()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
