"""Describe a launch in its bundle before it starts: its workload, its versions and the conditions for a
PASS."""

from __future__ import annotations

import re
from typing import Any, Literal

from harness.context import RecordedContext
from harness.core.errors import UsageError
from harness.core.input_limits import ranks_problem
from harness.core.kubernetes import reached
from harness.evidence.schema.bundle import Expected, Launch
from harness.launch.labels import EXPECT_RANKS
from harness.launch.prepare import netcheck_first
from harness.launch.workloads.base import Workload
from harness.launch.workloads.training import Training
from harness.provision.cluster import Ready
from harness.provision.placement import require_node
from harness.settings import Settings
from harness.tracker.shared.run_id import make_run_id


def user_run_id(workload: Workload, settings: Settings) -> str | None:
    """Return the run id that the user sets with PLUTO_RUN_ID, in the environment or in the workload's file,
    or None."""
    return settings.pluto_run_id or workload.envs.get("PLUTO_RUN_ID") or None


def expected_of(workload: Workload, ready: Ready, context: RecordedContext) -> Expected:
    """Return the conditions for a PASS, derived from the workload's file and the cluster.

    Raises UsageError for an invalid number of ranks.
    """
    settings = context.settings
    with reached():
        eligible = len(require_node(ready.kube, workload, settings))
        nodes = workload.members(ready.kube)
        must_answer = workload.must_answer(ready.kube)
    if problem := ranks_problem(nodes, workload.per_node):
        raise UsageError(f"{workload.name}: {problem}")
    return Expected(
        num_nodes=nodes,
        ranks=nodes * workload.per_node,
        ranks_given=workload.has_rank_count,
        run_id=user_run_id(workload, settings) or make_run_id(context.nonce),
        project=workload.envs.get("PLUTO_PROJECT", settings.pluto_project),
        min_nodes_used=max(1, min(nodes, eligible)) if workload.spreads else 1,
        ranks_that_log=ranks_that_log(workload, settings),
        queue=workload.queue,
        node_names=must_answer,
        device=_device(workload),
    )


def ranks_that_log(workload: Workload, settings: Settings) -> list[int] | None:
    """Return the ranks that must log, according to the settings or the workload's file. None means all ranks.

    Raises UsageError for an invalid list of ranks.
    """
    if settings.expect.ranks is not None:
        return sorted(set(settings.expect.ranks))
    text = workload.annotations.get(EXPECT_RANKS)
    return None if text is None else ranks_in(str(text))


def ranks_in(text: str) -> list[int]:
    """Return the ranks in a string such as "0", "0,4", "0_4" or "0-3". Raises UsageError for any other
    string."""
    ranks: set[int] = set()
    for part in re.split(r"[,_]", text):
        range_ = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part, re.ASCII)
        if range_ is None:
            raise UsageError(f"{EXPECT_RANKS}: expected rank numbers such as 0, 0-3 or 0,4, found {text!r}")
        ranks |= {*range(int(range_[1]), int(range_[2] or range_[1]) + 1)}
    return sorted(ranks)


def check_ranks_that_log(workload: Workload, settings: Settings) -> None:
    """Raise UsageError if the list of ranks that must log is empty or invalid."""
    ranks = ranks_that_log(workload, settings)
    if ranks is not None and not ranks:
        raise UsageError(
            "the list of ranks that must log is empty",
            hint="list at least one rank, or omit the list: then all ranks must log",
        )


def _device(workload: Workload) -> Literal["cpu", "cuda"] | None:
    if workload.purpose not in ("nodes", "ddp"):
        return None
    return "cuda" if "nvidia.com/gpu" in workload.resources else "cpu"


def versions_of(ready: Ready, workload: Workload) -> dict[str, str]:
    """Return the versions of the stack and, if the workload uses the worker image, of the packages in it."""
    return {**ready.versions, **(ready.worker.components if workload.uses_worker_image else {})}


def launch_of(workload: Workload, namespace: str, context: RecordedContext) -> Launch:
    """Return a description of the launch.

    The name and UID of the launched object are added after the submission.
    """
    return Launch(
        launcher=workload.launcher,
        namespace=namespace,
        kind=workload.kind,
        container=workload.container,
        held=workload.keep_alive,
        job_name=workload.job_name(context.nonce),
        recorder=context.settings.recorder,
        accounts=["keys"] if context.settings.recorder else [],
        processes=workload.purpose == "training",
        netcheck=_netcheck(workload, context.settings),
        acceptance=workload.purpose if workload.purpose in ("nodes", "ddp") else None,
        **_of_training(workload),
    )


def _netcheck(workload: Workload, settings: Settings) -> Literal["before", "alone"] | None:
    if workload.purpose == "netcheck":
        return "alone"
    return "before" if netcheck_first(workload, settings) else None


def _of_training(workload: Workload) -> dict[str, Any]:
    """Return the fields of `Launch` that describe a training job with checkpoints, or {} for other
    workloads."""
    if not isinstance(workload, Training) or workload.spec.smoke:
        return {}
    spec = workload.spec
    same, weights = spec.same_as or (None, None)
    fields = {"training": True, "reach": spec.reach, "same_as": same, "same_as_weights": weights}
    transfers = {"upload": spec.upload, "resume_from": spec.resume_from}
    return fields | transfers | {"max_nodes": spec.max_replicas}
