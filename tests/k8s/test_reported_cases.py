"""Scripts of public bug reports on a real cluster, each with its right answer (reported/cases.yaml).

A case with an equivalent test is not here: an address of the rank's own pod (the fault
rendezvous-wrong-address), pods that share process ids (test_shared_pids.py), a GPU that is shared
(test_gpu_nodes.py) or in MIG mode (unit/launch/test_gpu_request.py), `nvidia-smi` with warnings
(unit/workers/acceptance/test_smi_corpus.py), a firewall that rejects (the fault network-firewall-reject,
integration/test_netcheck_firewall.py), data with half a surrogate pair or a byte order mark
(unit/launch/test_training.py), a copied run (test_training_container.py), code sync by git's rules
(test_torchrun_cli.py), charts of NaN, infinity and of a run that goes back
(integration/test_tracker_charts.py), bars and colours on the page of logs
(integration/test_tracker_logs.py), small shared memory and lost peers (unit/judge/test_lost_peers.py).
test_reported_manifests.py has the cases that begin with objects of Kubernetes.
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core import processes
from harness.evidence.io.reader import Bundle
from harness.fixtures.plugin import Launch
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.settings import Settings

pytestmark = pytest.mark.nightly
FOLDER = Path(__file__).parent / "reported"
CASES: dict[str, Any] = yaml.safe_load((FOLDER / "cases.yaml").read_text())
KILL = "for p in $(grep -lz ^LOCAL_RANK= /proc/[0-9]*/environ | cut -d/ -f3); do kill -9 $p; done"
WAIT_SECONDS = 240.0


def job(name: str, case: dict[str, Any]) -> JobFile:
    """Return a case's job, which differs from the main job in its script and environment."""
    return JobFile.load(Path("jobs/multinode.yaml")).with_(
        name=name, run=case["run"], envs=case.get("env", {})
    )


class Strike:
    """Kills the worker in a pod of a job as soon as its log has a step. Use it as a context manager."""

    def __init__(self, cluster: Ready, settings: Settings, job: str, pod: str) -> None:
        self._kube, self._settings, self._config = cluster.kube, settings, str(cluster.cluster.kubeconfig)
        self._job, self._pod, self._ended = job, pod, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.struck = ""

    def __enter__(self) -> Strike:
        if self._pod:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._pod:
            self._thread.join(90)

    def _watch(self) -> None:
        while not self.struck and not self._ended.wait(1):
            for found in self._kube.objects("v1", "Pod"):
                name, namespace = found["metadata"]["name"], found["metadata"]["namespace"]
                if name.startswith(self._job) and self._pod in name and self._kubectl(namespace, name):
                    self.struck = name

    def _kubectl(self, namespace: str, name: str) -> bool:
        """Kill the worker of a pod that has logged its first steps. Return whether it was killed."""
        words = [self._settings.kubectl_bin, "--kubeconfig", self._config, "-n", namespace]
        log = processes.run([*words, "logs", name], timeout=60, check=False)
        if "step 5" not in log.stdout:
            return False
        done = processes.run([*words, "exec", name, "--", "sh", "-c", KILL], timeout=60, check=False)
        print(f"  killed in {name}: {done.stdout}{done.stderr}")
        return True


@pytest.mark.parametrize("name", CASES)
def test_a_reported_script_gets_its_right_answer(
    launch: Launch, cluster: Ready, harness_settings: Settings, name: str
) -> None:
    case = CASES[name]
    expect, wait = case["expect"], float(case.get("wait", WAIT_SECONDS))
    began = time.monotonic()
    with Strike(cluster, harness_settings, name, case.get("kill", "")) as strike:
        outcome = launch(job(name, case), scripts=FOLDER, wait_seconds=wait)
    assert case.get("kill", "") in strike.struck
    verdict = outcome.verdict
    summary = f"{verdict.verdict} {verdict.cause} {verdict.ranks} after {time.monotonic() - began:.0f} s: "
    summary += f"{verdict.explanation} [{outcome.bundle}]"
    print(name, summary)
    assert verdict.verdict == expect["verdict"], summary
    if "causes" in expect:
        assert verdict.cause in expect["causes"], summary
    if "ranks" in expect:
        assert verdict.ranks == expect["ranks"], summary
    assert re.search(expect.get("says", ""), verdict.explanation, re.DOTALL), summary
    if "rank_0_in" in expect:
        assert Bundle.open(outcome.bundle).ranks()[0].index == expect["rank_0_in"], summary
    if "rank_count" in expect:
        assert len(Bundle.open(outcome.bundle).ranks()) == expect["rank_count"], summary
