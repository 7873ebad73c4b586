"""Determine which points count in elastic training, and which clients scaled the job.

When the number of nodes changes, torchrun forms a new world. The ranks of this world resume from the last
checkpoint and repeat the steps after it. For repeated steps, the earlier world's points do not count. Rank 0
logs the number of ranks that ran each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from harness.core.clock import timestamp
from harness.evidence.kubernetes.objects import ObjectState, changed_by, items, mapping
from harness.evidence.kubernetes.workload_pods import pod_index
from harness.judge.case import Case
from harness.judge.change import Change, when
from harness.judge.points.ground_truth import Truth
from harness.judge.points.series import NONE, Series

RANKS = "train/ranks"
"""The metric to which rank 0 logs the number of ranks at each step (harness/workers/training/trainer.py)."""


def with_superseded(case: Case, truths: list[Truth]) -> list[Truth]:
    """Return the ranks' ground truth with `superseded` set to the points that may be missing from the run.

    A point is superseded if a later world without its rank repeated the step. Ranks whose pods were deleted
    before they joined a world are omitted.
    """
    if case.launch.max_nodes is None or not truths:
        return truths
    sizes = truths[0].rows.get(RANKS, NONE)
    worlds = max([case.expected.ranks, *map(int, sizes.values())])
    members = [truth for truth in truths if truth.rank < worlds or truth.attempts]
    return [_with_superseded(truth, sizes) for truth in members]


def _with_superseded(truth: Truth, sizes: Series) -> Truth:
    repeated = {step for step, size in sizes.items() if size <= truth.rank}
    if repeated and truth.blocks:
        reason = (
            "it logged more rows than the limit (HARNESS_TRUTH_ROWS), and a later world without this "
            "rank repeated steps"
        )
        return replace(truth, incomplete=truth.incomplete or reason)
    superseded = {metric: repeated.intersection(series) for metric, series in truth.rows.items()}
    return replace(truth, superseded={metric: steps for metric, steps in superseded.items() if steps})


def scalings(case: Case) -> Iterator[tuple[float, str, ObjectState]]:
    """Yield (time, description, new state) for each change to the launched object's replicas."""
    for before, after in pairwise(case.jobsets):
        if (text := scaling(before, after)) is not None:
            yield when(after), text, after


def scaling(before: ObjectState, after: ObjectState) -> str | None:
    """Describe a change in replicas, such as "scaled from 2 to 3 replicas by kubectl", or return None."""
    old, new = (mapping(state.object, "spec").get("replicas") for state in (before, after))
    if old == new or not isinstance(old, int) or not isinstance(new, int):
        return None
    managers = changed_by(before, after)
    # managedFields shows who scaled the object, but after the first scaling, it does not show when.
    if not managers:
        entries = items(after.object, "metadata", "managedFields")
        managers = sorted(
            {str(each.get("manager")) for each in entries if each.get("subresource") == "scale"}
        )
    return (
        f"scaled from {old} to {new} replicas by {managers[0] if len(managers) == 1 else 'an unknown client'}"
    )


def allows(case: Case, change: Change) -> bool:
    """Return whether a change scaled the launched object to a size that the launch allows."""
    max_nodes = case.launch.max_nodes
    launched = change.kind == case.launch.kind.lower() and change.name == case.launch.object_name
    if max_nodes is None or not launched or change.fields != ("spec.replicas",):
        return False
    sizes = (mapping(state.object, "spec").get("replicas") for _, _, state in scalings(case))
    return all(isinstance(size, int) and 0 < size <= max_nodes for size in sizes)


def why_formed(case: Case, at: float) -> str:
    """Return a clause about the last scaling before a new world, or "" if there was none."""
    before = [f"{text} at {timestamp(when_)}" for when_, text, _ in scalings(case) if when_ <= at]
    return f", after the {case.launch.kind} was {before[-1]}" if before else ""


def scaled_away(case: Case, pod: ObjectState) -> bool:
    """Return whether the StatefulSet controller deleted a pod because the StatefulSet was scaled down."""
    owners = items(pod.object, "metadata", "ownerReferences")
    if case.launch.kind != "StatefulSet" or all(owner.get("uid") != case.launch.uid for owner in owners):
        return False
    before = [state for state in case.jobsets if 0 <= state.version < pod.version]
    replicas = mapping(before[-1].object, "spec").get("replicas") if before else None
    index = pod_index(pod.object)
    return index is not None and isinstance(replicas, int) and index >= replicas
