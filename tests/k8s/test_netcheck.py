"""netcheck on a real cluster: four pods that can meet, and pods that cannot, with cause and rank.

These faults stay inside the pods. The others are files: harness/faults/cases/network-*.yaml.
"""

from __future__ import annotations

import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from harness.core.deadlines import Budget
from harness.core.kubernetes import Kube, Object
from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes.objects import COMPLETION_INDEX
from harness.fixtures.plugin import Launch
from harness.judge.cluster.netcheck import best, diagnoses
from harness.judge.context import Facts
from harness.launch.labels import NONCE_LABEL
from harness.launch.workloads.loader import of_manifest
from harness.launch.workloads.netcheck_job import NetcheckJob, job
from harness.provision.cluster import Ready

pytestmark = pytest.mark.netcheck
RUN = "exec sh /opt/harness/netcheck/netcheck.sh"
WAIT_SECONDS = 300.0
SHORTER = 120.0
"""For what is only known at netcheck's deadline, which is a part of the wait: no name exists."""


def changed(change: Callable[[Object, Object], None]) -> NetcheckJob:
    """Return the Job of `harness netcheck` with a changed Service or Job."""
    made = job(4)
    (service,), document = made.other_objects, made.document
    change(service, document)
    return NetcheckJob(document, (service,), made.source)


def in_rank(rank: int, words: str) -> NetcheckJob:
    """Return the Job in which one rank does something before its netcheck."""

    def change(_: Object, document: Object) -> None:
        container = document["spec"]["template"]["spec"]["containers"][0]
        script = f'if [ "$JOB_COMPLETION_INDEX" = {rank} ]; then {words}; fi; {RUN}'
        container["command"] = ["sh", "-c", script]

    return changed(change)


def seconds_to_a_cause(bundle: Path) -> float:
    """Return how long netcheck took until it had its verdict, by its own clock."""
    first = best(diagnoses(Facts(Bundle.open(bundle)).case).values())
    assert first is not None
    return first.diagnosis.seconds


@pytest.fixture
def own_image(cluster: Ready) -> Iterator[str]:
    """An image that has its name in the local Docker alone."""
    name = f"users-own/image:{secrets.token_hex(4)}"
    subprocess.run(["docker", "tag", cluster.worker.tag, name], check=True, timeout=60)
    yield name
    subprocess.run(["docker", "rmi", name], check=True, timeout=60)


@pytest.mark.nightly
def test_an_image_that_the_local_docker_alone_has(launch: Launch, own_image: str) -> None:
    """Contract: the nodes of kind get it."""
    outcome = launch(job(2, own_image), wait_seconds=WAIT_SECONDS)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation


def test_four_pods_that_can_meet(launch: Launch) -> None:
    """Contract: every pair of pods is proved from inside, nothing of Pluto is judged, and it says so."""
    outcome = launch(job(4), wait_seconds=WAIT_SECONDS)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    said_ = {check.name: check.explanation for check in outcome.verdict.checks}
    assert "all 12 pairs of 4 pods" in said_["netcheck"]
    assert "run-exists" not in said_
    assert "This launch does not log with Pluto" in outcome.verdict.explanation
    records = [record for _, record in Bundle.open(outcome.bundle).netchecks()]
    assert len({record.pod for record in records}) == 4
    assert all(one.diagnosis.whole and one.diagnosis.verdict == "ok" for one in records)


def test_a_selector_that_matches_nothing(launch: Launch) -> None:
    """Contract: pods see that no name exists; only the API server says that the Service selects none."""

    def change(service: Object, _: Object) -> None:
        service["spec"]["selector"] = {"app": "trainer"}

    outcome = launch(changed(change), wait_seconds=SHORTER)
    seen = outcome.verdict
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "service.selector", [0, 1, 2, 3]), (
        seen.explanation
    )
    assert "app=trainer" in seen.explanation


def test_one_pod_with_another_world_size(launch: Launch) -> None:
    """Contract: the variable and the one rank that has it wrong are named, although all pairs are fine."""
    outcome = launch(in_rank(3, "export WORLD_SIZE=6"), wait_seconds=WAIT_SECONDS)
    seen = outcome.verdict
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "variables.world_size", [3]), seen.explanation
    assert "WORLD_SIZE=6, but 4 nodes" in seen.explanation
    assert seconds_to_a_cause(outcome.bundle) < Budget(WAIT_SECONDS).netcheck / 2, (
        "it is known long before the deadline"
    )


def test_a_filter_in_one_pod(launch: Launch, cluster: Ready) -> None:
    """Contract: connections to rank 2 get no answer, its own are fine: it is named, with the direction."""
    waiting = in_rank(2, "until [ -e /tmp/filtered ]; do sleep 0.1; done")
    with filtered(cluster.kube, rank=2, port=29501) as errors:
        outcome = launch(waiting, wait_seconds=WAIT_SECONDS)
    assert errors == []
    seen = outcome.verdict
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "tcp.filtered", [2]), seen.explanation
    assert "does not reach rank 2 (ingress)" in seen.explanation


def test_it_ends_a_job_before_anybody_waits(launch: Launch) -> None:
    """Contract: with --netcheck, ranks that cannot meet never start torchrun, and the same cause is named."""
    source = Path("manifests/indexed-job.yaml")
    service, document = yaml.safe_load_all(source.read_text())
    service["spec"]["selector"] = {"app": "other"}
    outcome = launch(of_manifest([service, document], str(source)), wait_seconds=SHORTER, netcheck=True)
    seen = outcome.verdict
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "service.selector", [0, 1]), seen.explanation
    bundle = Bundle.open(outcome.bundle)
    logs = "".join(path.read_text() for path in (bundle.path / "logs").glob("trainer-*.log"))
    assert "netcheck: FAILED" in logs
    assert "@exit1" in logs
    assert "@truth1" not in logs, "no rank started"


@contextmanager
def filtered(kube: Kube, rank: int, port: int) -> Iterator[list[str]]:
    """Drop what arrives for a port in one pod's network namespace, then let the pod go on."""
    errors: list[str] = []
    stop = threading.Event()

    def inject() -> None:
        try:
            pod = _running(kube, rank, stop)
            if pod is not None:
                _filter(pod, port)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=inject, daemon=True)
    thread.start()
    try:
        yield errors
    finally:
        stop.set()
        thread.join(30)


def _running(kube: Kube, rank: int, stop: threading.Event) -> Object | None:
    """Return the pod of a rank once its container runs. Pods of earlier launches have ended."""
    while not stop.is_set():
        for pod in kube.objects(
            "v1", "Pod", selector=f"{NONCE_LABEL},{COMPLETION_INDEX}={rank},app=netcheck"
        ):
            states = [one.get("state") or {} for one in pod["status"].get("containerStatuses") or []]
            if any("running" in state for state in states):
                return dict(pod)
        time.sleep(0.2)
    return None


def _filter(pod: Object, port: int) -> None:
    """A kind node is a container, and has the pod's process and its network namespace."""
    container = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    script = (
        f"pid=$(ctr --namespace k8s.io task ls | awk '$1 == \"{container}\" {{print $2}}') && "
        f"nsenter -t $pid -n iptables -I INPUT -p tcp --dport {port} -j DROP && "
        "nsenter -t $pid -m touch /tmp/filtered"
    )
    command = ["docker", "exec", pod["spec"]["nodeName"], "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr or done.stdout}")
