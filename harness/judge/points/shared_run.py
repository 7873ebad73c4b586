"""Identify the shared run, and judge its final status and whether all ranks attached only to this run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from harness.core.clock import seconds
from harness.evidence.schema.tracker import Attachment, TrackerRun
from harness.judge.case import Case, names
from harness.judge.finding import Finding, counted, listed, not_passed, passed, unknown
from harness.judge.pod_end import End
from harness.judge.points.compare import Comparison, Recorded, compact, same
from harness.judge.points.ground_truth import Truth
from harness.judge.points.series import NONE, Rows

CLOCK_ERROR = 2.0
"""Maximum number of seconds by which the tracker's clock can lag behind the harness's clock. Runs from
earlier launches are older than CLOCK_ERROR, because submission, scheduling and container startup take
longer."""


@dataclass
class Attached:
    """The tracker's runs, and the processes of this and other launches that attached to them."""

    case: Case
    runs: list[tuple[int, TrackerRun]]
    attachments: list[tuple[int, Attachment]] | None
    """The processes' attachments to runs, with line numbers, or None if the tracker does not store them."""

    @cached_property
    def shared(self) -> list[tuple[int, TrackerRun]]:
        """Return the runs with the expected id and project. There should be exactly one."""
        expected = self.case.expected
        if expected.tracker_run is not None:
            return [(line, run) for line, run in self.runs if run.run_id == expected.tracker_run]
        return [
            (line, run)
            for line, run in self.runs
            if run.external_id == expected.run_id and run.project == expected.project
        ]

    def node_of(self, attachment: Attachment) -> int | None:
        """Return the index of the node in this launch whose process made this attachment, or None."""
        if attachment.job_name not in {None, self.case.launch.tracked_as}:
            return None  # The pods of another launch can have the same names.
        if attachment.launch is not None and attachment.launch not in self.case.launches:
            return None  # konduktor appends only four random digits, so launches can share a name.
        if (index := self._indexes.get((attachment.process or "").partition("/")[0])) is not None:
            return index
        for index, pod in self.case.pods.items():
            if attachment.hostname and attachment.hostname in pod.hostnames:
                return index
        if attachment.hostname and self.case.pods and attachment.job_name is None:
            return None
        rank = attachment.rank
        return rank if rank is not None and 0 <= rank < self.case.expected.num_nodes else None

    @cached_property
    def _indexes(self) -> dict[str, int]:
        """Map each pod's uid to its node index. Hostnames are not unique if pods use hostNetwork."""
        attempts = self.case.pod_attempts.items()
        return {pod.last.uid: index for index, pods in attempts for pod in pods}

    @cached_property
    def by_node(self) -> dict[int, dict[int, list[tuple[int, Attachment]]]]:
        """Map each run id to the attachments of this launch, grouped by node index."""
        by_run: dict[int, dict[int, list[tuple[int, Attachment]]]] = {}
        for line, attachment in self.attachments or []:
            node = self.node_of(attachment)
            if node is not None:
                by_run.setdefault(attachment.run_id, {}).setdefault(node, []).append((line, attachment))
        return by_run

    def of_others(self, run_id: int) -> bool:
        """Return whether only other launches attached to the run."""
        return run_id in self._of_others

    @cached_property
    def _of_others(self) -> set[int]:
        keys: dict[int, set[str | None]] = {}
        for _, attachment in self.attachments or []:
            keys.setdefault(attachment.run_id, set()).add(attachment.launch)
        return {run_id for run_id, launches in keys.items() if not launches & {None, *self.case.launches}}

    def label(self, run_id: int) -> str:
        """Return a run's name for messages.

        This is its display id, followed by its id and project if these differ from those that the launch
        expects.
        """
        run = next((run for _, run in self.runs if run.run_id == run_id), None)
        if run is None:
            return f"run {run_id}"
        other = []
        if run_id == self.case.expected.tracker_run:
            return f"run {run.display_id or run_id}"
        if run.external_id != self.case.expected.run_id:
            other.append(f"id {run.external_id}")
        if run.project != self.case.expected.project:
            other.append(f"project {run.project}")
        return f"run {run.display_id or run_id}" + (f" ({', '.join(other)})" if other else "")


