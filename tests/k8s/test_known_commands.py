"""The table of docs/use.md: each command of the multinode guide, as it is typed here, on a kept cluster."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import ROOT
from logged_launch import BIN, LoggedLaunch

from harness.core import processes
from harness.settings import Settings

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

GUIDE = (
    "./tests/k8s/run_multinode_test.sh",
    'export PLUTO_API_TOKEN="…"',
    "PLUTO_RUN_ID",
    "KEEP_CLUSTER=true ./tests/k8s/run_multinode_test.sh",
    "pip install konduktor-nightly",
    "konduktor launch multinode-job.yaml",
    "konduktor queue",
    "konduktor status",
    "konduktor logs pluto-multinode-e2e-test",
    "kubectl logs -l jobset.sigs.k8s.io/jobset-name=pluto-multinode-e2e-test --all-containers=true",
    "kubectl get workloads -A",
    "kubectl describe clusterqueue cluster-queue",
    "kubectl get pods -A",
    "kubectl get jobsets",
    "kubectl get workloads",
)
"""Every command of the guide, in its words."""
FILES = (
    "multinode_worker.py",
    "multinode-job.yaml",
    "kueue-config.yaml",
    "Dockerfile",
    "run_multinode_test.sh",
    "k8s-multinode-test.yml",
)
PASS = r"✓ PASS"
EXPECTED = {
    "./tests/k8s/run_multinode_test.sh": PASS,
    "PLUTO_RUN_ID=my-run harness run jobs/multinode.yaml": f"my-run-[0-9a-f]+[^$]*{PASS}",
    "KEEP_CLUSTER=true harness run jobs/multinode.yaml": PASS,
    "harness konduktor --version": r"konduktor, version \S+",
    "harness run jobs/multinode.yaml": PASS,
    "harness status": "NAMESPACE  JobSet JOB  Completed",
    "harness konduktor status --all-users": "JOB[^\n]*COMPLETED",
    "harness konduktor logs JOB --no-follow": r"worker_id=0\)[^\n]*",
    "harness konduktor logs JOB --no-follow -N 1": r"worker_id=1\)[^\n]*",
    "harness logs --rank 1": r"1 \| [\d:.]+ \| ",
    "kubectl logs -n NAMESPACE -l jobset.sigs.k8s.io/jobset-name=JOB --all-containers=true": r"\S",
    "kubectl get workloads -A": "NAMESPACE +jobset-JOB",
    "kubectl describe clusterqueue cluster-queue": "Name: +cluster-queue",
    "kubectl get pods -A": "NAMESPACE +JOB-workers-0-1-[^\n]*Completed",
    "kubectl get jobsets -A": "NAMESPACE +JOB +Completed",
    "kubectl get workloads -n NAMESPACE": "jobset-JOB",
}
"""What each command prints, as a regex. NAMESPACE and JOB stand for those of a launch."""
TRIED_ELSEWHERE = {'export PLUTO_API_TOKEN="…"': "test_hosted.py: with the key of a hosted server"}
REPLACED = {"my-run": f"my-run-{secrets.token_hex(4)}"}
"""What is replaced beside NAMESPACE and JOB: an id that an earlier session used is refused."""


def table(header: str) -> list[list[str]]:
    """Return the cells of a table of docs/use.md, by how its first row begins."""
    lines = (ROOT / "docs/use.md").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(header)) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return rows


ROWS = table("| in the guide | here |")
TYPED = [row[1].strip("`") for row in ROWS]


def test_table_has_every_command_and_file_of_guide() -> None:
    assert {row[0].strip("`") for row in ROWS} - {""} == set(GUIDE)
    files = table("| file in the guide |")
    assert [row[0].split("`")[1] for row in files] == list(FILES)
    paths = [path for row in files for path in re.findall(r"\]\(\.\./([^)]+)\)", row[1])]
    assert len(paths) == len(FILES)
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_every_command_of_the_table_is_tried() -> None:
    assert set(TYPED) == set(EXPECTED) | set(TRIED_ELSEWHERE)


@pytest.fixture(scope="module")
def shell(
    logged_launch: LoggedLaunch, harness_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """Return what runs a line in a shell whose cluster is this session's, as after `harness up`."""
    runs = tmp_path_factory.mktemp("runs")
    (runs / "latest").symlink_to(logged_launch.bundle.path.absolute())
    kubeconfig = harness_settings.state_dir / "clusters" / logged_launch.cluster / "kubeconfig"
    variables = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "KUBECONFIG": str(kubeconfig),
        "HARNESS_CLUSTER_NAME": logged_launch.cluster,
        "HARNESS_WORKERS": str(harness_settings.workers),
        "HARNESS_RUNS_DIR": str(runs),
        "COLUMNS": "200",
    }
    kept = {"KEEP_CLUSTER": "true"} if harness_settings.keep_cluster else {}
    environment = processes.environment({**variables, **kept}, without=("PLUTO_", "KEEP_CLUSTER"))

    def run(line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        output = done.stdout + done.stderr
        print(f"$ {line}\n{output}")
        assert done.returncode == 0, output
        return re.sub(r"\x1b\[[0-9;]*m", "", output)

    return run


def with_names(text: str, launch: LoggedLaunch) -> str:
    """Return a command, or a regex, with the namespace and the job of a launch."""
    return text.replace("NAMESPACE", launch.namespace).replace("JOB", launch.job)


# The lines that look at the launch come first: a cluster keeps the namespaces of the newest launches.
@pytest.mark.parametrize("line", sorted(EXPECTED, key=lambda line: EXPECTED[line].endswith(PASS)))
def test_command_of_table_does_what_table_promises(
    line: str, logged_launch: LoggedLaunch, shell: Callable[[str], str]
) -> None:
    typed = with_names(line, logged_launch)
    for word, other in REPLACED.items():
        typed = typed.replace(word, other)
    output = shell(typed)
    assert re.search(with_names(EXPECTED[line], logged_launch), output), output


def test_a_namespace_that_is_not_there_is_one_sentence(logged_launch: LoggedLaunch, tmp_path: Path) -> None:
    """konduktor itself would print nothing and exit with 0."""
    command = [str(BIN / "harness"), "konduktor", "--cluster-name", logged_launch.cluster]
    done = subprocess.run(
        [*command, "--namespace", "nowhere", "logs", "x"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 64
    assert "expected namespace nowhere on the cluster" in done.stderr
    assert "Traceback" not in done.stderr
