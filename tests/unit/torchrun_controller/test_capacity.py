"""What is free on nodes now: the split that fits, what a waiting job says of it, and how often."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from torchrun_objects import job, queue

from harness.core.kubernetes import Object
from harness.torchrun_controller.api.models import QueueSpec
from harness.torchrun_controller.decide.decisions import Create, Decision, Snapshot
from harness.torchrun_controller.decide.job import desired
from harness.torchrun_controller.plan.capacity import Capacity, Free, best_fit, fitting
from harness.torchrun_controller.runtime.kinds import NODES, REQUESTS

GPU = "nvidia.com/gpu"
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
CREATED = {"jobID": "js-uid", "jobName": "demo", "numNodes": 2, "processesPerNode": 1}
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {
        "name": "demo",
        "uid": "js-uid",
        "resourceVersion": "7",
        "ownerReferences": [{"uid": "job-uid"}],
    },
    "spec": {"suspend": True},
}
TAINT = {"key": "team", "value": "b", "effect": "NoSchedule"}


def node(name: str, gpus: int = 8, **spec: Any) -> Object:
    """Return what the controller keeps of a node."""
    allocatable = {"cpu": "96", "memory": "512Gi", GPU: str(gpus)}
    ready = [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}]
    metadata = {"name": name, "labels": {"zone": name}, "resourceVersion": "1"}
    return NODES.trim(
        {"metadata": metadata, "spec": spec, "status": {"allocatable": allocatable, "conditions": ready}}
    )


def pod(name: str, on: str, gpus: int, **labels: str) -> Object:
    """Return what the controller keeps of a pod that has a node."""
    metadata = {"name": name, "namespace": "team", "labels": labels, "resourceVersion": "1"}
    resources = {"requests": {"cpu": "1", "memory": "1Gi", GPU: str(gpus)}, "limits": {GPU: str(gpus)}}
    return REQUESTS.trim(
        {"metadata": metadata, "spec": {"nodeName": on, "containers": [{"resources": resources}]}}
    )


HALF = Capacity(
    [node("a"), node("b"), node("c", unschedulable=True), node("d", taints=[TAINT])],
    [pod("x", "a", 4, **{"torchrun-job-name": "other"}), pod("y", "b", 3), pod("z", "b", 1)],
)
"""4 GPUs are free on each of two nodes; two more nodes take no pod of the queue."""


def gpu_queue(**spec: Any) -> Object:
    return queue(nodeResources={"gpus": 8}, **spec)


def made(capacity: Capacity | None, queued: Object, **spec: Any) -> Object:
    """Return the Indexed Job of the JobSet that is made for a job of 8 GPUs."""
    one = job(**{"numNodes": None, "numGPUs": 8, **spec})
    decision = desired(one, Snapshot(queue=queued, capacity=capacity), NOW)
    documents = [action.document for action in decision.actions if isinstance(action, Create)]
    [document] = [each for each in documents if each["kind"] == "JobSet"]
    inner: Object = document["spec"]["replicatedJobs"][0]["template"]["spec"]
    return inner


def test_best_fit_takes_what_is_free_now() -> None:
    """Contract: two halves where no node is whole; Packed, and without knowledge of nodes, one node."""
    best = gpu_queue(distribution="BestFit")
    assert made(HALF, best)["parallelism"] == 2
    assert made(HALF, gpu_queue())["parallelism"] == 1
    assert made(None, best)["parallelism"] == 1
    assert made(Capacity([node("a")], []), best)["parallelism"] == 1
    assert made(Capacity([], []), best)["parallelism"] == 1
    full = Capacity([node("a", 4), node("b", 4)], [pod("x", "a", 4), pod("y", "b", 4)])
    assert made(full, best)["parallelism"] == 2  # no node would ever take all of it
    assert made(HALF, best, numNodes=4)["parallelism"] == 4


def test_nodes_unschedulable_for_the_queue_do_not_count() -> None:
    """Contract: cordons, taints and the queue's node selector, as the scheduler has them."""
    queued = QueueSpec.model_validate(gpu_queue()["spec"])
    assert [each.node for each in HALF.free(queued, queued.scheduling)] == ["a", "b"]
    tolerating = QueueSpec.model_validate(gpu_queue(scheduling={"tolerations": [TAINT]})["spec"])
    assert [each.node for each in HALF.free(tolerating, tolerating.scheduling)] == ["d", "a", "b"]
    one = QueueSpec.model_validate(gpu_queue(scheduling={"nodeSelector": {"zone": "b"}})["spec"])
    assert [(each.node, each.gpus) for each in HALF.free(one, one.scheduling)] == [("b", 4)]


