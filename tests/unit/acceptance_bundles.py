"""Synthetic bundles of launches whose pods ran acceptance tests."""

from __future__ import annotations

from typing import Any

import bundles
from bundles import at

from harness.evidence.schema.acceptance import AcceptanceCheck, AcceptanceRecord, AcceptanceReport

NODES = 3
CHECKS = {
    "env.shm": "ENV",
    "compute.gemm.fp32": "COMPUTE",
    "train.learns": "TRAIN",
    "ddp.all_reduce.busbw": "DDP",
}


def check(id_: str, **more: Any) -> AcceptanceCheck:
    """Return a check that passed, with a figure above its limit."""
    given = {"verdict": "PASS", "text": f"the text of {id_}", "measured": 9.0, "limit": 3.0, **more}
    return AcceptanceCheck(id=id_, tag=CHECKS[id_], **given)  # type: ignore[arg-type]


def checks(**changed: dict[str, Any]) -> list[AcceptanceCheck]:
    """Return all checks; `changed` says of some, dots as two underscores, what is different."""
    return [check(id_, **changed.get(id_.replace(".", "__"), {})) for id_ in CHECKS]


def report(node: str, checks: list[AcceptanceCheck], **more: Any) -> AcceptanceReport:
    return AcceptanceReport(
        **{
            "kind": "node",
            "node": node,
            "pod": "its-own-word",
            "device": "cpu",
            "mode": "quick",
            "started": at(5),
            "seconds": 3.0,
            "checks": checks,
            "verdict": "PASS",
            **more,
        }
    )


def nodes(by_node: dict[int, list[AcceptanceCheck] | None], device: str = "cpu", **more: Any) -> bundles.Job:
    """Return a launch on three nodes that passed but for what their tests said. None: no report came."""
    job = bundles.healthy(NODES)
    assert job.manifest.launch is not None
    assert job.manifest.expected is not None
    launch = job.manifest.launch.model_copy(update={"acceptance": "nodes"})
    names = [node_of(index) for index in range(NODES)]
    expected = job.manifest.expected.model_copy(update={"node_names": names, "device": device})
    job.manifest = job.manifest.model_copy(update={"launch": launch, "expected": expected})
    for index, of in by_node.items():
        pod = job.pod_name(index)
        job.accepted += [AcceptanceRecord(at=at(7, True), pod=pod, check=one) for one in of or checks()[:2]]
        if of is not None:
            whole = report(node_of(index), of, **more)
            job.accepted.append(AcceptanceRecord(at=at(8, True), pod=pod, report=whole))
    return job


def node_of(index: int) -> str:
    """Return the Kubernetes node of a pod of bundles.healthy."""
    return f"e2e-worker{index + 1}"
