"""Find out from inside the pods why ranks cannot connect to each other.

Run `python -m netcheck` in each pod, or call these functions (docs/networking.md). netcheck needs only the
standard library, so it works in any image that contains Python.
"""

from __future__ import annotations

from .allreduce import self_test
from .compat import (
    diagnose_distributed_issues,
    launch_from_torch,
    setup_k8s_networking,
    validate_k8s_environment,
    wait_for_master_ready,
)
from .diagnose import diagnose
from .diagnosis import Diagnosis
from .finding import CAUSES, STEPS, Finding
from .interfaces import setup_networking
from .peers import Peer
from .variables import Environment, validate_environment
from .waiting import Waited, wait_for_master

__all__ = [
    "CAUSES",
    "STEPS",
    "Diagnosis",
    "Environment",
    "Finding",
    "Peer",
    "Waited",
    "diagnose",
    "diagnose_distributed_issues",
    "launch_from_torch",
    "self_test",
    "setup_k8s_networking",
    "setup_networking",
    "validate_environment",
    "validate_k8s_environment",
    "wait_for_master",
    "wait_for_master_ready",
]
