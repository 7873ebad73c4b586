"""What the pods of an acceptance print: each check as it is made, then the report that has them all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import bundles

from harness.evidence.schema.acceptance import (
    AcceptanceCheck,
    AcceptanceGpu,
    AcceptanceRecord,
    AcceptanceReport,
    PairRow,
    Verdict,
)
from harness.judge.acceptance.pod_records import Member
from harness.judge.acceptance.results import worst

FIGURES = {
    "compute.gemm.bf16": (780.0, 595.5, "TFLOP/s"),
    "compute.gemm.fp16": (760.0, 494.5, "TFLOP/s"),
    "compute.gemm.tf32": (420.0, 247.2, "TFLOP/s"),
    "compute.gemm.fp32": (51.0, 33.5, "TFLOP/s"),
    "compute.gemm.fp8": (1400.0, 1052.0, "TFLOP/s"),
    "memory.copy": (2600.0, 1905.0, "GB/s"),
    "memory.triad": (2650.0, 1905.0, "GB/s"),
    "copy.h2d": (55.0, 48.0, "GB/s"),
    "copy.d2h": (54.0, 48.0, "GB/s"),
    "copy.peer": (396.0, 335.0, "GB/s"),
}
PROOFS = ("env.ecc.sram_uncorrected", "env.pcie", "env.throttle", "env.mig", "compute.gemm.bf16.correct")
OF_NODE = ("env.driver", "env.shm", "env.clock", "compute.equal", "train.learns", "train.reproducible")
SOURCE = "stas00 compute/accelerator: best shape"
VERSIONS = {"torch": "2.9.1", "cuda": "13.0", "nccl": "2.28.3", "driver": "580.95"}


@dataclass(frozen=True)
class Node:
    """One node and what its tests gave. `scale`: share of a healthy figure. `bad`: verdict by check."""

    name: str
    gpus: int = 2
    scale: float = 1.0
    bad: dict[tuple[str, int | None], Verdict] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=lambda: dict(VERSIONS))
    model: str = "NVIDIA H100 80GB HBM3"
    lacks: tuple[str, ...] = ()
    host: str = ""
    """Its pod's name, where that is not made from the node's."""
    few: bool = False
    """Two figures and two proofs instead of all."""

    @property
    def pod(self) -> str:
        return self.host or f"accept-{self.name}"

    def checks(self) -> list[AcceptanceCheck]:
        """Return its checks, in the order in which they are made."""
        figures = list(FIGURES)[:2] if self.few else list(FIGURES)
        proofs = PROOFS[:1] if self.few else PROOFS
        checks = [self._proof(id_, None) for id_ in (OF_NODE[:1] if self.few else OF_NODE)]
        for gpu in range(self.gpus):
            checks += [self._proof(id_, gpu) for id_ in proofs]
            checks += [self._figure(id_, gpu) for id_ in figures]
        return [check for check in checks if check.id not in self.lacks]

    def _proof(self, id_: str, gpu: int | None) -> AcceptanceCheck:
        verdict = self.bad.get((id_, gpu), "PASS")
        cause = "compute.wrong" if verdict in ("FAIL", "WARN") else None
        tag = "ENV" if id_.startswith("env") else "COMPUTE"
        text = f"{id_} is as it should be" if verdict == "PASS" else f"{id_} is {verdict}"
        return AcceptanceCheck(
            id=id_, tag=tag, verdict=verdict, text=text, cause=cause, index=gpu, gpu=self._uuid(gpu)
        )

    def _figure(self, id_: str, gpu: int) -> AcceptanceCheck:
        healthy, limit, unit = FIGURES[id_]
        measured = healthy * self.scale
        verdict: Verdict = self.bad.get((id_, gpu), "FAIL" if measured < limit else "PASS")
        return AcceptanceCheck(
            id=id_,
            tag="COMPUTE",
            verdict=verdict,
            text=f"{measured:.4g} {unit}; limit >= {limit:.4g} {unit}",
            cause=None if verdict == "PASS" else "compute.slow",
            index=gpu,
            gpu=self._uuid(gpu),
            measured=measured,
            unit=unit,
            expected=healthy,
            limit=limit,
            limit_kind="measured",
            limit_source=SOURCE,
        )

    def _uuid(self, gpu: int | None) -> str | None:
        return None if gpu is None else f"GPU-{self.name}-{gpu}"

    def report(self) -> AcceptanceReport:
        """Return its report."""
        checks = self.checks()
        return AcceptanceReport(
            kind="node",
            node=self.name,
            pod=self.pod,
            device="cuda",
            mode="quick",
            started="2026-11-23T03:00:00Z",
            seconds=61.0,
            versions=self.versions,
            gpus=[
                AcceptanceGpu(index=gpu, uuid=f"GPU-{self.name}-{gpu}", name=self.model, memory=85 * 10**9)
                for gpu in range(self.gpus)
            ],
            checks=checks,
            verdict=worst(check.verdict for check in checks),
        )

    def said(self) -> list[AcceptanceRecord]:
        """Return what its pod printed, one start of its container."""
        return printed(self.pod, self.report())


def printed(pod: str, report: AcceptanceReport) -> list[AcceptanceRecord]:
    """Return the records of one report: each check, then the report."""
    at = "2026-11-23T03:01:00Z"
    alone = [AcceptanceRecord(at=at, pod=pod, check=check) for check in report.checks]
    return [*alone, AcceptanceRecord(at=at, pod=pod, report=report)]


def together(
    nodes: Iterable[Node], *checks: AcceptanceCheck, pairs: Iterable[PairRow] = ()
) -> AcceptanceReport:
    """Return what the first node's pod reports of the tests of all nodes together."""
    there = list(nodes)
    gpus = [(node.name, gpu) for node in there for gpu in range(node.gpus)]
    return AcceptanceReport(
        kind="ddp",
        node=there[0].name,
        pod=there[0].pod,
        device="cuda",
        mode="quick",
        started="2026-11-23T03:02:00Z",
        seconds=31.0,
        versions=VERSIONS,
        checks=list(checks),
        verdict=worst(check.verdict for check in checks),
        nodes=len(there),
        ranks=len(gpus),
        hosts={rank: name for rank, (name, _) in enumerate(gpus)},
        pairs=list(pairs),
    )


