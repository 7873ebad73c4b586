"""A folder is synced into the pods of a real cluster by exec, and torchrun's ranks run it in these pods.

The pods are those of a plain Indexed Job with a supervisor, on both nodes: the sync needs no controller.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.core.kubernetes import Kube
from harness.provision.cluster import Ready
from harness.torchrun_sync import pod_script
from harness.torchrun_sync.channel import ContainerGone, PodRefused
from harness.torchrun_sync.exec_channel import opening
from harness.torchrun_sync.job_sync import Fleet
from harness.torchrun_sync.pods import CONTROL, STORE, Target, wait
from harness.torchrun_sync.tree import Walker

pytestmark = [pytest.mark.controller, pytest.mark.nightly]
PODS = 2
MOUNT = "/app"
SECONDS = 180.0
TRAIN = """
import os, time
import torch.distributed as dist

dist.init_process_group("gloo")
seen = [None] * dist.get_world_size()
dist.all_gather_object(seen, (os.environ["TORCHRUN_TREE"], os.environ["TORCHRUN_GENERATION"]))
print("CODE", NAME, "of", len(seen), "ranks, trees", len(set(seen)), flush=True)
if STAY:
    time.sleep(600)
dist.barrier()
raise SystemExit(CODE)
"""
"""Ranks that meet, and say which code each of them runs."""
TORCHRUN = (
    "exec torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-id=$TORCHRUN_RUN_ID"
    " --rdzv-endpoint=$JOB-0.$JOB:29500"
    ' --rdzv-conf="is_host=$([ "$JOB_COMPLETION_INDEX" = 0 ] && echo true || echo false)" train.py'
)


@dataclass(frozen=True)
class Job:
    """The supervised pods of one test."""

    kube: Kube
    namespace: str
    name: str
    targets: list[Target]

    def fleet(self) -> Fleet:
        return Fleet({each.pod: each.open(self.kube, self.namespace) for each in self.targets})

    def pods(self) -> dict[str, dict[str, Any]]:
        found = self.kube.objects("v1", "Pod", self.namespace, f"job-name={self.name}")
        return {pod["metadata"]["name"]: pod for pod in found}

    def log(self, pod: str) -> str:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        return str(self.kube.fetch(path).read().decode())

    def says(self, text: str) -> None:
        """Wait until every pod has logged this."""
        until = time.monotonic() + SECONDS
        while missing := [each.pod for each in self.targets if text not in self.log(each.pod)]:
            assert time.monotonic() < until, f"{missing} never said {text!r}: {self.log(missing[0])}"
            time.sleep(0.2)

    def exit_codes(self) -> set[int]:
        """Wait until every pod has ended. Return the exit codes of their containers."""

        def done(pods: dict[str, dict[str, Any]]) -> str | None:
            phases = {pod["status"]["phase"] for pod in pods.values()}
            return None if phases <= {"Succeeded", "Failed"} else f"{phases}"

        pods = self.kube.wait(
            "the pods' end",
            "v1",
            "Pod",
            done,
            seconds=SECONDS,
            namespace=self.namespace,
            selector=f"job-name={self.name}",
        )
        return {
            pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] for pod in pods.values()
        }


@pytest.fixture
def job(cluster: Ready) -> Iterator[Callable[[str], Job]]:
    """Return job(command) → Job: pods that run, one on each node, and wait for their code."""
    kube, namespace = cluster.kube, f"sync-{secrets.token_hex(3)}"
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})

    def start(command: str) -> Job:
        name = f"sync-{secrets.token_hex(3)}"
        for document in manifests(name, namespace, cluster.worker.tag, command):
            kube.apply(document)
        targets = wait(kube, namespace, f"job-name={name}", PODS, SECONDS, lambda: None)
        return Job(kube, namespace, name, targets)

    yield start
    kube.delete("v1", "Namespace", namespace)


def manifests(name: str, namespace: str, image: str, command: str) -> list[dict[str, Any]]:
    """Return a headless Service and an Indexed Job whose pods have a folder for the code of their own."""
    words = pod_script.supervised(["bash", "-c", command], f"{MOUNT}/{STORE}", CONTROL)
    where = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}}
    container = {
        "name": "trainer",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": words,
        "workingDir": MOUNT,
        "env": [{"name": "JOB", "value": name}, {"name": "TORCHRUN_RUN_ID", "valueFrom": where}],
        "volumeMounts": [{"name": "workspace", "mountPath": MOUNT}],
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"job-name": name}},
    }
    pod = {
        "subdomain": name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "topologySpreadConstraints": [spread],
        "containers": [container],
        "volumes": [{"name": "workspace", "emptyDir": {}}],
    }
    spec = {"completionMode": "Indexed", "completions": PODS, "parallelism": PODS, "backoffLimitPerIndex": 0}
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"job-name": name},
        "ports": [{"name": "rendezvous", "port": 29500}],
    }
    metadata = {"name": name, "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {**spec, "template": {"spec": pod}},
        },
    ]


def write(here: Path, name: str, *, stay: bool = False, code: int = 0) -> None:
    text = TRAIN.replace("NAME", repr(name)).replace("STAY", repr(stay)).replace("CODE)", f"{code})")
    (here / "train.py").write_text(text)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    top = tmp_path / "here"
    top.mkdir()
    return top


def test_ranks_meet_again_with_new_code_in_same_pods(job: Callable[[str], Job], here: Path) -> None:
    """Contract: edit, sync: all ranks meet with the new code, none with the old one. The pods are the same,
    and the exit code of the last code is the pods'."""
    write(here, "one", stay=True)
    running = job(TORCHRUN)
    before = {name: pod["metadata"]["uid"] for name, pod in running.pods().items()}
    walker = Walker(here)
    with running.fleet() as fleet:
        first = fleet.sync(walker)
        running.says("CODE one of 2 ranks, trees 1")
        write(here, "two", code=0)
        second = fleet.sync(walker)
        running.says("CODE two of 2 ranks, trees 1")
    assert running.exit_codes() == {0}
    pods = running.pods()
    assert {name: pod["metadata"]["uid"] for name, pod in pods.items()} == before
    assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == PODS
    assert {pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods.values()} == {0}
    assert (first.generation, second.generation, second.restarted) == (1, 2, PODS)