def run_exists(attached: Attached) -> Finding:
    """Run the `run-exists` check: the tracker has a run with the expected id and project."""
    expected = attached.case.expected
    if attached.shared:
        line, run = attached.shared[0]
        return passed("run-exists", f"{attached.label(run.run_id)} exists", [f"tracker/runs.jsonl:{line}"])
    elsewhere = [attached.label(run_id) for run_id in sorted(attached.by_node)]
    return not_passed(
        "run-exists",
        "unification.no_run",
        f"the tracker has no run with id {expected.run_id} in project {expected.project}",
        why=[f"ranks attached to {', '.join(elsewhere)}"] if elsewhere else [],
        ranks=attached.case.ranks,
        evidence=["tracker/runs.jsonl"],
    )


def one_run(attached: Attached, recorded: Recorded, truths: list[Truth], comparison: Comparison) -> Finding:
    """Run the `one-run` check: all ranks of this launch attached and logged only to the launch's run."""
    case = attached.case
    shared = [run.run_id for _, run in attached.shared]
    texts_by_rank: dict[int, str] = {}
    refs: list[str] = []
    for run_id, nodes in attached.by_node.items():
        if run_id in shared[:1]:
            continue
        for node, lines in nodes.items():
            refs.append(f"tracker/attachments.jsonl:{lines[0][0]}")
            for rank in case.ranks_of(node):
                texts_by_rank.setdefault(rank, f"{case.place(node)} attached to {attached.label(run_id)}")
    for truth in truths:
        for run_id, rows in recorded.elsewhere.items():
            if truth.rank not in texts_by_rank and (steps := _steps_elsewhere(truth, rows, comparison)):
                text = f"rank {truth.rank}'s points ({compact(steps)}) are in {attached.label(run_id)}"
                texts_by_rank[truth.rank] = text
                refs.append(truth.path)
    text = f"the tracker has {len(shared)} runs with id {case.expected.run_id}"
    if len(shared) == 1:
        if not texts_by_rank:
            return passed("one-run", f"no rank used a run other than {attached.label(shared[0])}")
        text = f"{names(texts_by_rank)} used a run other than the shared {attached.label(shared[0])}"
    return not_passed(
        "one-run",
        "unification.split_runs",
        text,
        details=list(dict.fromkeys(texts_by_rank[rank] for rank in sorted(texts_by_rank))),
        ranks=texts_by_rank,
        evidence=refs or ["tracker/runs.jsonl"],
    )


def one_run_of_digests(attached: Attached, logged: Mapping[int, Mapping[int, int]]) -> Finding:
    """Run the `one-run` check for pods with injected recorders, which report the runs that ranks logged to.

    `logged` maps a rank to the other runs to which it logged, with the number of points.
    """
    finding = one_run(attached, Recorded(), [], Comparison())
    if not logged:
        return finding
    label = attached.label(attached.shared[0][1].run_id)
    texts = [
        f"rank {rank} logged {counted(count, 'point')} to {attached.label(run_id)}"
        for rank, runs in sorted(logged.items())
        for run_id, count in sorted(runs.items())
    ]
    return not_passed(
        "one-run",
        "unification.split_runs",
        f"{names(logged)} used a run other than the shared {label}",
        details=texts,
        ranks={*logged, *finding.ranks},
        evidence=[*finding.evidence, "tracker/runs.jsonl"],
    )


def _steps_elsewhere(truth: Truth, rows: Rows, comparison: Comparison) -> list[int]:
    """Return those of the rank's lost steps that another run contains with the same values.

    Only the first metric with such steps is considered.
    """
    for (rank, metric), steps in comparison.missing.items():
        series = rows.get(metric, NONE)
        matching = [
            s for s in steps if s in series and same(series[s], truth.rows.get(metric, NONE).get(s, s + 1))
        ]
        if rank == truth.rank and matching:
            return matching
    return []


