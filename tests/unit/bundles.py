"""Synthetic bundles as a real launch writes them: objects of JobSet 0.12, Kueue 0.19 and Kubernetes 1.36.

`healthy()` gives a Job whose parts a test may change before `write`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from harness.evidence import Bundle, BundleWriter, Redactor
from harness.evidence.schema.acceptance import AcceptanceRecord
from harness.evidence.schema.bundle import Expected, Launch, Manifest, Observation, RendezvousSnapshot, Stage
from harness.evidence.schema.ground_truth import TruthBlock, TruthEnd, TruthLine, TruthRow
from harness.evidence.schema.netcheck import NetcheckRecord
from harness.evidence.schema.processes import ProcessLine
from harness.evidence.schema.tracker import Attachment, Point, RunWriter, TrackerRun, TrackerSummary
from harness.workers.ground_truth.truth_frames import digest

NONCE = "n0nce7f3a"
START = datetime(2026, 11, 21, 5, 0, 0, tzinfo=UTC)
JOBSET, UID, NAMESPACE, QUEUE = "multinode-1a2b", "js-uid", "launch-n0nce", "user-queue"
CONTAINER = "konduktor-container"
RUN_ID = "e2e-n0nce7f3a"


def at(seconds: float, fraction: bool = False) -> str:
    moment = START + timedelta(seconds=seconds)
    return moment.isoformat(timespec="microseconds" if fraction else "seconds").replace("+00:00", "Z")


def cond(kind: str, status: str, reason: str, message: str = "", when: float = 3) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": at(when),
    }


@dataclass
class Job:
    """The parts of a bundle. Everything is a plain list or dictionary to be changed."""

    nodes: int = 2
    per_node: int = 1
    objects: list[tuple[str, Observation]] = field(default_factory=list)
    truth: dict[int, list[TruthLine]] = field(default_factory=dict)
    outside: dict[int, list[TruthLine]] = field(default_factory=dict)
    """What was recorded around the client of a rank that also records by itself."""
    logs: dict[str, list[str]] = field(default_factory=dict)
    runs: list[TrackerRun] = field(default_factory=list)
    attachments: list[Attachment] | None = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    writers: list[RunWriter] = field(default_factory=list)
    manifest: Manifest = field(default_factory=lambda: Manifest(nonce=NONCE, started_at=at(-60)))
    summary: dict[str, Any] = field(default_factory=dict)
    inspections: Sequence[RendezvousSnapshot] = ()
    netchecks: Sequence[NetcheckRecord] = ()
    accepted: list[AcceptanceRecord] = field(default_factory=list)
    processes: list[ProcessLine] = field(default_factory=list)
    version: int = 100

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    def pod_name(self, index: int) -> str:
        return f"{JOBSET}-workers-0-{index}-abcd{index}"

    def see(self, kind: str, when: float, obj: dict[str, Any], type_: str = "MODIFIED") -> None:
        self.version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self.version)}
        copy = json.loads(json.dumps({**obj, "metadata": metadata}))
        self.objects.append((kind, Observation(received_at=at(when, True), type=type_, object=copy)))

    def drop(self, kind: str, keep: int = 0) -> None:
        """Forget all but the first `keep` states of a kind."""
        states = [pair for pair in self.objects if pair[0] == kind]
        gone = states[keep:]
        self.objects = [pair for pair in self.objects if not any(pair is g for g in gone)]

    def drop_pod(self, index: int, after: float = -1) -> None:
        name = self.pod_name(index)
        self.objects = [
            (kind, seen)
            for kind, seen in self.objects
            if kind != "pod" or seen.object["metadata"]["name"] != name or seen.received_at < at(after, True)
        ]

    # objects -------------------------------------------------------------------------------------------

    def jobset(self, when: float, terminal: str | None = None, suspend: bool = False, **more: Any) -> None:
        conditions = [
            cond("Suspended", str(suspend), "SuspendedJobs" if suspend else "ResumeJobs", when=when)
        ]
        if terminal:
            reason = "AllJobsCompleted" if terminal == "Completed" else "FailedJobs"
            conditions.append(cond(terminal, "True", reason, f"jobset {terminal.lower()}", when))
        status: dict[str, Any] = {"conditions": conditions, "restarts": 0}
        if terminal:
            status["terminalState"] = terminal
        labels = {"kueue.x-k8s.io/queue-name": QUEUE}
        metadata = {"name": JOBSET, "namespace": NAMESPACE, "uid": UID, "labels": labels}
        spec = {"suspend": suspend, "replicatedJobs": [{"name": "workers", "replicas": 1}]}
        self.see(
            "jobset", when, {"kind": "JobSet", "metadata": metadata, "spec": spec, "status": status}, **more
        )

    def workload(
        self, when: float, conditions: list[dict[str, Any]], active: bool = True, **spec: object
    ) -> None:
        owner = {"kind": "JobSet", "name": JOBSET, "uid": UID}
        metadata = {"name": f"jobset-{JOBSET}-a1b2c", "namespace": NAMESPACE, "uid": "wl-uid"}
        metadata["ownerReferences"] = [owner]  # type: ignore[assignment]
        spec |= {"queueName": QUEUE, "active": active}
        obj = {"kind": "Workload", "metadata": metadata, "spec": spec, "status": {"conditions": conditions}}
        self.see("workload", when, obj)

    def pod(
        self, index: int, when: float, phase: str, state: dict[str, Any] | None = None, **more: Any
    ) -> None:
        metadata = {
            "name": self.pod_name(index),
            "namespace": NAMESPACE,
            "uid": f"pod-uid-{index}",
            "creationTimestamp": at(4),
            "labels": {
                "jobset.sigs.k8s.io/jobset-name": JOBSET,
                "jobset.sigs.k8s.io/restart-attempt": "0",
                "batch.kubernetes.io/job-completion-index": str(index),
            },
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
            **more.get("metadata", {}),
        }
        spec = {"hostname": f"{JOBSET}-workers-0-{index}", "subdomain": JOBSET}
        if more.get("node", True):
            spec["nodeName"] = f"e2e-worker{index + 1}"
        status: dict[str, Any] = {"phase": phase, "conditions": more.get("conditions", [])}
        if state is not None:
            image = "multinode:0a1b"
            status["containerStatuses"] = [{"name": CONTAINER, "image": image, "state": state}]
        obj = {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
        self.see("pod", when, obj, more.get("type_", "MODIFIED"))

    def message(self, index: int, exit_code: int = 0) -> str:
        digests = {}
        for rank in range(index * self.per_node, (index + 1) * self.per_node):
            for line in self.truth.get(rank, []):
                if isinstance(line, TruthEnd):
                    digests[str(rank)] = {"count": line.count, "sha256": line.sha256}
        return json.dumps({"exit": exit_code, "value": {"truth": digests}})

    def ended(self, index: int, when: float, code: int = 0, **more: Any) -> None:
        terminated = {
            "exitCode": code,
            "reason": more.pop("reason", "Completed" if code == 0 else "Error"),
            "startedAt": at(more.pop("started", 5)),
            "finishedAt": at(when),
            "message": more.pop("message", self.message(index, code)),
        }
        state = {"terminated": terminated}
        self.pod(index, when + 0.5, "Succeeded" if code == 0 else "Failed", state, **more)

    # what the ranks say and the tracker has -----------------------------------------------------------

    def retell(self, rank: int, rows: list[TruthRow], blocks: list[TruthBlock] | None = None) -> None:
        """Make these rows the rank's whole truth, its end fitting."""
        blocks = blocks or []
        root = digest((row.metric, row.step, row.value) for row in rows)
        count = len(rows) + sum(block.count for block in blocks)
        self.truth[rank] = [*rows, *blocks, TruthEnd(count=count, sha256=root)]

    def rows(self, rank: int) -> list[TruthRow]:
        return [line for line in self.truth[rank] if isinstance(line, TruthRow)]

    def refresh(self) -> None:
        """Change the recorder's termination messages to fit the truth. Leave messages that a test gave."""
        for kind, seen in self.objects:
            if kind == "pod":
                index = int(
                    seen.object["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
                )
                for status in seen.object["status"].get("containerStatuses", []):
                    if "terminated" in status["state"]:
                        ended = status["state"]["terminated"]
                        if '"truth"' in ended.get("message", ""):
                            ended["message"] = self.message(index, ended["exitCode"])

    def write(self, path: Path) -> Bundle:
        path.mkdir(parents=True, exist_ok=True)
        writer = BundleWriter(path, NONCE, Redactor())
        writer.manifest(self.manifest)
        for kind, seen in self.objects:
            writer.observe(kind, seen)
        for inspection in self.inspections:
            writer.inspection(inspection)
        for record in self.netchecks:
            writer.netcheck(record)
        for process in self.processes:
            writer.process(process)
        for accepted in self.accepted:
            writer.acceptance(accepted)
        for pod, lines in self.logs.items():
            with writer.log_file(pod, CONTAINER) as log:
                for line in lines:
                    log.write(line + "\n")
        for rank, truth in self.truth.items():
            for one in truth:
                writer.truth(rank, one)
        for rank, truth in self.outside.items():
            for one in truth:
                writer.truth(rank, one, ".outside")
        for run in self.runs:
            writer.tracker("runs", run)
        for attachment in self.attachments or []:
            writer.tracker("attachments", attachment)
        for point in self.points:
            writer.tracker("points", point)
        for one_writer in self.writers:
            writer.tracker("writers", one_writer)
        summary = {
            "source": "embedded",
            "fetched_at": at(45, True),
            "runs": len(self.runs),
            "attachments": None if self.attachments is None else len(self.attachments),
            "points": len(self.points),
            "writers": len(self.writers) if self.writers else None,
            **self.summary,
        }
        writer.tracker_summary(TrackerSummary.model_validate(summary))
        writer.close()
        return Bundle.open(path)


def point(job: Job, rank: int, row: TruthRow, run_id: int = 1, **more: Any) -> Point:
    values = {
        "run_id": run_id,
        "metric": row.metric,
        "step": row.step,
        "value": row.value,
        "time_ms": row.time_ms + 1,
        "received_at": at(20, True),
        "sender": f"node{rank // job.per_node}",
        **more,
    }
    return Point.model_validate(values)


def healthy(nodes: int = 2, per_node: int = 1, steps: int = 6) -> Job:
    """A job that completed and is one run with every point."""
    job = Job(nodes=nodes, per_node=per_node)
    ranks = job.ranks
    for rank in range(ranks):
        rows = [
            TruthRow(metric=metric, step=step, value=value, time_ms=1_795_237_210_000 + step)
            for step in range(steps)
            for metric, value in (
                (f"loss/node{rank}", 1 / (step + 1) + rank),
                (f"grad/node{rank}", float("nan")),
            )
        ]
        job.retell(rank, rows)
    job.jobset(1, suspend=True, type_="ADDED")
    job.workload(1.5, [cond("QuotaReserved", "False", "Pending", "waiting", 1)])
    admitted = [cond("QuotaReserved", "True", "QuotaReserved"), cond("Admitted", "True", "Admitted")]
    job.workload(3, admitted)
    job.jobset(3.5)
    for index in range(nodes):
        job.pod(index, 4 + index / 10, "Pending", node=False, type_="ADDED")
        waiting = {"waiting": {"reason": "ContainerCreating"}}
        job.pod(index, 4.5, "Pending", waiting)
        job.pod(index, 5 + index / 10, "Running", {"running": {"startedAt": at(5)}})
        lines = ["rendezvous done", *(f"step {step}" for step in range(steps)), "all-reduce proven, finished"]
        job.logs[job.pod_name(index)] = [f"{at(6 + n, True)} {line}" for n, line in enumerate(lines)]
    for index in range(nodes):
        job.ended(index, 30)
    job.jobset(32, "Completed")
    job.workload(32.5, [*admitted, cond("Finished", "True", "Succeeded", "jobset completed", 32)])

    job.runs = [
        TrackerRun(
            run_id=1,
            external_id=RUN_ID,
            project="e2e",
            status="COMPLETED",
            created_at=at(8, True),
            display_id="UTE-1",
        )
    ]
    job.attachments = [
        Attachment(
            run_id=1,
            at=at(8, True),
            resumed=rank > 0,
            hostname=f"{JOBSET}-workers-0-{rank // per_node}",
            rank=rank // per_node,
            job_name=JOBSET,
        )
        for rank in range(ranks)
    ]
    job.points = [point(job, rank, row) for rank in range(ranks) for row in job.rows(rank)]
    job.manifest = Manifest(
        nonce=NONCE,
        started_at=at(-60, True),
        launched_at=at(0, True),
        ended_at=at(50, True),
        cluster={"context": "kind-e2e"},
        expected=Expected(
            num_nodes=nodes, ranks=ranks, run_id=RUN_ID, project="e2e", min_nodes_used=nodes, queue=QUEUE
        ),
        launch=Launch(launcher="konduktor", namespace=NAMESPACE, kind="JobSet", object_name=JOBSET, uid=UID),
        stages=[
            Stage(name="cluster", started_at=at(-50, True), seconds=40),
            Stage(name="launch", started_at=at(0, True), seconds=1),
            Stage(name="observe", started_at=at(1, True), seconds=33),
        ],
    )
    return job


def crash(job: Job, index: int, code: int = 3, when: float = 12) -> None:
    """A node's worker exits with `code`, its truth cut; the Job controller deletes the other pods."""
    job.drop("workload", 2)
    job.drop("jobset", 2)
    for other in range(job.nodes):
        job.drop_pod(other, after=10)
    rank = index * job.per_node
    job.truth[rank] = job.rows(rank)[:4]
    error = (
        f"E1121 05:00:12.1 15 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code})"
    )
    name = job.pod_name(index)
    job.logs[name] = [
        *job.logs[name][:3],
        f"{at(11, True)} RuntimeError: boom",
        f"{at(12, True)} {error}",
        f"{at(12, True)} ChildFailedError",
    ]
    job.ended(index, when, 1, message=json.dumps({"exit": 1}))
    for other in range(job.nodes):
        if other != index:
            job.truth[other * job.per_node] = job.rows(other * job.per_node)[:4]
            gone = {"metadata": {"deletionTimestamp": at(when + 1)}}
            job.pod(other, when + 1, "Running", {"running": {"startedAt": at(5)}}, **gone)
            job.pod(other, when + 2, "Running", {"running": {"startedAt": at(5)}}, **gone, type_="DELETED")
    job.jobset(when + 2, "Failed")
    job.runs = [job.runs[0].model_copy(update={"status": "FAILED"})]


def stuck(job: Job, keep: int = 2) -> Job:
    """Return a job that never ended: JobSet and Workload as after admission, pods cut to first states."""
    job.drop("jobset", 2)
    job.drop("workload", 2)
    states = [pair for pair in job.objects if pair[0] == "pod"]
    names = {seen.object["metadata"]["name"] for _, seen in states}
    kept = [
        pair
        for name in names
        for pair in [p for p in states if p[1].object["metadata"]["name"] == name][:keep]
    ]
    job.objects = [pair for pair in job.objects if pair[0] != "pod" or any(pair is k for k in kept)]
    return job


def timed_out(job: Job, when: float = 40) -> None:
    """Record a deadline that passed, as harness.run does."""
    stages = [stage for stage in job.manifest.stages if stage.name != "observe"]
    failed = Stage(
        name="observe",
        started_at=at(1, True),
        seconds=when - 1,
        ok=False,
        error="waited",
        cause="run.timed_out",
    )
    changes = {"stages": [*stages, failed], "interrupted": f"deadline of {when} s; last seen: pods Running"}
    job.manifest = job.manifest.model_copy(update=changes)
