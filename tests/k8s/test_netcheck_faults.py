"""Why ranks cannot meet, provoked in the pods' world of a real cluster: the right cause and the right rank.

Every fault of harness/faults/cases whose target is `network` is injected into a job of four pods. Faults run
beside each other, with healthy jobs between them. `make test` injects those that are not nightly.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fault_matrix import each, faults_of, is_right, progress, started
from kubernetes import client

from harness import run as running
from harness.context import RunContext
from harness.core.errors import WaitError
from harness.evidence.io.reader import Bundle
from harness.faults.catalogue_run import CONTROL, Matrix
from harness.faults.fault_file import Job
from harness.faults.fault_job import variant
from harness.fixtures.plugin import Launch
from harness.launch.konduktor.job_file import JobFile
from harness.launch.workload_file import load
from harness.provision.cluster import Ready
from harness.report.finalize import Outcome
from harness.settings import Settings

pytestmark = pytest.mark.netcheck
FAULTS = faults_of("network")
HEALTHY = CONTROL.model_copy(update={"job": Job(manifest="netcheck.yaml")})
MAIN = JobFile.load(Path("jobs/multinode.yaml"))
HARNESS = Path(sys.executable).with_name("harness")
PARALLEL = 1
"""Pods of several jobs that start together on a slow machine wait too long for DNS and for each other."""


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, cluster: Ready, harness_settings: Settings) -> Iterator[Matrix]:
    """The faults of the selected tests, all started at once."""
    with started(request, cluster, harness_settings, PARALLEL, control=HEALTHY) as matrix:
        yield matrix


@each(FAULTS)
def test_fault_of_network_is_named_with_its_ranks(
    matrix: Matrix, name: str, record_property: Callable[[str, object], None]
) -> None:
    """Contract: verdict, cause and ranks are those of its file, and a healthy job passes afterwards."""
    is_right(matrix, name, record_property)


def test_the_manifests_of_the_guide_train(launch: Launch) -> None:
    """Contract: netcheck, then torchrun over two pods with two ranks each; every point is in the one run."""
    outcome = launch(load(Path("manifests/networking.yaml")), wait_seconds=150.0)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    bundle = Bundle.open(outcome.bundle)
    assert sorted(bundle.ranks()) == [0, 1, 2, 3]
    logs = [log.read_text() for log in (outcome.bundle / "logs").glob("training-*.log")]
    assert ["netcheck: OK" in log for log in logs] == [True, True]


@pytest.fixture
def waiting(
    cluster: Ready, harness_settings: Settings, tmp_path: Path
) -> Iterator[tuple[Path, Future[Outcome]]]:
    """A job whose four pods run and wait: its bundle, and what becomes of it."""
    manifest = tmp_path / "job.yaml"
    manifest.write_text(variant(MAIN, Job(manifest="netcheck.yaml", before="GATE=1\n")))
    settings = harness_settings.model_copy(update={"runs_dir": tmp_path / "runs", "wait_seconds": 300.0})
    context = RunContext(settings=settings, progress=progress)
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(running.launch, load(manifest), context, cluster)
        latest = tmp_path / "runs" / "latest"
        until("four pods wait", lambda: len(list(latest.glob("logs/*.log"))) == 4, outcome)
        yield latest.resolve(), outcome


def until(awaited: str, seen: Callable[[], bool], outcome: Future[Outcome], seconds: float = 90) -> None:
    """Wait while the launch goes on. Raises WaitError."""
    deadline = time.monotonic() + seconds
    while not seen():
        if outcome.done() or time.monotonic() > deadline:
            raise WaitError(awaited, f"the launch has ended: {outcome.done()}", seconds)
        time.sleep(0.1)


def look(bundle: Path, settings: Settings, *arguments: str) -> dict[str, Any]:
    """Return what `harness netcheck RUN` says. Its exit code fits its verdict."""
    env = {**os.environ, "HARNESS_STATE_DIR": str(settings.state_dir.absolute())}
    command = [str(HARNESS), "netcheck", str(bundle), "--json", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == {"ok": 0, "failed": 1}[report["verdict"]]
    return report


def test_netcheck_looks_inside_a_job_that_waits(
    waiting: tuple[Path, Future[Outcome]], cluster: Ready, harness_settings: Settings
) -> None:
    """Contract: it sees that all pairs meet, then which rank lost its name; and the job goes on."""
    bundle, outcome = waiting
    report = look(bundle, harness_settings, "--rank", "1")
    assert (report["verdict"], report["rank"], [*report["rows"]]) == ("ok", 1, ["0", "1", "2", "3"])
    assert all(" is Running on " in state for state in report["pods"].values())
    assert {each["step"]: each["status"] for each in report["findings"]}["service"] == "ok"

    opened = Bundle.open(bundle)
    assert opened.manifest
    assert opened.manifest.launch
    namespace, pods = opened.manifest.launch.namespace, opened.pods()
    core = client.CoreV1Api(cluster.kube.api)
    core.patch_namespaced_pod(pods[2].name, namespace, {"metadata": {"labels": {"app": None}}})
    report = look(bundle, harness_settings)
    assert (report["verdict"], report["cause"], report["ranks"]) == ("failed", "service.selector", [2])

    core.patch_namespaced_pod(pods[2].name, namespace, {"metadata": {"labels": {"app": "netcheck"}}})
    target = ["--kubeconfig", str(cluster.kube.kubeconfig), "-n", namespace]
    for pod in pods.values():
        command = [harness_settings.kubectl_bin, *target, "exec", pod.name, "--", "touch", "/tmp/open"]
        subprocess.run(command, check=True, timeout=60)
    verdict = outcome.result(timeout=120).verdict
    assert verdict.verdict == "PASS", verdict.explanation
