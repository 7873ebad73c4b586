"""Classify faults by the ways in which they are injected.

A way is a scope, a target, a kind of change to the job, or a kind of command or signal together with its
timing. `make test` injects at least one fault for each way, each family of causes and each kind of verdict
(tests/unit/faults/test_classification.py).
"""

from __future__ import annotations

from harness.faults.fault_file import Fault, When
from harness.workers.netcheck.finding import CAUSES as NETCHECK

COMMANDS = ("docker", "kubectl", "sh")
CHANGES = ("worker", "replace", "before", "set", "text")


def moment(fault: Fault) -> str:
    """Return when the fault is injected, in the terms used in docs/tests.md."""
    if not isinstance(fault.at, When):
        return "before the run"
    text = "at a stage" if fault.at.stage is not None else "at a log line"
    return f"{text}, the harness frozen" if fault.freeze else text


def ways(fault: Fault) -> set[str]:
    """Return the ways in which a fault is injected.

    If the fault has injection steps, the changes to its job are not counted as ways.
    """
    result = {f"scope {fault.scope}", f"{fault.target}: {'injected' if fault.inject else 'changed'}"}
    for step in fault.inject:
        result |= {f"{name} {moment(fault)}" for name in COMMANDS if getattr(step, name)}
        if step.signal:
            result.add(f"SIG{step.signal} {moment(fault)}")
        if step.sleep:
            result.add("lasts for a time")
    if not fault.inject:
        changes = {"training: another trainer"} if fault.train else set()
        changes |= {f"job: {name}" for name in CHANGES if getattr(fault.job, name)}
        result |= changes or {"environment of the harness"}
    return result


def family(fault: Fault) -> str | None:
    """Return the family of the expected cause. None means that a PASS or a refusal is expected.

    All causes that netcheck reports explain why ranks cannot connect to each other, so they belong to the
    family `rendezvous`. All causes that acceptance tests report form one family.
    """
    if fault.target == "acceptance":
        return "acceptance"
    cause = fault.expect.cause if fault.expect else None
    name = cause.partition(".")[0] if cause else None
    return "rendezvous" if cause in NETCHECK or name in {"dns", "service"} else name


def outcome(fault: Fault) -> str:
    """Return the expected result: PASS, FAIL, UNKNOWN, "refused" or "cannot be injected"."""
    if fault.expect is None:
        return "cannot be injected"
    return fault.expect.verdict or "refused"