def run_fresh(attached: Attached) -> Finding:
    """Run the `run-not-stale` check: the run was created during this launch.

    If the run appears to be older by at most CLOCK_ERROR, it counts as older only if all attachments resumed
    it.
    """
    case = attached.case
    line, run = attached.shared[0]
    created, launched = seconds(run.created_at), seconds(case.manifest.launched_at)
    refs = [f"tracker/runs.jsonl:{line}", "manifest.json"]
    if created is None or launched is None:
        text = "the time of the launch or of the run's creation is not known"
        return not_passed("run-not-stale", "run.evidence_missing", text, evidence=refs)
    label, early = attached.label(run.run_id), launched - created
    own = [a for nodes in attached.by_node.get(run.run_id, {}).values() for _, a in nodes]
    if early > CLOCK_ERROR or (early > 0 and own and all(a.resumed for a in own)):
        text = f"{label} is older than this launch: it was created {early:.1f} s earlier, at {run.created_at}"
        return not_passed("run-not-stale", "unification.stale_run", text, ranks=case.ranks, evidence=refs)
    return passed("run-not-stale", f"{label} was created {max(0.0, -early):.1f} s after the launch", refs)


def in_mode_noop(truths: list[Truth], ranks: Iterable[int]) -> list[str]:
    """Return a one-item list that names the ranks whose client was created with mode='noop', or []."""
    noop = {t.rank for t in truths for a in t.attempts for one in a.settings if one.mode == "noop"}
    noop_ranks = noop.intersection(ranks)
    return (
        [f"the client of {names(noop_ranks)} was created with mode='noop', which sends nothing"]
        if noop_ranks
        else []
    )


def every_rank(attached: Attached, truths: list[Truth], comparison: Comparison) -> Finding:
    """Run the `attached` check: the process of every rank that should log attached to the shared run."""
    case = attached.case
    run = attached.shared[0][1]
    if attached.attachments is None:
        absent = [t.rank for t in truths if t.count and not comparison.arrived.get(t.rank)]
        silent_ranks = [truth.rank for truth in truths if not truth.count and truth.rank in case.logging]
    else:
        lines_by_node = attached.by_node.get(run.run_id, {})
        nodes = range(case.expected.num_nodes)
        expected = {node: {rank for rank in case.ranks_of(node) if rank in case.logging} for node in nodes}
        incomplete_nodes = [node for node in nodes if len(lines_by_node.get(node, [])) < len(expected[node])]
        absent = sorted(rank for node in incomplete_nodes for rank in expected[node])
        silent_ranks = []
        without_origin = [a for _, a in attached.attachments if a.run_id == run.run_id and _nameless(a)]
        if absent and without_origin:
            text = f"the origin of {counted(len(without_origin), 'attachment')} is not recorded"
            return unknown("attached", text, ranks=absent, evidence=["tracker/attachments.jsonl"])
    label = attached.label(run.run_id)
    if absent:
        places = listed([case.place(node) for node in sorted({case.node_of(rank) for rank in absent})])
        shortage = [f"fewer than {case.per_node} processes of a node attached"] if case.per_node > 1 else []
        file = "attachments" if attached.attachments is not None else "points"
        return not_passed(
            "attached",
            "unification.not_attached",
            f"{places} never attached to {label}",
            why=[*in_mode_noop(truths, absent), *shortage],
            ranks=absent,
            evidence=[f"tracker/{file}.jsonl"],
        )
    if silent_ranks:
        text = f"this tracker does not store attachments, and it has no points of {names(silent_ranks)}"
        return unknown("attached", text)
    return passed("attached", f"{names(case.logging)} attached to {label}")


def status(attached: Attached, ends: dict[int, End]) -> Finding:
    """Run the `status` check: the run's final status on the tracker agrees with the ends of the pods."""
    line, run = attached.shared[0]
    refs = [f"tracker/runs.jsonl:{line}"]
    text = f"{attached.label(run.run_id)} is {run.status}"
    if all(end.state == "succeeded" for end in ends.values()):
        if run.status == "COMPLETED":
            return passed("status", f"{text}, and every pod succeeded", refs)
        text += ", though every pod succeeded"
        return not_passed("status", "unification.wrong_status", text, evidence=refs)
    ranks = [rank for end in ends.values() if end.state in {"failed", "deleted"} for rank in end.ranks]
    if not ranks:
        return unknown("status", "a pod's termination was not recorded", evidence=refs)
    if run.status in {"FAILED", "TERMINATED", "CANCELLED"}:
        return passed("status", f"{text}, and {names(ranks)} did not succeed", refs)
    text += f", though {names(ranks)} did not succeed"
    return not_passed("status", "unification.wrong_status", text, ranks=ranks, evidence=refs)


def _nameless(attachment: Attachment) -> bool:
    return attachment.hostname is None and attachment.rank is None
