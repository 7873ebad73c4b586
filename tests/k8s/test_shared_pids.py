"""Pods that share process ids with others: no process outside them is ever signalled, whatever ends the job.

On kind a node is a container, so a signal to everybody would end kubelet and containerd, not the machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.context import RunContext
from harness.core import processes
from harness.evidence.schema.bundle import Verdict
from harness.fixtures.plugin import Launch
from harness.launch.workload_file import load
from harness.launch.workloads.loader import of_manifest
from harness.provision.cluster import Ready
from harness.settings import Settings

pytestmark = pytest.mark.nightly
WAIT_SECONDS = 420.0
KILLED = "sleep 5; kill -9 $BASHPID"
LISTED = """for each in /proc/[0-9]*; do
  { read -r stat <$each/stat; read -r comm <$each/comm; } 2>/dev/null || continue
  set -- ${stat##*) }
  [ "$1" != Z ] && [ $comm != kubectl ] || continue
  [ "$2 $comm" = "0 sleep" ] || grep -qE '[.](service|scope)|kube' $each/cgroup 2>/dev/null || continue
  echo "${each#/proc/} ${20} $comm"
done
systemctl show kubelet containerd -p Id,MainPID,NRestarts"""
"""Processes of services and pods, and the one that the test starts: number, time of its start, name.

Without what `docker exec` and whoever calls kubectl in a node run for a moment. Then the two services.
"""


def docker(*words: str) -> str:
    return processes.run(["docker", *words], timeout=120).stdout


class Outside:
    """What runs on the nodes before a launch, and must run afterwards.

    Two looks tell lasting processes from probes. Beside them is one that looks like another job's rank.
    """

    def __init__(self, nodes: list[str]) -> None:
        self._nodes = nodes
        for node in nodes:
            docker("exec", "-d", "-e", "LOCAL_RANK=0", node, "sleep", "3600")
        first = self._look()
        time.sleep(3)
        second = self._look()
        self._before = {node: first[node] & second[node] for node in nodes}
        assert all(any("kubelet" in line for line in lines) for lines in self._before.values())
        assert all(any(line.endswith(" sleep") for line in lines) for lines in self._before.values())

    def _look(self) -> dict[str, set[str]]:
        return {node: set(docker("exec", node, "bash", "-c", LISTED).splitlines()) for node in self._nodes}

    def assert_untouched(self) -> None:
        after = self._look()
        assert {node: sorted(lines - after[node]) for node, lines in self._before.items()} == {
            node: [] for node in self._nodes
        }


@pytest.fixture
def outside(cluster: Ready) -> Iterator[Outside]:
    """Every process of the workers' nodes that is there before the test is there after it."""
    names = [node["metadata"]["name"] for node in cluster.kube.objects("v1", "Node")]
    found = Outside([name for name in names if "control-plane" not in name])
    yield found
    found.assert_untouched()


def documents(kind: str) -> list[Any]:
    return list(yaml.safe_load_all(Path(f"manifests/{kind}.yaml").read_text()))


def killed(verdict: Verdict) -> None:
    """The rank that was killed is named, and nobody else."""
    result = (verdict.verdict, verdict.cause, verdict.ranks)
    assert result == ("FAIL", "rank.killed", [1]), verdict.explanation


def test_a_healthy_statefulset_with_host_pid_passes(launch: Launch, outside: Outside) -> None:
    """Its containers are held, so the harness ends them by SIGTERM."""
    found = documents("statefulset")
    found[1]["spec"]["template"]["spec"]["hostPID"] = True
    verdict = launch(of_manifest(found, "x"), wait_seconds=WAIT_SECONDS).verdict
    assert verdict.verdict == "PASS", verdict.explanation


def test_a_konduktor_rank_killed_with_host_pid_is_named(
    launch: Launch, outside: Outside, tmp_path: Path
) -> None:
    """The init ends with the container's own processes, not with the node's."""
    config, job = tmp_path / "konduktor.yaml", tmp_path / "job.yaml"
    config.write_text("kubernetes: {pod_config: {spec: {hostPID: true}}}\n")
    manifest: dict[str, Any] = yaml.safe_load(Path("jobs/multinode.yaml").read_text())
    manifest["run"] = f'if [ "$RANK" = 1 ]; then {KILLED}; fi\nsleep 20\n'
    job.write_text(yaml.safe_dump(manifest))
    killed(launch(load(job), konduktor_config=config, wait_seconds=WAIT_SECONDS).verdict)


def test_a_killed_rank_beside_a_helper_container_is_named(
    launch: Launch, cluster: Ready, outside: Outside
) -> None:
    """The helper never ends, and is none of the container's processes."""
    found = documents("indexed-job")
    pod = found[1]["spec"]["template"]["spec"]
    pod["shareProcessNamespace"] = True
    pod["containers"][0]["args"] = [f"if [ $JOB_COMPLETION_INDEX = 1 ]; then {KILLED}; fi; sleep 60\n"]
    helper = {"name": "profiler", "image": cluster.worker.tag, "command": ["sleep", "infinity"]}
    pod["containers"].append(helper)
    killed(launch(of_manifest(found, "x"), wait_seconds=WAIT_SECONDS).verdict)


@pytest.fixture
def installed(cluster: Ready, harness_settings: Settings) -> None:
    """The torchrun controller of this checkout: its installation replaces the pods of another one."""
    context = RunContext(settings=harness_settings, progress=print)
    workload = of_manifest(documents("torchrun-job"), "x")
    for image in workload.provide(context):
        cluster.kind.provide_image(image, context)
    workload.install(cluster.kube, context)


@pytest.mark.parametrize("field", ["shareProcessNamespace", "hostPID"])
def test_a_healthy_torchrun_job_in_a_shared_namespace_passes(
    launch: Launch, installed: None, outside: Outside, field: str
) -> None:
    """Its recorder writes to its own container's log: process 1 is the pause container's, or the node's."""
    found = documents("torchrun-job")
    found[0]["spec"]["podTemplate"] = {"spec": {field: True, "containers": [{"name": "trainer"}]}}
    found[0]["spec"]["privileges"] = [field] if field == "hostPID" else []
    verdict = launch(of_manifest(found, "x"), wait_seconds=WAIT_SECONDS).verdict
    assert verdict.verdict == "PASS", verdict.explanation