def collective(id_: str, verdict: Verdict = "PASS", *ranks: int) -> AcceptanceCheck:
    """Return a check of a collective."""
    cause = "collective.wrong" if verdict in ("FAIL", "WARN") else None
    text = f"{id_} of all ranks" if not ranks else f"{id_}: ranks {list(ranks)}"
    return AcceptanceCheck(id=id_, tag="DDP", verdict=verdict, text=text, cause=cause, ranks=list(ranks))


def healthy(count: int, gpus: int = 2, few: bool = False) -> list[Node]:
    """Return nodes on which everything passes."""
    return [Node(f"gpu-{number:02}", gpus, few=few) for number in range(count)]


def changed(nodes: list[Node], number: int, **changes: object) -> list[Node]:
    """Return the nodes, one of them changed."""
    return [replace(node, **changes) if at == number else node for at, node in enumerate(nodes)]  # type: ignore[arg-type]


def expected(nodes: Iterable[Node], world: bool = False) -> list[Member]:
    """Return what the cluster knows of them. `world`: all their ranks test together."""
    members, first = [], 0
    for node in nodes:
        members.append(
            Member(node.name, node.pod, 0, tuple(range(first, first + node.gpus)) if world else ())
        )
        first += node.gpus
    return members


def records(nodes: Iterable[Node]) -> list[AcceptanceRecord]:
    """Return what all of them said."""
    return [record for node in nodes for record in node.said()]


def job(nodes: list[Node], *checks: AcceptanceCheck, pairs: Iterable[PairRow] = ()) -> bundles.Job:
    """Return a launch whose pods tested these nodes, each by itself and all together.

    The nodes get the names of the launch's. A node whose `lacks` has "*" did not answer.
    """
    made = bundles.healthy(len(nodes), max(node.gpus for node in nodes), steps=0)
    made.truth = {}
    named = [
        replace(node, name=f"e2e-worker{index + 1}", host=made.pod_name(index))
        for index, node in enumerate(nodes)
    ]
    there = [node for node in named if "*" not in node.lacks]
    report = together(named, *(checks or [collective("ddp.all_reduce.correct")]), pairs=pairs)
    made.accepted = [*records(there), *printed(there[0].pod, report)]
    return made


def circle(nodes: int, slow: Iterable[tuple[int, int]] = ()) -> list[PairRow]:
    """Return all pairs, these of them slow."""
    bad = {frozenset(pair) for pair in slow}
    return [
        PairRow(a=a, b=b, busbw=12.0, verdict="FAIL", text="slower than half of the median")
        if frozenset((a, b)) in bad
        else PairRow(a=a, b=b, busbw=44.0 + (7 * a + 3 * b) % 5, verdict="PASS")
        for a in range(nodes)
        for b in range(a + 1, nodes)
    ]
