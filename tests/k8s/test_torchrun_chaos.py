"""Controllers that are killed at random moments, twice there, and without an API server: nothing is lost."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import pytest
from test_torchrun_controller import MET
from torchrun_team import Controller, Team

from harness.core.kubernetes import Object
from harness.provision.cluster import Ready
from harness.torchrun_controller.api import names

pytestmark = [pytest.mark.controller, pytest.mark.nightly, pytest.mark.timeout(1800)]
KILLS = 20
JOBS = 10
SEED = int(os.environ.get("HARNESS_CHAOS_SEED", "0")) or random.randrange(1, 2**31)
"""Printed with the test, so that a failure can be tried again."""


class Uids:
    """Every JobSet and Pod that was seen of a job, by UID: of each JobSet there is one for ever."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.jobsets: dict[str, set[str]] = {}

    def look(self) -> None:
        for jobset in self.team.jobsets():
            self.jobsets.setdefault(jobset["metadata"]["name"], set()).add(jobset["metadata"]["uid"])


def job_uids(pods: list[Object]) -> set[str]:
    return {owner["uid"] for pod in pods for owner in pod["metadata"]["ownerReferences"]}


def test_killed_at_random_moments(team: Team, controller: Controller, tmp_path: Path) -> None:
    """Contract: at whatever moments, every job has one JobSet, one attempt of two pods, its right end."""
    print(f"HARNESS_CHAOS_SEED={SEED}")
    chance = random.Random(SEED)
    controllers = [controller, Controller(controller.kubeconfig, team.namespace, tmp_path / "log")]
    controllers[1].start()
    seen = Uids(team)
    team.queue()
    job, end = 0, {}
    for kill in range(KILLS):
        if kill % 2 == 0 and job < JOBS:
            name = f"job-{job}"
            end[name] = chance.choice(["Succeeded", "Succeeded", "Cancelled", "Failed"])
            never = {"reliability": {"restartPolicy": "Never"}}
            failing = {"env": [{"name": "FAILING_RANK", "value": "1"}], **never}
            team.job(name, **(failing if end[name] == "Failed" else {}))
            job += 1
        for name, ends in end.items():
            if ends == "Cancelled" and chance.random() < 0.5:
                team.change(name, cancel=True)
        time.sleep(chance.uniform(0, 6))
        seen.look()
        struck = chance.choice(controllers)
        struck.kill()
        struck.start()
    for name, ends in end.items():
        if ends == "Cancelled":
            team.change(name, cancel=True)
    for name, ends in end.items():
        found = team.until_status(name, f"{name} {ends}", _over, 400)["status"]
        # What had succeeded before it was cancelled has succeeded.
        assert found["phase"] in ({ends, "Succeeded"} if ends == "Cancelled" else {ends}), (name, found)
        if found["phase"] == "Succeeded":
            assert team.printed(name) == MET
            assert len(team.pods(name)) == 2
            assert len(job_uids(team.pods(name))) == 1
            assert found["restarts"] == 0
    seen.look()
    assert {name: len(uids) for name, uids in seen.jobsets.items() if len(uids) > 1} == {}
    assert controllers[1].stop() == 0


def _over(job: Object) -> bool:
    return (job.get("status") or {}).get("phase") in ("Succeeded", "Failed", "TimedOut", "Cancelled")


def test_api_server_is_away(team: Team, controller: Controller, cluster: Ready) -> None:
    """Contract: while nobody answers nothing is decided; afterwards the job ends as it would have."""
    team.queue()
    team.job("away", env=[{"name": "STEPS", "value": "60"}])
    before = team.until("away", "Running")
    node = next(name for name in cluster.kind.nodes() if name.endswith("control-plane"))
    with controller.kept():
        for _ in range(2):
            subprocess.run(["docker", "pause", node], check=True, timeout=60)
            try:
                time.sleep(25)  # longer than the Lease: the controller must take it again
            finally:
                subprocess.run(["docker", "unpause", node], check=True, timeout=60)
            team.job("next", env=[{"name": "STEPS", "value": "5"}])
            team.until("next", "Succeeded", 300)
            team.kube.delete(names.API, names.JOB_KIND, "next", team.namespace)
        ended = team.until("away", "Succeeded", 300)
    assert ended["status"]["jobID"] == before["status"]["jobID"]
    assert ended["status"]["restarts"] == 0


def test_node_dies_in_between(team: Team, controller: Controller, cluster: Ready) -> None:
    """Contract: a node that ends takes the attempt with it; the job begins again on what is left, whole."""
    team.queue()
    team.job("node", env=[{"name": "STEPS", "value": "100"}], reliability={"maxRestarts": 5})
    team.until("node", "Running")
    taken = {pod["spec"]["nodeName"] for pod in team.pods("node")}
    node = next(name for name in cluster.kind.nodes() if name in taken and "control-plane" not in name)
    subprocess.run(["docker", "restart", "-t", "0", node], check=True, timeout=120)
    ended = team.until("node", "Succeeded", 900)
    assert ended["status"]["restarts"] >= 1
    assert team.printed("node") == MET
