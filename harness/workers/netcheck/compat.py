"""The names of ColossalAI's guide for Kubernetes, on netcheck's functions.

COLOSSALAI_DIST_TIMEOUT and COLOSSALAI_MASTER_READY_TIMEOUT are seconds. DEBUG_DISTRIBUTED=1 prints the
diagnosis.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from . import show
from .diagnose import alone, diagnose
from .diagnosis import Diagnosis
from .finding import FAILED, OK
from .interfaces import setup_networking
from .launch import launch, wait_for_rank_0
from .names import Configuration, Names
from .variables import validate_environment
from .waiting import Waited, wait_for_master

DIST_TIMEOUT, READY_TIMEOUT = "COLOSSALAI_DIST_TIMEOUT", "COLOSSALAI_MASTER_READY_TIMEOUT"
MAX_SECONDS = 1e6
ENTRIES = {
    "environment_variables": "variables",
    "network_connectivity": "interface",
    "dns_resolution": "dns",
    "port_availability": "tcp",
}
"""The guide's names of the steps that it checks."""
VARIABLES = (
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "RDZV_ID", "JOB_ID"),
    *(
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "NCCL_DEBUG",
        "NCCL_IB_DISABLE",
        DIST_TIMEOUT,
        READY_TIMEOUT,
    ),
)


def validate_k8s_environment() -> dict[str, str]:
    """Return the variables of the job that are set. Raises RuntimeError that says what is wrong.

    What cannot be checked, because nothing says it, is a line on stderr.
    """
    findings = validate_environment().findings
    if wrong := [finding for finding in findings if finding.status == FAILED]:
        raise RuntimeError(
            "\n".join(f"{finding.cause}: {finding.text}. {finding.advice}" for finding in wrong)
        )
    for name in (DIST_TIMEOUT, READY_TIMEOUT):
        _seconds(name, 0)
    for finding in findings:
        if finding.status != OK:
            print(f"netcheck: {finding.text}", file=sys.stderr)
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def setup_k8s_networking() -> dict[str, str]:
    """Set the interface for gloo and NCCL where none is set, and print what and why. Returns what was set.

    Unlike the original it looks the interface up, and leaves InfiniBand on.
    """
    name = os.environ.get("MASTER_ADDR", "")
    found = Names(Configuration.read()).look_up(name) if name else None
    try:
        done, said = setup_networking(found.addresses[0] if found and found.addresses else None)
    except OSError as error:
        done, said = {}, [f"no route to {name}: {error.strerror}"]
    for line in said:
        print(f"netcheck: {line}", file=sys.stderr)
    return done


def wait_for_master_ready(
    master_addr: str | None = None, master_port: int | None = None, timeout: float | None = None
) -> Waited:
    """Wait until the port of the training is open on rank 0. The result is true when it is, and says why not.

    `timeout`: seconds, COLOSSALAI_MASTER_READY_TIMEOUT unless given.
    """
    seconds = _seconds(READY_TIMEOUT, 600) if timeout is None else timeout
    return wait_for_master(master_addr, master_port, deadline=seconds, greeting=False)


class Issues(dict[str, Any]):
    """What the guide's table prints: True for each check that is proved, and the recommendations.

    `diagnosis` is the whole, with the matrix of all pairs.
    """

    diagnosis: Diagnosis


def diagnose_distributed_issues() -> Issues:
    """Diagnose together with the other ranks, and return what the guide's function returned.

    An entry is True when it is proved, and False when it failed or is unknown. `netcheck` is True when all is
    proved. Then there are no recommendations, and else there is one at least.
    """
    known = validate_environment()
    try:
        result = diagnose(deadline=min(_seconds(READY_TIMEOUT, 600), 60))
    except ValueError:
        result = alone(known)
    if os.environ.get("DEBUG_DISTRIBUTED", "0") == "1":
        print(show.text(result), file=sys.stderr)
    found = Issues({name: _proved(result, step) for name, step in ENTRIES.items()})
    found["netcheck"] = result.verdict == OK
    found["recommendations"] = result.recommendations
    found.diagnosis = result
    return found


def launch_from_torch(**options: Any) -> None:
    """Start the process group: as ColossalAI does, where it is installed, else by PyTorch alone.

    Rank 0 is waited for first, for COLOSSALAI_MASTER_READY_TIMEOUT seconds. Without ColossalAI all ranks are,
    `backend` and `verbose` count, and an all-reduce proves the process group. Raises RuntimeError that says
    what is wrong.
    """
    ready, timeout = _seconds(READY_TIMEOUT, 600), _seconds(DIST_TIMEOUT, 1800)
    theirs = _theirs()
    if theirs is None:
        launch(ready, timeout, options.get("backend"), bool(options.get("verbose", True)))
    else:
        wait_for_rank_0(ready)
        theirs(**options)


def _theirs() -> Any:
    """Return ColossalAI's own function, or None: its package may be a folder with this file alone."""
    try:
        import colossalai  # type: ignore[import-not-found]
    except ImportError:
        return None
    found = getattr(colossalai, "launch_from_torch", None)
    return None if found is launch_from_torch else found


def _proved(result: Diagnosis, step: str) -> bool:
    statuses = {finding.status for finding in result.findings if finding.step == step}
    return statuses == {OK}


def _seconds(name: str, default: float) -> float:
    given = os.environ.get(name, "")
    try:
        seconds = float(given) if given else float(default)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < MAX_SECONDS:
        raise RuntimeError(f"{name}={given!r} is no number of seconds from 0 to {MAX_SECONDS:.0f}")
    return seconds
