"""Implement the functions from ColossalAI's Kubernetes guide with netcheck.

The values of COLOSSALAI_DIST_TIMEOUT and COLOSSALAI_MASTER_READY_TIMEOUT are in seconds. With
DEBUG_DISTRIBUTED=1, the diagnosis is printed.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from . import diagnosis_text
from .diagnose import alone, diagnose
from .diagnosis import Diagnosis
from .finding import FAILED, OK
from .interfaces import setup_networking
from .launch import launch, wait_for_rank_0
from .name_resolution import Configuration, Names
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
"""Maps each check in ColossalAI's guide to the netcheck step that performs it."""
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
    """Return the environment variables in VARIABLES that are set.

    Raises RuntimeError with one line per invalid variable. Prints a line to stderr for each variable that
    cannot be checked.
    """
    findings = validate_environment().findings
    if failures := [finding for finding in findings if finding.status == FAILED]:
        raise RuntimeError(
            "\n".join(f"{finding.cause}: {finding.text}. {finding.advice}" for finding in failures)
        )
    for name in (DIST_TIMEOUT, READY_TIMEOUT):
        _seconds(name, 0)
    for finding in findings:
        if finding.status != OK:
            print(f"netcheck: {finding.text}", file=sys.stderr)
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def setup_k8s_networking() -> dict[str, str]:
    """Set the interface for gloo and NCCL unless it is already set, and print the reason.

    Return the new variables. Unlike ColossalAI's function, this one determines the interface from the routes
    and leaves InfiniBand enabled.
    """
    name = os.environ.get("MASTER_ADDR", "")
    lookup = Names(Configuration.read()).look_up(name) if name else None
    try:
        new_variables, reasons = setup_networking(
            lookup.addresses[0] if lookup and lookup.addresses else None
        )
    except OSError as error:
        new_variables, reasons = {}, [f"no route to {name}: {error.strerror}"]
    for line in reasons:
        print(f"netcheck: {line}", file=sys.stderr)
    return new_variables


def wait_for_master_ready(
    master_addr: str | None = None, master_port: int | None = None, timeout: float | None = None
) -> Waited:
    """Wait until the training's port is open on rank 0.

    After a timeout, return a falsy value that contains the cause. `timeout` is in seconds, by default
    COLOSSALAI_MASTER_READY_TIMEOUT.
    """
    seconds = _seconds(READY_TIMEOUT, 600) if timeout is None else timeout
    return wait_for_master(master_addr, master_port, deadline=seconds, greeting=False)


class Issues(dict[str, Any]):
    """The result described in ColossalAI's guide: whether each check passed, and recommendations.

    `diagnosis` is the complete result, with the matrix of all pairs.
    """

    diagnosis: Diagnosis


def diagnose_distributed_issues() -> Issues:
    """Run a diagnosis together with the other ranks. Return the result described in ColossalAI's guide.

    Each entry for a check is True if the check passed, and False if it failed or its result is unknown. The
    entry `netcheck` is True if all checks passed. The entry `recommendations` is empty only in that case.
    """
    environment = validate_environment()
    try:
        result = diagnose(deadline=min(_seconds(READY_TIMEOUT, 600), 60))
    except ValueError:
        result = alone(environment)
    if os.environ.get("DEBUG_DISTRIBUTED", "0") == "1":
        print(diagnosis_text.text(result), file=sys.stderr)
    issues = Issues({name: _has_passed(result, step) for name, step in ENTRIES.items()})
    issues["netcheck"] = result.verdict == OK
    issues["recommendations"] = result.recommendations
    issues.diagnosis = result
    return issues


def launch_from_torch(**options: Any) -> None:
    """Initialize the process group with ColossalAI if it is installed, otherwise with PyTorch.

    Before that, wait up to COLOSSALAI_MASTER_READY_TIMEOUT seconds for rank 0. Without ColossalAI, this
    function also waits for all ranks, checks the process group with an all-reduce, and ignores all options
    except `backend` and `verbose`. Raises RuntimeError with the cause.
    """
    ready, timeout = _seconds(READY_TIMEOUT, 600), _seconds(DIST_TIMEOUT, 1800)
    original = _original_launch()
    if original is None:
        launch(ready, timeout, options.get("backend"), bool(options.get("verbose", True)))
    else:
        wait_for_rank_0(ready)
        original(**options)


def _original_launch() -> Any:
    """Return `colossalai.launch_from_torch`, or None if it does not exist or is this module's function."""
    try:
        import colossalai  # type: ignore[import-not-found]
    except ImportError:
        return None
    function = getattr(colossalai, "launch_from_torch", None)
    return None if function is launch_from_torch else function


def _has_passed(result: Diagnosis, step: str) -> bool:
    statuses = {finding.status for finding in result.findings if finding.step == step}
    return statuses == {OK}


def _seconds(name: str, default: float) -> float:
    value = os.environ.get(name, "")
    try:
        seconds = float(value) if value else float(default)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < MAX_SECONDS:
        raise RuntimeError(f"{name}={value!r} is not a number of seconds from 0 to {MAX_SECONDS:.0f}")
    return seconds
