"""Find the environment variable that explains why a rank could not reach the others at the start.

The error in the log alone does not show this, because it depends on the number of nodes and ranks of the job.
"""

from __future__ import annotations

import re
from dataclasses import replace

from harness.core.proxies import is_loopback
from harness.judge.case import Case
from harness.judge.finding import counted
from harness.judge.logs.error_patterns import Clues

_CONNECTS = re.compile(r"(?:connect to|network address of) \(?(localhost|127(?:\.\d+){3}|::1), (\d{1,5})\)")
"""Pattern for a loopback address and its port in PyTorch's messages about a failed connection."""
_FIRST_RANDOM_PORT = 32768
"""Lowest port that Linux assigns. A library can use such a port for processes of the same pod."""
_KEY = re.compile(r"KeyError: '((?:LOCAL_)?(?:RANK|WORLD_SIZE)|MASTER_ADDR|MASTER_PORT)'$")
"""Pattern for the error of a script that reads a variable which torchrun sets."""
_JOINED = re.compile(r"waiting for clients\. (\d+)/(\d+) clients joined")
"""Pattern for PyTorch's message about the numbers of clients that joined rank 0's store, and for which it
waited."""


def explained(case: Case, index: int, clues: Clues) -> Clues:
    """Return the hints in the log of node `index`, with a variable as the cause if it explains the error."""
    if clues.cause == "address.advertised" and case.expected.num_nodes == 1:
        return replace(clues, cause=None)  # Within one pod, loopback addresses are correct.
    if clues.cause == "variables.missing" and (key := _KEY.search(clues.line)):
        return replace(clues, line=f"{clues.line}: environment variable {key[1]} is expected, but not set")
    if clues.cause == "rendezvous.unreachable" and (host := _own_pod(case, index, clues.line)):
        return replace(clues, cause="variables.master_addr", line=f"{clues.line} {host} is this pod itself")
    if clues.cause == "rendezvous.timeout" and _other_size(case, index, clues.line):
        size = f"{counted(len(case.ranks), 'rank')} on {counted(case.expected.num_nodes, 'node')}"
        return replace(clues, cause="variables.world_size", line=f"{clues.line} The job has {size}")
    return clues


def _own_pod(case: Case, index: int, error: str) -> str:
    """Return the host in a connection error if it is the MASTER_ADDR and the pod itself, otherwise "".

    Returns "" for node 0, because rank 0 may use a loopback address, and if the pod's ranks have another
    MASTER_ADDR according to their process records.
    """
    match = _CONNECTS.search(error)
    if match is None or case.expected.num_nodes < 2 or index == 0 or int(match[2]) >= _FIRST_RANDOM_PORT:
        return ""
    return match[1] if all(map(is_loopback, _recorded(case, index, "MASTER_ADDR"))) else ""


def _other_size(case: Case, index: int, error: str) -> bool:
    """Return whether rank 0's store waited for more clients than the job has ranks or, in torchrun, nodes.

    A store with fewer clients can belong to a group of ranks, such as those of one node. Returns False if the
    job's number of ranks is unknown or not fixed, or if the recorded WORLD_SIZE is correct.
    """
    match, expected = _JOINED.search(error), case.expected
    if match is None or not expected.ranks_given or expected.most_ranks is not None:
        return False
    joined, size = int(match[1]), int(match[2])
    of_torchrun = joined == expected.num_nodes < size != len(case.ranks_of(index))
    is_correct = str(expected.ranks) in _recorded(case, index, "WORLD_SIZE")
    return (size > expected.ranks or of_torchrun) and not is_correct


def _recorded(case: Case, index: int, variable: str) -> set[str]:
    """Return the values of an environment variable in the process records of a pod's ranks."""
    of_pod = case.processes.get(index)
    processes = [process for life in of_pod.lives for process in life.processes] if of_pod else []
    return {start.env.get(variable, "") for process in processes for start in process.starts} - {""}
