"""`konduktor logs` and an attached `konduktor launch` on a cluster with VictoriaLogs."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from logged_launch import LoggedLaunch, logging_cluster, remove

from harness.cli import logs
from harness.core.errors import HarnessError, UsageError
from harness.provision.cluster import Ready
from harness.provision.controllers import victoria_logs
from harness.provision.images.victoria_logs import LogImages
from harness.settings import Settings

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]
LINE = re.compile(r"\(job_name=\S+ worker_id=(\d+)\)(?:\x1b\[0m)? (.*)")
"""A line of `konduktor logs`: the worker, and the line that its pod printed."""
KLOG = re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [^\]]+\] ")
"""What vlagent keeps as fields of a line as klog and torchrun write it."""
STEPS = 12


def test_a_namespace_that_somebody_else_made_is_left_alone(
    cluster: Ready, harness_settings: Settings
) -> None:
    """It is found before anything is applied, and stays as it was."""
    kube = cluster.kube
    assert kube.get("v1", "Namespace", victoria_logs.NAMESPACE) is None, "this session's cluster has one"
    body = {"metadata": {"name": victoria_logs.NAMESPACE}}
    kube.resource("v1", "Namespace").create(body=body, field_manager="somebody")
    try:
        with (
            pytest.raises(UsageError, match="but this namespace already exists"),
            logging_cluster(cluster, harness_settings),
        ):
            pytest.fail("it was applied")
        assert kube.objects("apps/v1", "Deployment", victoria_logs.NAMESPACE) == []
    finally:
        remove(kube)


def test_what_does_not_serve_is_named(cluster: Ready) -> None:
    """A server that ends at once has a cause of its own: a launch does not need it."""
    ends_at_once = cluster.worker.tag
    images = LogImages(ends_at_once, ends_at_once, local=True)
    try:
        with pytest.raises(HarnessError, match=victoria_logs.SERVER) as raised:
            victoria_logs.install(cluster.kube, images, ends_at_once, seconds=15)
        assert raised.value.cause == "controllers.logs_not_ready"
    finally:
        remove(cluster.kube)


@pytest.mark.parametrize("rank", [0, 1])
def test_konduktor_logs_prints_every_line_of_one_rank(logged_launch: LoggedLaunch, rank: int) -> None:
    """Its lines are those that the harness recorded from the kubelet, and none of the other rank's."""
    words = ["logs", logged_launch.job, "--no-follow", *(["-N", str(rank)] if rank else [])]
    command = logged_launch.konduktor(*words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    printed = [match for match in map(LINE.search, done.stdout.splitlines()) if match]
    assert {match[1] for match in printed} == {str(rank)}, done.stdout + done.stderr
    texts = [match[2].strip() for match in printed]
    lines = logs.lines(logged_launch.bundle, rank)
    recorded = [KLOG.sub("", line.split(" | ", 2)[2].strip()) for line in lines]
    assert len(recorded) > 5
    assert [text for text in recorded if text] == [text for text in texts if text in set(recorded) - {""}]


def test_an_attached_launch_streams(logged_launch: LoggedLaunch, cluster: Ready, tmp_path: Path) -> None:
    """The first line of a job is on the terminal before the job has written its last."""
    job = {
        "name": "attached",
        "num_nodes": 1,
        "resources": {
            "cpus": 0.2,
            "memory": 1,
            "image_id": cluster.worker.tag,
            "labels": {"kueue.x-k8s.io/queue-name": "user-queue"},
        },
        "run": f'for step in $(seq {STEPS}); do echo "step $step at $(date +%s)"; sleep 2; done\n'
        """echo '{"loss": 0.5, "step": 12}'\n""",
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    command = logged_launch.konduktor("launch", "-y", "-s", str(tmp_path / "job.yaml"))
    seen: dict[str, float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="")
            if (match := LINE.search(line)) is not None:
                seen.setdefault(match[2].strip(), time.time())
    assert process.returncode == 0
    steps = {
        text.split()[1]: (float(text.split()[-1]), at) for text, at in seen.items() if text.startswith("step")
    }
    assert len(steps) == STEPS, seen
    assert steps["1"][1] < steps[str(STEPS)][0], "the first line came after the last one was written"
    assert '{"loss": "0.5", "step": "12"}' in seen
