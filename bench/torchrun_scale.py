"""500 TorchrunJobs of two pods on simulated nodes, beside Kubeflow Trainer v2 and JobSets alone, in one run.

    python bench/torchrun_scale.py --kubeconfig F [--cluster NAME] [--jobs 500] [--check F.toml]

A kind cluster of `harness up` is expected. Printed is one JSON document. With --check the exit code is 1 when
a figure leaves its range, as in Kueue's own performance tests; bench/torchrun_scale.toml is for 500 jobs.
Nodes and pods are KWOK's: a pod succeeds as soon as it runs, so what is measured is the control plane. Arms
follow each other:

  jobset-kueue   JobSets made directly, admitted by Kueue: the floor of the next one
  torchrun       TorchrunJobs of our controller (a process beside the cluster, with its manifest's rights)
  jobset         JobSets without Kueue: the floor of the last one
  trainer        TrainJobs of Kubeflow Trainer v2.0.0, in a pod, without Kueue
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/k8s")]

import kubeflow  # noqa: E402
from simulated_nodes import MARK, TOLERATION, simulated  # noqa: E402
from torchrun_figures import Follower, Memory, beside, left, own_requests, ratio, requests, spread  # noqa: E402
from torchrun_team import Controller, Team  # noqa: E402

from harness.context import RunContext  # noqa: E402
from harness.core.kubernetes import Kube, Object, condition  # noqa: E402
from harness.provision.kind.cluster import KindCluster  # noqa: E402
from harness.provision.source.kwok import kwok  # noqa: E402
from harness.settings import load  # noqa: E402
from harness.torchrun_controller.api import names  # noqa: E402

NODES, GPUS, SENDERS = 64, 8, 8
PORT = 9187
"""Of our controller's metrics, on this host."""
FREQUENT = 12
"""So many kinds of requests are listed for each arm."""
QUEUE = "simulated"
POD = {
    "nodeSelector": {MARK: "fake"},
    "tolerations": [TOLERATION],
    "containers": [{"name": "trainer", "image": "simulated"}],
}


@dataclass
class Times:
    """Seconds of one monotonic clock, by the name of the job."""

    made: dict[str, float] = field(default_factory=dict)
    jobset: dict[str, float] = field(default_factory=dict)
    completed: dict[str, float] = field(default_factory=dict)
    """Since when its JobSet is Completed."""
    told: dict[str, float] = field(default_factory=dict)
    """Since when the job itself says so."""


@dataclass(frozen=True)
class Arm:
    name: str
    document: Callable[[str, str], Object]
    api: str
    kind: str
    over: Callable[[Object], bool]
    process: str
    """A word of its controller's command line; "" without one."""
    port: int = 0
    """The port of our controller's metrics; 0 for another arm."""


def measured(kube: Kube, arm: Arm, jobs: int, team: Team) -> dict[str, Any]:
    """Make all jobs as fast as the API server takes them, and wait until all of them say they are over."""
    times, clock = Times(), time.monotonic

    def jobset(item: Object) -> None:
        name = item["metadata"]["name"]
        times.jobset.setdefault(name, clock())
        if condition(item, "Completed").get("status") == "True":
            times.completed.setdefault(name, clock())

    def told(item: Object) -> None:
        if arm.over(item):
            times.told.setdefault(item["metadata"]["name"], clock())

    made = [f"{arm.name[:8].strip('-')}-{number:04}" for number in range(jobs)]
    local = threading.local()

    def make(name: str) -> None:
        if not hasattr(local, "kube"):
            local.kube = Kube(kube.kubeconfig)
            local.resource = local.kube.resource(arm.api, arm.kind)
        local.resource.create(body=arm.document(name, team.namespace), namespace=team.namespace)
        times.made[name] = clock()

    resident = Memory(arm.process)
    before, own_before = requests(kube), own_requests(arm.port) if arm.port else Counter()
    followers = [Follower(kube, team.namespace, (names.JOBSET_API, "JobSet"), jobset)]
    followers.append(Follower(kube, team.namespace, (arm.api, arm.kind), told))
    began = clock()
    with ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(make, made))
    sent = clock() - began
    until = clock() + 1800
    while len(times.told) < jobs and clock() < until:
        time.sleep(0.5)
        resident.look()
    took = clock() - began
    asked, own = requests(kube) - before, (own_requests(arm.port) if arm.port else Counter()) - own_before
    for follower in followers:
        follower.stopped.set()
    if len(times.told) < jobs:
        raise SystemExit(f"{arm.name}: {len(times.told)} of {jobs} are over after {took:.0f} s")
    result = {
        "jobs": jobs,
        "seconds": round(took, 1),
        "sending_seconds": round(sent, 1),
        "jobs_per_second": round(jobs / took, 2),
        "requests_per_job": round(asked.total() / jobs, 1),
        "of_these": {" ".join(what): round(count / jobs, 1) for what, count in asked.most_common(FREQUENT)},
        "own_requests_per_job": round(own.total() / jobs, 1),
        "of_own": {" ".join(what): round(count / jobs, 2) for what, count in own.most_common(FREQUENT)},
        "to_jobset_seconds": spread([times.jobset[name] - times.made[name] for name in made]),
        "to_told_seconds": spread([max(0.0, times.told[name] - times.completed[name]) for name in made]),
        "memory_mib": resident.peak,
    }
    with ThreadPoolExecutor(SENDERS) as pool:  # what owns the JobSets first, or they would be made again
        list(pool.map(lambda name: kube.delete(arm.api, arm.kind, name, team.namespace), made))
    gone(kube, team.namespace)
    return result