def test_a_read_write_once_claim_prevents_a_split() -> None:
    """Contract: a claim of one node keeps the job on one node, and refuses nothing."""
    storage = {"checkpoints": {"enabled": True, "size": "1Gi", "accessMode": "ReadWriteOnce"}}
    assert made(HALF, gpu_queue(distribution="BestFit", storage=storage))["parallelism"] == 1


def waits(one: Object, capacity: Capacity, later: float = 0) -> Decision:
    reserved = {"type": "QuotaReserved", "status": "False", "message": "no quota"}
    workload = {"status": {"conditions": [reserved]}}
    seen = Snapshot(jobset=JOBSET, workload=workload, capacity=capacity, waits_in=gpu_queue())
    return desired(one, seen, NOW + timedelta(seconds=later))


def test_a_queued_job_reports_free_capacity_and_gpu_holders() -> None:
    """Contract: after Kueue's own words, with the time of the answer."""
    one = job(numNodes=None, numGPUs=8, status={**CREATED, "numNodes": 1, "processesPerNode": 8})
    message = str(waits(one, HALF).status.message)
    assert message.startswith("no quota; at 20")
    assert "8 GPUs are free on this queue's nodes now (4 on a and 4 on b)" in message
    assert "2 x 4 GPUs would fit: submit a job with numNodes 2" in message
    assert "8 are held by TorchrunJob team/other (4), pod team/y (3) and pod team/z (1)" in message
    nothing = Capacity([node("a")], [pod("x", "a", 8)])
    assert "0 GPUs are free on this queue's nodes now; no equal split of 8 GPUs fits" in str(
        waits(one, nothing).status.message
    )


def test_gpus_without_free_cpu_are_distinguished() -> None:
    """Contract: pods without GPUs can hold a node's CPUs, and then its GPUs are of no use."""
    taken = pod("x", "a", 0)
    taken["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "90"}}
    one = job(numNodes=None, numGPUs=8, status={**CREATED, "numNodes": 1, "processesPerNode": 8})
    seen = Snapshot(
        jobset=JOBSET,
        capacity=Capacity([node("a")], [taken]),
        waits_in=queue(nodeResources={"gpus": 8, "cpus": 96}),
    )
    message = str(desired(one, seen, NOW).status.message)
    assert "8 GPUs are free" in message
    assert "there are not enough free CPUs or memory on the nodes with free GPUs" in message


def test_a_job_that_waits_for_long_writes_seldom() -> None:
    """Contract: what is free may change every second, and costs a write at twice its age at the earliest."""
    one = job(numNodes=None, numGPUs=8, status={**CREATED, "numNodes": 1, "processesPerNode": 8})
    messages = set()
    for second in range(0, 3600, 10):
        capacity = Capacity([node("a")], [pod("x", "a", 1 + second // 10 % 7)])
        decision = waits(one, capacity, second)
        one = {**one, "status": decision.status.model_dump(by_alias=True, exclude_none=True)}
        messages.add(decision.status.message)
    assert len(messages) <= 8


def test_a_job_without_gpus_says_nothing_of_them() -> None:
    """Contract: jobs on CPUs cost no more requests than before."""
    one = job(status={**CREATED, "numNodes": 2, "processesPerNode": 1})
    seen = Snapshot(jobset=JOBSET, capacity=HALF, waits_in=queue())
    decision = desired(one, seen, NOW)
    assert (decision.status.waiting, "GPU" in str(decision.status.message)) == (None, False)


@given(
    free=st.lists(st.integers(0, 8), max_size=5),
    gpus=st.integers(1, 24),
    whole=st.integers(1, 8),
)
def test_best_fit_is_the_fewest_pods_that_fit(free: list[int], gpus: int, whole: int) -> None:
    """Contract: equal pods, all GPUs, at most a whole node each, the fewest pods."""
    nodes = [Free(str(index), amount, 96, 2**40) for index, amount in enumerate(free)]  # type: ignore[arg-type]
    queued = QueueSpec.model_validate({"nodeResources": {"gpus": whole}})
    found = best_fit(gpus, nodes, queued, whole)

    def fits(pods: int) -> bool:
        share = gpus // pods
        return gpus % pods == 0 and share <= whole and sum(amount // share for amount in free) >= pods

    assert found == next((pods for pods in range(1, gpus + 1) if fits(pods)), None)
    if found:
        assert fitting(nodes, queued, whole, gpus // found) >= found
