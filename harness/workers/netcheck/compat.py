"""The names of ColossalAI's guide for Kubernetes, on netcheck's functions.

COLOSSALAI_DIST_TIMEOUT and COLOSSALAI_MASTER_READY_TIMEOUT are seconds. DEBUG_DISTRIBUTED=1 prints the
diagnosis.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from . import show
from .allreduce import self_test
from .diagnose import diagnose
from .diagnosis import Diagnosis
from .finding import FAILED, OK
from .interfaces import setup_networking
from .names import Configuration, Names
from .variables import validate_environment
from .waiting import Waited, wait_for_master

DIST_TIMEOUT, READY_TIMEOUT = "COLOSSALAI_DIST_TIMEOUT", "COLOSSALAI_MASTER_READY_TIMEOUT"
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
    """Return the variables of the job that are set. Raises RuntimeError that says what is wrong."""
    wrong = [finding for finding in validate_environment().findings if finding.status == FAILED]
    if wrong:
        raise RuntimeError(
            "\n".join(f"{finding.cause}: {finding.text}. {finding.advice}" for finding in wrong)
        )
    for name in (DIST_TIMEOUT, READY_TIMEOUT):
        _seconds(name, 0)
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


def diagnose_distributed_issues() -> dict[str, Any]:
    """Diagnose, and return what the original returned, its recommendations, and the whole as `netcheck`.

    An entry is true when it is proved, and false when it failed or is unknown.
    """
    result = diagnose(deadline=min(_seconds(READY_TIMEOUT, 600), 60))
    if os.environ.get("DEBUG_DISTRIBUTED", "0") == "1":
        print(show.text(result), file=sys.stderr)
    return {
        "environment_variables": _proved(result, "variables"),
        "network_connectivity": _proved(result, "interface"),
        "dns_resolution": _proved(result, "dns"),
        "port_availability": _proved(result, "tcp"),
        "recommendations": result.recommendations,
        "netcheck": result.as_dict(),
    }


def launch_from_torch(**options: Any) -> None:
    """Start the process group as ColossalAI does, where it is installed; else check one by an all-reduce.

    Raises RuntimeError when that fails or proves nothing.
    """
    try:
        import colossalai  # type: ignore[import-not-found]
    except ImportError:
        done = self_test(_seconds(DIST_TIMEOUT, 1800))
        if done.status != OK:
            raise RuntimeError(f"{done.cause or 'unknown'}: {done.text}") from None
    else:
        colossalai.launch_from_torch(**options)


def _proved(result: Diagnosis, step: str) -> bool:
    statuses = {finding.status for finding in result.findings if finding.step == step}
    return statuses == {OK}


def _seconds(name: str, default: float) -> float:
    given = os.environ.get(name, "")
    try:
        return float(given) if given else float(default)
    except ValueError:
        raise RuntimeError(f"{name}={given!r} is no number of seconds") from None
