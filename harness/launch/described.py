"""What a bundle says of a launch before it begins: what it is, what it is made of, what must be true."""

from __future__ import annotations

import re
from typing import Any, Literal

from harness.context import RecordedContext
from harness.core.bounds import ranks_problem
from harness.core.errors import UsageError
from harness.core.kubernetes import reached
from harness.evidence.schema.bundle import Expected, Launch
from harness.launch.names import EXPECT_RANKS
from harness.launch.prepare import netcheck_first
from harness.launch.workloads.base import Workload
from harness.launch.workloads.training import Training
from harness.provision.cluster import Ready
from harness.provision.placement import require_node
from harness.settings import Settings
from harness.tracker.shared.run_id import make_run_id


def given_run_id(workload: Workload, settings: Settings) -> str | None:
    """Return the user's own: PLUTO_RUN_ID of the environment, or of the workload's file."""
    return settings.pluto_run_id or workload.envs.get("PLUTO_RUN_ID") or None


def expected_of(workload: Workload, ready: Ready, context: RecordedContext) -> Expected:
    """What must be true for a PASS, as the file and the cluster say before the launch."""
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
        ranks_given=workload.ranks_given,
        run_id=given_run_id(workload, settings) or make_run_id(context.nonce),
        project=workload.envs.get("PLUTO_PROJECT", settings.pluto_project),
        min_nodes_used=max(1, min(nodes, eligible)) if workload.spreads else 1,
        ranks_that_log=ranks_that_log(workload, settings),
        queue=workload.queue,
        node_names=must_answer,
        device=_device(workload),
    )


def ranks_that_log(workload: Workload, settings: Settings) -> list[int] | None:
    """Return the ranks that log, as the settings or the workload's file say, or None where every rank logs.

    Raises UsageError for a text that names no ranks.
    """
    if settings.expect.ranks is not None:
        return sorted(set(settings.expect.ranks))
    text = workload.annotations.get(EXPECT_RANKS)
    return None if text is None else ranks_in(str(text))


def ranks_in(text: str) -> list[int]:
    """Return the ranks that a text names: "0", "0,4", "0_4", "0-3". Raises UsageError for another text."""
    found: set[int] = set()
    for part in re.split(r"[,_]", text):
        range_ = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part, re.ASCII)
        if range_ is None:
            raise UsageError(f"{EXPECT_RANKS}: ranks are expected, as 0 or 0-3 or 0,4; seen {text!r}")
        found |= {*range(int(range_[1]), int(range_[2] or range_[1]) + 1)}
    return sorted(found)


def check_ranks_that_log(workload: Workload, settings: Settings) -> None:
    """Raise UsageError where a rank that is to log cannot be one of the job's."""
    found = ranks_that_log(workload, settings)
    if found is not None and not found:
        raise UsageError("no rank is expected to log", hint="name at least one, or leave it out")


def _device(workload: Workload) -> Literal["cpu", "cuda"] | None:
    if workload.purpose not in ("nodes", "ddp"):
        return None
    return "cuda" if "nvidia.com/gpu" in workload.resources else "cpu"


def versions_of(ready: Ready, workload: Workload) -> dict[str, str]:
    """Of the stack, and of what the worker image was built from, where the workload takes that one."""
    return {**ready.versions, **(ready.worker.made_of if workload.takes_ours else {})}


def launch_of(workload: Workload, namespace: str, context: RecordedContext) -> Launch:
    """Return what is launched. Its object's name and uid come when the cluster has it."""
    return Launch(
        launcher=workload.launcher,
        namespace=namespace,
        kind=workload.kind,
        container=workload.container,
        held=workload.held,
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
    """Return what a launch says of a training whose checkpoints will be audited."""
    if not isinstance(workload, Training) or workload.asked.smoke:
        return {}
    asked = workload.asked
    same, weights = asked.same_as or (None, None)
    found = {"training": True, "reach": asked.reach, "same_as": same, "same_as_weights": weights}
    transfers = {"upload": asked.upload, "resume_from": asked.resume_from}
    return found | transfers | {"max_nodes": asked.max_replicas}
