"""Take part in a check from inside a container whose job runs or hangs: `harness netcheck RUN` starts it.

The job says in three places who and where its ranks are, and each later one counts: the container's own
variables (those of its first process), those of the training's first process (a script may have exported
more), and torchrun's options. One line on stdout says what the container uses; one line on stdin says how
to check.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from . import peers
from .diagnose import diagnose
from .variables import MASTER_PORT

PROC = Path("/proc")
_LAUNCHERS = re.compile(r"(^|/)torchrun$|^torch\.distributed\.(run|launch)$")
_OPTIONS = {
    "nnodes": "NNODES",
    "node-rank": "NODE_RANK",
    "nproc-per-node": "NPROC_PER_NODE",
    "master-addr": "MASTER_ADDR",
    "master-port": "MASTER_PORT",
}
"""Options of torchrun, and the variables that say the same."""
_FLAGS = ("standalone", "m", "module", "no-python", "run-path", "virtual-local-rank")
"""Options of torchrun that take no value."""


def main(processes: Sequence[int]) -> int:
    """Say which ports are in use, wait for how to check, check, and print the diagnosis.

    `processes`: those of the container.
    """
    variables = job_variables(sorted(processes))
    port = variables.get("MASTER_PORT", "")
    known = int(port) if port.isdigit() else MASTER_PORT
    print(json.dumps({"ports": ports_in_use(), "master_port": known}), flush=True)
    told = json.loads(sys.stdin.readline())
    given = {**told["defaults"], **variables, "NETCHECK_RUN_ID": told["run"]}
    result = diagnose(
        given,
        nodes=told["nodes"],
        others=[peers.Peer(host) for host in told["peers"]],
        port=told["port"],
        deadline=told["deadline"],
    )
    print(json.dumps(result.as_dict()), flush=True)
    return 0


def job_variables(processes: Sequence[int], proc: Path = PROC) -> dict[str, str]:
    """Return what the job in this container says of itself: variables by name.

    `processes`: those of the container, the first one first.
    """
    found = dict(environment(proc, processes[0])) if processes else {}
    for pid in processes:
        words = command_line(proc, pid)
        if any(_LAUNCHERS.search(word) for word in words[:4]):
            return {**found, **environment(proc, pid), **from_options(words)}
    for pid in processes:
        own = environment(proc, pid)
        if "MASTER_ADDR" in own and "MASTER_ADDR" not in found:
            return {**found, **own}
    return found


def environment(proc: Path, pid: int) -> Mapping[str, str]:
    """Return the variables that a process was started with; none when it is gone or not ours to read."""
    pairs = (pair.partition("=") for pair in _split(proc / str(pid) / "environ"))
    return {name: value for name, mark, value in pairs if mark}


def command_line(proc: Path, pid: int) -> list[str]:
    """Return the words that a process was started with; none when it is gone."""
    return _split(proc / str(pid) / "cmdline")


def from_options(words: Sequence[str]) -> dict[str, str]:
    """Return as variables what torchrun's options say. `--rdzv-endpoint` says where rank 0 is, too.

    The script's own options come after its name, and are not torchrun's.
    """
    options: dict[str, str] = {}
    start = next((at for at, word in enumerate(words) if _LAUNCHERS.search(word)), len(words))
    rest = iter(words[start + 1 :])
    for word in rest:
        if not word.startswith("-"):
            break
        name, mark, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not mark and name not in _FLAGS:
            value = next(rest, "")
        options[name] = value
    host, _, port = options.get("rdzv-endpoint", "").rpartition(":")
    found = {"MASTER_ADDR": host.strip("[]"), "MASTER_PORT": port} if host and port.isdigit() else {}
    return {**found, **{variable: options[name] for name, variable in _OPTIONS.items() if options.get(name)}}


def ports_in_use(proc: Path = PROC) -> list[int]:
    """Return every local TCP port of this network, of listeners and of connections."""
    lines = (line for name in ("tcp", "tcp6") for line in _lines(proc / "net" / name))
    found = (re.match(r"\s*\d+: [0-9A-F]+:([0-9A-F]{4}) ", line) for line in lines)
    return sorted({int(match[1], 16) for match in found if match})


def _split(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode(errors="replace")
    except OSError:
        return []
    return [word for word in text.split("\0") if word]


def _lines(path: Path) -> Iterable[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
