"""Interruptions that the faults (harness/faults/cases/harness-*.yaml) do not cover.

They are runs that end early, a cluster that is somebody else's or kept, and a cluster of one node. Clusters
here have a single node, because a second one would show nothing more and cost time.
"""

from __future__ import annotations

import json
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness_command import Harness, containers, environment, harness, until_container

from harness.context import RunContext
from harness.provision.images.stack import resolve
from harness.provision.kind.cluster import KindCluster
from harness.settings import load

JOB = "jobs/multinode.yaml"
CLUSTER = "pluto-e2e-int"
OTHERS = b"apiVersion: v1\nkind: Config\ncurrent-context: precious\n"
"""A kubeconfig of the user's own."""


def arguments(cluster: str) -> tuple[str, ...]:
    return ("--cluster-name", cluster, "--workers", "0")


def interrupted(run: Harness, by: str, *stages: str) -> None:
    """Check that an interrupted run is UNKNOWN, leaves no process behind, and has a whole bundle."""
    assert run.end() == 2, run.stderr + run.stdout
    verdict, manifest = run.verdict, run.manifest
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.interrupted"), verdict.explanation
    assert f"stopped by {by} in the stage" in verdict.explanation
    assert all(stage in verdict.explanation for stage in stages), verdict.explanation
    assert manifest.interrupted == by
    assert manifest.ended_at is not None
    assert run.left_behind() == []


def gone(run: Harness, cluster: str) -> None:
    assert containers(cluster) == []
    assert not (Path(run.env["HARNESS_STATE_DIR"]) / "clusters" / cluster).exists()


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path)


# -- before there is a cluster ----------------------------------------------------------------------------
def test_interrupted_again_and_again_the_cluster_is_still_known(env: dict[str, str]) -> None:
    """Each signal skips one more step of the clean-up. `harness down` then removes what is left."""
    cluster = "pluto-e2e-int-b"
    with Harness("run", JOB, *arguments(cluster), "--fresh", env=env) as run:
        run.until_stage("cluster")
        until_container(cluster)
        for message in ("keeping the nodes' logs", "deleting cluster", "interrupt again"):
            run.interrupt()
            run.until(message)
        run.interrupt()
        interrupted(run, "SIGINT", "cluster", "delete cluster")
    assert "still exists: remove it with `harness down" in run.stderr
    assert containers(cluster)
    assert harness("down", "--cluster-name", cluster, env=env).process.returncode == 0
    gone(run, cluster)


@pytest.mark.nightly
def test_what_sigkill_left_does_not_stop_next_run(env: dict[str, str]) -> None:
    """Nobody cleaned up, and the nodes were stopped since, as by a reboot. The next run removes that cluster.

    In every `make test` the fault harness-sigkill-next-run does so with a launch in place of a cluster.
    """
    cluster = "pluto-e2e-int-e"
    with Harness("run", JOB, *arguments(cluster), env=env) as run:
        run.until_stage("controllers")
        run.interrupt(signal.SIGKILL)
        run.end()
    subprocess.run(["docker", "kill", *containers(cluster)], check=True, capture_output=True)
    again = harness("run", JOB, *arguments(cluster), env=env)
    assert again.process.returncode == 0, again.stderr + again.stdout
    assert "a killed run left it behind" in again.stderr
    gone(again, cluster)


def test_creation_that_fails_is_judged_and_leaves_its_log(env: dict[str, str], tmp_path: Path) -> None:
    """kind gets a node image that does not exist."""
    kind = tmp_path / "kind"
    kind.write_text(
        '#!/bin/sh\n[ "$1" = create ] && exec kind "$@" --image registry.invalid/no/node:v1\nexec kind "$@"\n'
    )
    kind.chmod(kind.stat().st_mode | stat.S_IXUSR)
    cluster = "pluto-e2e-int-d"
    run = harness("run", JOB, *arguments(cluster), "--fresh", env={**env, "HARNESS_KIND_BIN": str(kind)})
    assert run.process.returncode == 1, run.stderr + run.stdout
    assert (run.verdict.verdict, run.verdict.cause) == ("FAIL", "cluster.node_image")
    assert "registry.invalid/no/node:v1" in (run.bundle.path / "kind" / "create.log").read_text()
    assert run.left_behind() == []
    gone(run, cluster)


