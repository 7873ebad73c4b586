"""Change findings about an attached job to UNKNOWN if their reasons may be older than the attachment.

The state of a job often shows how a rank ended, but not why. For example, someone may have stopped a queue,
drained a node or deleted a pod before the harness attached. Such a finding keeps its cause, but its result
becomes UNKNOWN.
"""

from __future__ import annotations

from dataclasses import replace

from harness.core.clock import seconds
from harness.judge.case import Case, names
from harness.judge.catalogue import CAUSES
from harness.judge.disturbance.rules import UNEXPLAINED
from harness.judge.finding import LATE, Finding
from harness.judge.ranks import earlier_attempts

STARTED_SECONDS = 5.0
"""If the harness attached within this many seconds after a job was created, it counts as having watched the
job from the start."""
_BY_OTHERS = {*UNEXPLAINED, "rank.killed", "rank.pod_deleted", "rank.restarted", "rank.hung"}
"""Causes that often result from a change that a person or a program made to the cluster."""
_WAITING = ("queue", "admission")
"""Families of causes that may be temporary while a job waits to be admitted."""
_OF_EVERY_POD = ("containers", "nodes", "node-spread")
"""Ids of checks that can pass only if all pods of the job still exist."""
_MAY_CLEAR_UP = ("scheduling.unschedulable", "scheduling.devices_held", "scheduling.not_started")
"""Scheduling causes that may be temporary while a job waits for nodes or devices."""
_OF_EARLIER = ("unification.stale_run", "unification.foreign_points", "unification.foreign_job")
"""Causes that may be due to an earlier job, or earlier pods of this job, that wrote to the same run."""


def downgrade(case: Case, finding: Finding) -> Finding:
    """Return the finding.

    If its reason may have occurred before the harness attached, change it to UNKNOWN.
    """
    cause = finding.cause
    if finding.result == "PASS" and finding.name in _OF_EVERY_POD and (missing_ranks := _missing_ranks(case)):
        head = f"{finding.head}, but no pod exists for {names(missing_ranks)}, so not every pod was judged"
        return replace(finding, result="UNKNOWN", head=head)
    if not case.launch.attached or finding.result != "FAIL" or cause not in CAUSES or case.by_signal:
        return finding
    entry = CAUSES[cause]
    if case.terminal is None and (
        entry.absence or cause in _MAY_CLEAR_UP or (entry.family in _WAITING and finding.name != "eviction")
    ):
        return replace(finding, result="UNKNOWN", head=f"so far, {finding.head}")
    if cause == "admission.max_execution_time" and not case.recorded:
        reason = "it was not recorded whether a rank hung or only needed more time"
        return replace(finding, result="UNKNOWN", why=[*finding.why, reason])
    if reason := _before_attaching(case, finding):
        return replace(finding, result="UNKNOWN", why=[*finding.why, reason])
    return finding


def _before_attaching(case: Case, finding: Finding) -> str:
    """Return a clause if a finding's reason may have occurred before the harness attached, or ""."""
    if finding.cause in _OF_EARLIER:
        return _before_these_pods(case, str(finding.cause))
    if finding.cause in _BY_OTHERS and not _watched(case, finding):
        return "the reason is unknown, because the problem may have occurred before the harness attached"
    return ""


def _before_these_pods(case: Case, cause: str) -> str:
    """Return a clause about an older job or earlier pods that may have written to the run, or ""."""
    created, launched = seconds(_created_at(case)), seconds(case.manifest.launched_at)
    if cause == "unification.stale_run" or (created is not None and launched and created < launched):
        return "it is not known whether this job was meant to continue an older run"
    if next(earlier_attempts.restarts(case), None) is not None:
        return "earlier pods of this job, which no longer exist, may have written to the run"
    return ""


def _created_at(case: Case) -> str | None:
    """Return the creation time of the shared run, as the tracker's ISO 8601 timestamp, or None if unknown."""
    expected = case.expected
    for _, run in case.bundle.runs():
        if run.run_id == expected.tracker_run or (
            expected.tracker_run is None
            and (run.external_id, run.project) == (expected.run_id, expected.project)
        ):
            return run.created_at
    return None


def _missing_ranks(case: Case) -> list[int]:
    """Return the ranks without a pod in the bundle."""
    return case.ranks_of(*(index for index in range(case.expected.num_nodes) if index not in case.pods))


def _watched(case: Case, finding: Finding) -> bool:
    """Return whether the harness was already attached when the cause occurred."""
    if any(ref.startswith("inspections.jsonl") for ref in finding.evidence):
        return True  # An inspection was recorded by the attached harness itself.
    since, created = case.since, seconds(case.manifest.launched_at)
    if since is None:
        return False
    if created is not None and since - created <= STARTED_SECONDS:
        return True
    return finding.at != LATE and finding.at >= since
