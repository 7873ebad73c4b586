"""An elastic job loses a member, whichever, however and whenever: it trains on, or ends with the cause."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError
from torchrun_team import CODE, Controller, Team

from harness.core.kubernetes import Object
from harness.provision.cluster import Ready
from harness.torchrun_controller.api import names

pytestmark = [pytest.mark.controller, pytest.mark.nightly, pytest.mark.timeout(3600)]
SECONDS = 600.0
"""From the strike until the job trains on, or has ended: pods that come back, and a rendezvous of 3 nodes. A
node 0 that hangs before its store is there is ended after 300 s, at the third probe that finds that."""
PROGRAM = """
import time
from datetime import timedelta
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=30))
size = dist.get_world_size()
print(f"rank {dist.get_rank()} of {size} meets", flush=True)
for step in range(100000):
    value = torch.tensor([1.0])
    dist.all_reduce(value)
    assert value.item() == size, value
    if step % 5 == 0:
        print(f"step {step} of {size}", flush=True)
    time.sleep(0.2)
"""
NODES = 3
SINCE = 20.0
"""Seconds after the strike from which on the members train: what they wrote just before it does not count."""


class Members:
    """The pods of one elastic job."""

    def __init__(self, team: Team, cluster: Ready, name: str) -> None:
        self.team, self.cluster, self.name = team, cluster, name

    def pods(self) -> dict[int, Object]:
        """Return the newest pod of each node rank that has not ended."""
        alive = [
            pod
            for pod in self.team.pods(self.name)
            if not pod["metadata"].get("deletionTimestamp")
            and pod["status"].get("phase") in ("Pending", "Running")
        ]
        return {
            _index(pod): pod for pod in sorted(alive, key=lambda pod: pod["metadata"]["creationTimestamp"])
        }

    def until(self, what: str, holds: Callable[[], bool], seconds: float = SECONDS) -> None:
        until = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < until, f"never {what}: {self.status()}\n{self.logs()}"
            time.sleep(1)

    def status(self) -> Object:
        job = self.team.kube.get(names.API, names.JOB_KIND, self.name, self.team.namespace)
        return (job or {}).get("status") or {}

    def log(self, pod: Object, since: datetime | None = None) -> str:
        path = f"/api/v1/namespaces/{self.team.namespace}/pods/{pod['metadata']['name']}/log"
        query = {"container": names.TRAINER, **({"sinceTime": since.isoformat()} if since else {})}
        try:
            return str(self.team.kube.fetch(path, query).read().decode(errors="replace"))
        except ApiException:
            return ""

    def logs(self) -> str:
        return "\n".join(f"--- {_index(pod)}\n{self.log(pod)[-1500:]}" for pod in self.team.pods(self.name))

    def trains(self, count: int, since: datetime | None = None) -> bool:
        """Return whether so many ranks wrote steps, at last of one world that is as large."""
        steps = [line for pod in self.pods().values() for line in self.log(pod, since).splitlines()[-1:]]
        return sum(line.startswith("step ") and line.endswith(f" of {count}") for line in steps) == count

    def strike(self, how: str, index: int) -> None:
        """Strike a member. A pod that has just ended cannot be struck: then the one that follows it."""
        until = time.monotonic() + 60
        while True:
            pod = self.pods().get(index)
            try:
                if pod is not None:
                    return self._strike(how, pod)
            except (ApiException, DynamicApiError, subprocess.CalledProcessError, KeyError):
                if time.monotonic() > until or pod == self.pods().get(index):
                    raise
            assert time.monotonic() < until, f"no pod of node {index}: {self.status()}"
            time.sleep(0.5)

    def _strike(self, how: str, pod: Object) -> None:
        name, namespace = pod["metadata"]["name"], self.team.namespace
        kubectl = ["kubectl", "--kubeconfig", str(self.team.kube.kubeconfig), "-n", namespace]
        if how == "delete":
            words = ["delete", "pod", name, "--grace-period=0", "--force"]
            subprocess.run([*kubectl, *words], check=True, timeout=60, capture_output=True)
        elif how == "evict":
            eviction = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": namespace},
            }
            pods = self.team.kube.resource("v1", "Pod")
            pods.subresources["eviction"].create(body=eviction, name=name, namespace=namespace)
        elif how == "freeze":
            words = ["exec", name, "-c", names.TRAINER, "--", "bash", "-c", "kill -STOP -1"]
            subprocess.run([*kubectl, *words], check=False, timeout=60, capture_output=True)
        else:
            self._cut(pod)

    def _cut(self, pod: Object) -> None:
        """Drop all that a pod sends and receives, in its own network namespace."""
        statuses = {each["name"]: each["containerID"] for each in pod["status"]["containerStatuses"]}
        container = statuses[names.TRAINER].partition("://")[2]
        drop = f"""pid=$(ctr --namespace k8s.io task ls | awk '$1 == "{container}" {{print $2}}')
        for chain in INPUT OUTPUT; do nsenter -t $pid -n iptables -I $chain -j DROP; done"""
        subprocess.run(["docker", "exec", pod["spec"]["nodeName"], "sh", "-ec", drop], check=True, timeout=60)


@pytest.fixture
def elastic(team: Team, controller: Controller, cluster: Ready) -> Iterator[Callable[[str], Members]]:
    """Return elastic(name) → the members of a job of 1 to 3 nodes, with a c10d rendezvous at node 0."""
    small = {"cpus": "200m", "memory": "512Mi"}
    team.queue("elastic", nodeResources=small, overrides={"configMaps": ["elastic"]})
    data = {"add.py": PROGRAM}
    metadata = {"name": "elastic", "namespace": team.namespace}
    team.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    volumes = {**CODE, "additionalVolumes": [{"name": "code", "configMap": {"name": "elastic"}}]}
    job_names: list[str] = []

    def start(name: str) -> Members:
        sizes = {"numNodes": None, "minNodes": 1, "maxNodes": NODES}
        reliability = {"maxRestarts": 5}
        team.job(name, jobQueue="elastic", volumes=volumes, reliability=reliability, **sizes)
        job_names.append(name)
        return Members(team, cluster, name)

    yield start
    for name in job_names:
        team.kube.delete(names.API, names.JOB_KIND, name, team.namespace)


def _index(pod: Object) -> int:
    return int(pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"])


@pytest.mark.parametrize("moment", ["before", "training", "restart"])
@pytest.mark.parametrize(
    ("how", "index"), list(itertools.product(["delete", "evict", "freeze", "cut"], range(NODES)))
)
def test_a_member_is_lost(
    elastic: Callable[[str], Members], team: Team, how: str, index: int, moment: str
) -> None:
    """Contract: whichever member is lost, and whenever, the job trains on with at least two nodes, or has
    failed with a message, within SECONDS. In training, with the index, also whatever global rank it had.
    A node 0 that is cut off has the rendezvous, and trains on alone (minNodes: 1).
    """
    least = 1 if (how, index) == ("cut", 0) else 2
    members = elastic(f"{how}-{index}-{moment}")
    members.until("all pods run", lambda: _running(members) == NODES, 180)
    if moment != "before":
        members.until("training", lambda: members.trains(NODES), 240)
    if moment == "restart":
        members.strike("delete", (index + 1) % NODES)
        time.sleep(5)
    members.strike(how, index)
    struck = datetime.now(UTC)
    later = struck + timedelta(seconds=SINCE)

    def settled() -> bool:
        status = members.status()
        if status.get("phase") == "Failed":
            assert status.get("message"), status
            return True
        return any(members.trains(count, later) for count in range(least, NODES + 1))

    members.until(f"settled after {how} of {index} {moment}", settled)
    print(f"{how} {index} {moment}: {(datetime.now(UTC) - struck).total_seconds():.0f} s", members.status())


def _running(members: Members) -> int:
    return sum(pod["status"].get("phase") == "Running" for pod in members.pods().values())