def test_cluster_of_somebody_else_is_neither_used_nor_deleted(env: dict[str, str]) -> None:
    """A single container with kind's label counts as a cluster for kind. It is never started."""
    cluster = "pluto-e2e-int-e"
    image = resolve(RunContext(settings=load(), progress=lambda text: None)).node_image
    label = ("--label", f"io.x-k8s.kind.cluster={cluster}", "--label", "io.x-k8s.kind.role=control-plane")
    create = ["docker", "create", "--name", f"{cluster}-control-plane", *label, image]
    theirs = subprocess.run(create, capture_output=True, text=True, check=True).stdout.strip()
    try:
        run = harness("run", JOB, *arguments(cluster), env=env)
        assert run.process.returncode == 64, run.stderr
        assert "the harness did not create it" in run.stderr
        assert run.verdict.cause == "cluster.name_taken"
        up = harness("up", *arguments(cluster), env=env)
        assert up.process.returncode == 64, up.stderr
        down = harness("down", "--cluster-name", cluster, env=env)
        assert "not removed, because the harness did not create it or it does not exist" in down.stdout
        assert theirs.startswith(containers(cluster)[0])
    finally:
        subprocess.run(["docker", "rm", "-f", theirs], capture_output=True, check=True)


# -- on a cluster that is kept ----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a user who has a kubeconfig, and whose single-node cluster stays."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / "kubeconfig").write_bytes(OTHERS)
    env = environment(folder, KUBECONFIG=str(folder / "kubeconfig"), KEEP_CLUSTER="true")
    try:
        up = harness("up", *arguments(CLUSTER), env=env)
        assert up.process.returncode == 0, up.stderr
        yield env
    finally:
        down = harness("down", "--cluster-name", CLUSTER, env=env)
    assert down.process.returncode == 0, down.stderr
    assert containers(CLUSTER) == []
    assert (folder / "kubeconfig").read_bytes() == OTHERS, "the user's kubeconfig was written"
    assert not (folder / "home" / ".kube").exists()


def created_at(env: dict[str, str]) -> str:
    state = KindCluster(load(cluster_name=CLUSTER, state_dir=Path(env["HARNESS_STATE_DIR"]))).state()
    assert state is not None
    assert state.phase == "ready"
    return state.created_at


@pytest.mark.e2e
def test_one_node_is_enough_and_kept_cluster_is_reused(kept: dict[str, str]) -> None:
    """Two pods that request a whole CPU each share what the control plane leaves of one machine.

    Nothing is built, created or installed for the second run.
    """
    since = created_at(kept)
    run = harness("run", JOB, *arguments(CLUSTER), "--json", env=kept)
    verdict = json.loads(run.stdout)
    assert (run.process.returncode, verdict["verdict"]) == (0, "PASS"), run.stderr + run.stdout
    done = {stage.name for stage in run.manifest.stages}
    assert not done & {"controller images to nodes", "queues", "delete cluster"}, done
    for message in (": reused", "images are already loaded"):
        assert message in run.stderr
    for message in ("building", "saving", "creating 1 control plane", "starting 1 control plane"):
        assert message not in run.stderr
    assert created_at(kept) == since
    request = run.manifest.cluster.get("cpu_request")
    states = [seen.object for history in run.bundle.objects("pod").values() for seen in history]
    assert states
    for pod in states:
        resources = pod["spec"]["containers"][0]["resources"]
        assert resources["limits"]["cpu"] == "1"
        assert resources["requests"]["cpu"] == (request or "1")


@pytest.mark.nightly
def test_a_job_too_large_for_one_node_is_reported(kept: dict[str, str], tmp_path: Path) -> None:
    """CPU requests are lowered to share a node, but never to hide that a job is larger than any node."""
    job = tmp_path / "job.yaml"
    job.write_text(Path(JOB).read_text().replace("cpus: 1", "cpus: 64"))
    run = harness("run", str(job), *arguments(CLUSTER), env=kept)
    assert run.process.returncode == 1, run.stderr
    assert run.verdict.cause == "admission.quota_exceeded", run.verdict.explanation
    assert "cpu_request" not in run.manifest.cluster
