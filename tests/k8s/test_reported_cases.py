"""Scripts of public bug reports on a real cluster, each with its right answer (reported/cases.yaml).

A case with an equivalent test is not here: pods that share process ids (test_shared_pids.py), a GPU that is
shared or in MIG mode (test_gpu_nodes.py), `nvidia-smi` with warnings (unit/workers/acceptance/
test_smi_corpus.py), a firewall that rejects (the fault network-firewall-reject, integration/
test_netcheck_firewall.py), data with half a surrogate pair or a byte order mark (unit/launch/
test_training.py::test_data_is_checked_before_the_launch), a copied run (test_training_container.py::
test_a_copied_run_is_continued), code sync by git's rules (test_torchrun_cli.py::
test_the_pods_have_what_git_has), charts of NaN, infinity and of a run that goes back (integration/
test_tracker_charts.py), bars and colours on the page of logs (integration/test_tracker_logs.py).
test_reported_manifests.py has the cases that begin with objects of Kubernetes.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core import processes
from harness.evidence.io.reader import Bundle
from harness.fixtures.plugin import Launch
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready

pytestmark = pytest.mark.nightly
FOLDER = Path(__file__).parent / "reported"
CASES: dict[str, Any] = yaml.safe_load((FOLDER / "cases.yaml").read_text())
WORKER = "grep -lz ^LOCAL_RANK= /proc/[0-9]*/environ | cut -d/ -f3 | xargs kill -9"
WAIT_SECONDS = 240.0


def job(name: str, case: dict[str, Any]) -> JobFile:
    """Return a case's job, which differs from the main job in its script and environment."""
    return JobFile.load(Path("jobs/multinode.yaml")).with_(
        name=name, run=case["run"], envs=case.get("env", {})
    )


@contextmanager
def killed(cluster: Ready, settings: Any, pod: str | None) -> Iterator[None]:
    """Kill the worker in a pod by its name's part, as soon as its log has a step."""
    ended = threading.Event()

    def strike() -> None:
        while not ended.wait(0.5):
            for found in cluster.kube.objects("v1", "Pod"):
                metadata = found["metadata"]
                if str(pod) in metadata["name"] and metadata["namespace"].startswith("e2e-"):
                    words = [settings.kubectl_bin, "--kubeconfig", str(cluster.cluster.kubeconfig)]
                    words += ["-n", metadata["namespace"]]
                    log = processes.run([*words, "logs", metadata["name"]], timeout=30, check=False).stdout
                    if "step 5" in log:
                        inside = ["exec", metadata["name"], "--", "sh", "-c", WORKER]
                        processes.run([*words, *inside], timeout=60, check=False)
                        return

    thread = threading.Thread(target=strike, daemon=True)
    if pod:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if pod:
            thread.join(60)


@pytest.mark.parametrize("name", CASES)
def test_a_reported_script_gets_its_right_answer(
    launch: Launch, cluster: Ready, harness_settings: Any, name: str
) -> None:
    case = CASES[name]
    expect, wait = case["expect"], float(case.get("wait", WAIT_SECONDS))
    began = time.monotonic()
    with killed(cluster, harness_settings, case.get("kill")):
        outcome = launch(job(name, case), scripts=FOLDER, wait_seconds=wait)
    verdict = outcome.verdict
    told = f"{verdict.verdict} {verdict.cause} {verdict.ranks} after {time.monotonic() - began:.0f} s: "
    told += f"{verdict.explanation} [{outcome.bundle}]"
    print(name, told)
    assert verdict.verdict == expect["verdict"], told
    if "causes" in expect:
        assert verdict.cause in expect["causes"], told
    if "ranks" in expect:
        assert verdict.ranks == expect["ranks"], told
    assert re.search(expect.get("says", ""), verdict.explanation, re.DOTALL), told
    if "rank_count" in expect:
        assert len(Bundle.open(outcome.bundle).ranks()) == expect["rank_count"], told