def gone(kube: Kube, namespace: str) -> None:
    """Wait until nothing of an arm is left, so that the next one has the cluster for itself."""
    for _ in range(900):
        if not any(
            kube.objects(api, kind, namespace) for api, kind in (("v1", "Pod"), (names.JOBSET_API, "JobSet"))
        ):
            return
        time.sleep(1)
    raise SystemExit("the arm's objects do not go")


def bare(name: str, namespace: str, labels: dict[str, str]) -> Object:
    """Return the JobSet that a controller makes of its job, less its own fields."""
    inner = {
        "parallelism": 2,
        "completions": 2,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": {**POD, "restartPolicy": "Never"}},
    }
    return {
        "apiVersion": names.JOBSET_API,
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": inner}}]},
    }


def torchrun_job(name: str, namespace: str) -> Object:
    spec = {"jobQueue": QUEUE, "command": "python train.py", "numNodes": 2}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": names.API, "kind": names.JOB_KIND, "metadata": metadata, "spec": spec}


def holds(kind: str) -> Callable[[Object], bool]:
    return lambda item: condition(item, kind).get("status") == "True"


ARMS = [
    Arm(
        "jobset-kueue",
        lambda name, namespace: bare(name, namespace, {names.KUEUE_QUEUE_LABEL: QUEUE}),
        names.JOBSET_API,
        "JobSet",
        holds("Completed"),
        "",
    ),
    Arm(
        "torchrun",
        torchrun_job,
        names.API,
        names.JOB_KIND,
        holds("Complete"),
        "harness.torchrun_controller",
        PORT,
    ),
    Arm(
        "jobset",
        lambda name, namespace: bare(name, namespace, {}),
        names.JOBSET_API,
        "JobSet",
        holds("Completed"),
        "",
    ),
    Arm(
        "trainer",
        lambda name, namespace: kubeflow.job(name, namespace, QUEUE),
        kubeflow.API,
        "TrainJob",
        holds("Complete"),
        "/manager --",
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--cluster", default=load().cluster_name, help="the kind cluster, for its nodes")
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--arms", default=",".join(arm.name for arm in ARMS))
    parser.add_argument("--check", type=Path, help="a TOML file of ranges")
    asked = parser.parse_args()
    settings = load(cluster_name=asked.cluster)
    context = RunContext(settings=settings, progress=lambda text: print(text, file=sys.stderr, flush=True))
    kube = Kube(asked.kubeconfig)
    wanted = [arm for arm in ARMS if arm.name in asked.arms.split(",")]
    result: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if any(arm.name == "trainer" for arm in wanted):
            kubeflow.install(kubeflow.TRAINER, KindCluster(settings), kube, context, folder / "trainer")
            of = {**POD, "containers": [{"name": "node", "image": "simulated"}]}
            kubeflow.until_applied(kube, kubeflow.runtime(QUEUE, of))
        team = Team(kube, f"scale-{secrets.token_hex(3)}", "simulated")
        team.prepare()
        stack.callback(team.remove)
        nodes = [f"simulated-{number:02}" for number in range(NODES)]
        stack.enter_context(simulated(kube, kwok(context), folder / "kwok.log", nodes, GPUS))
        controller = Controller(team.account(folder), team.namespace, folder / "controller.log", PORT)
        controller.start()
        stack.callback(controller.stop)
        team.until_led()
        where = {"nodeSelector": {MARK: "fake"}, "tolerations": [TOLERATION]}
        team.queue(QUEUE, nodeResources={}, scheduling=where)
        for arm in wanted:
            result[arm.name] = measured(kube, arm, asked.jobs, team)
            print(json.dumps({arm.name: result[arm.name]}), file=sys.stderr, flush=True)
    if {"torchrun", "jobset-kueue"} <= result.keys():
        result["ratio_to_jobset"] = ratio(result, "torchrun", "jobset-kueue")
    if {"trainer", "jobset"} <= result.keys():
        result["trainer_ratio_to_jobset"] = ratio(result, "trainer", "jobset")
    if {"torchrun", "trainer"} <= result.keys():
        result["ratio_to_trainer"] = beside(result["torchrun"], result["trainer"])
    print(json.dumps(result, indent=2))
    failed = left(result, tomllib.loads(asked.check.read_text())) if asked.check else []
    for line in failed:
        print(line, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