def test_wrong_code_is_repaired_in_the_same_pods(job: Callable[[str], Job], here: Path) -> None:
    """Contract: while somebody watches, a failure leaves the pods; the code that ends them says how."""
    write(here, "wrong", code=3)
    running = job(TORCHRUN)
    walker = Walker(here)
    with running.fleet() as fleet:
        fleet.sync(walker, patience=SECONDS)
        running.says("waiting for new code")
        write(here, "also wrong", code=4)
        fleet.sync(walker)
    assert running.exit_codes() == {1}  # torchrun's own, for a rank that failed
    assert all("CODE also wrong" in running.log(each.pod) for each in running.targets)


def test_only_changes_travel_into_every_pod(job: Callable[[str], Job], here: Path) -> None:
    """Contract: by exec too, megabytes come whole and are sent once."""
    running = job("until [ -f done ]; do sleep 0.1; done; sha256sum big.bin pkg/*.py; ls -A")
    (here / "big.bin").write_bytes(os.urandom(24 << 20))
    (here / "pkg").mkdir()
    (here / "pkg" / "a.py").write_text("a")
    (here / "gone.py").write_text("")
    walker = Walker(here)
    with running.fleet() as fleet:
        first = fleet.sync(walker)
        (here / "pkg" / "a.py").write_text("A")
        (here / "gone.py").unlink()
        (here / "done").write_text("")
        second = fleet.sync(walker)
    assert running.exit_codes() == {0}
    assert first.sent == PODS * ((24 << 20) + 1)
    assert (second.files, second.sent) == (PODS, PODS)  # an empty file was there
    digests = {entry["path"]: entry["sha256"] for entry in walker.scan().entries if "sha256" in entry}
    for each in running.targets:
        log = running.log(each.pod)
        assert f"{digests['big.bin']}  big.bin" in log
        assert f"{digests['pkg/a.py']}  pkg/a.py" in log
        assert "gone.py" not in log.split("starting bash")[-1]


def test_a_sync_goes_on_when_its_exec_is_cut(job: Callable[[str], Job], here: Path) -> None:
    """Contract: a connection that is lost in the middle is made again, and what came is not sent again."""
    running = job("sha256sum big.bin")
    (here / "big.bin").write_bytes(os.urandom(24 << 20))
    cut: list[str] = []
    starts = {each.pod: each.open(running.kube, running.namespace) for each in running.targets}

    def cutting(pod: str) -> Any:
        def start(session: str, deadline: Any) -> Any:
            channel = starts[pod](session, deadline)
            if pod not in cut:
                cut.append(pod)
                send, sent = channel.send, 0

                def counting(data: bytes, deadline: Any) -> None:
                    nonlocal sent
                    sent += len(data)
                    if sent > 20 << 20:
                        channel.close()
                    send(data, deadline)

                channel.send = counting  # type: ignore[method-assign]
            return channel

        return start

    with Fleet({pod: cutting(pod) for pod in starts}) as fleet:
        done = fleet.sync(Walker(here))
    assert running.exit_codes() == {0}
    assert done.reconnects == PODS
    assert done.sent < PODS * (44 << 20)


def test_what_cannot_be_synced_is_said(job: Callable[[str], Job], here: Path) -> None:
    """Contract: a container without python3, a pod that is gone and a job that ends are named as such."""
    running = job("sleep 600")
    kube, namespace, pod = running.kube, running.namespace, running.targets[0].pod
    (here / "a").write_text("")
    gone = {"pod-x": opening(kube, namespace, "pod-x", "trainer", f"{MOUNT}/{STORE}", CONTROL)}
    with Fleet(gone) as fleet, pytest.raises(ContainerGone, match="HTTP 404"):
        fleet.sync(Walker(here))
    other = {pod: opening(kube, namespace, pod, "sidecar", f"{MOUNT}/{STORE}", CONTROL)}
    with Fleet(other) as fleet, pytest.raises(PodRefused, match=r"HTTP 400.*sidecar"):
        fleet.sync(Walker(here))
    nowhere = {pod: opening(kube, namespace, pod, "trainer", "/proc/none/.torchrun", CONTROL)}
    with Fleet(nowhere) as fleet, pytest.raises(PodRefused, match="/proc/none"):
        fleet.sync(Walker(here))
    with pytest.raises(UsageError, match="it failed"):
        wait(kube, namespace, "job-name=none", 1, SECONDS, lambda: "it failed")
