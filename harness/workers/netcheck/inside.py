"""Run a check in a container whose job is running or hangs. `harness netcheck RUN` uses this module.

The ranks and their addresses come from three sources, of which later ones take precedence: the environment of
the container's first process, the environment of the training's first process (a script may have exported
more variables), and torchrun's options.

This module prints one line with the ports that are in use. It then reads the check's parameters from one line
of stdin.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import peers
from .diagnose import diagnose
from .torchrun_options import PROC, command_line, environment, from_options, is_torchrun
from .variables import MASTER_PORT


def main(processes: Sequence[int]) -> int:
    """Print the ports that are in use, read the parameters, run the check, and print the diagnosis. Return 0.

    `processes` are the pids of the container's processes.
    """
    variables = job_variables(sorted(processes))
    port = variables.get("MASTER_PORT", "")
    master_port = int(port) if port.isdigit() else MASTER_PORT
    print(json.dumps({"ports": ports_in_use(), "master_port": master_port}), flush=True)
    request = json.loads(sys.stdin.readline())
    environ = {**request["defaults"], **variables, "NETCHECK_RUN_ID": request["run"]}
    result = diagnose(
        environ,
        nodes=request["nodes"],
        others=[peers.Peer(host) for host in request["peers"]],
        port=request["port"],
        deadline=request["deadline"],
    )
    print(json.dumps(result.as_dict()), flush=True)
    return 0


def job_variables(processes: Sequence[int], proc: Path = PROC) -> dict[str, str]:
    """Return the environment variables that define the ranks and addresses of the job in this container.

    `processes` are the pids of the container's processes in ascending order.
    """
    variables = dict(environment(proc, processes[0])) if processes else {}
    for pid in processes:
        words = command_line(proc, pid)
        if is_torchrun(words):
            return {**variables, **environment(proc, pid), **from_options(words)}
    for pid in processes:
        own = environment(proc, pid)
        if "MASTER_ADDR" in own and "MASTER_ADDR" not in variables:
            return {**variables, **own}
    return variables


def ports_in_use(proc: Path = PROC) -> list[int]:
    """Return all local TCP ports that are used by listeners or connections in this network namespace."""
    lines = (line for name in ("tcp", "tcp6") for line in _lines(proc / "net" / name))
    matches = (re.match(r"\s*\d+: [0-9A-F]+:([0-9A-F]{4}) ", line) for line in lines)
    return sorted({int(match[1], 16) for match in matches if match})


def _lines(path: Path) -> Iterable[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
