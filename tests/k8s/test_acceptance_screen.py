"""The screening finds one bad node of five by real collectives, whatever the node does, and no other.

Five agents and the coordinator run in one container, over its loopback device, on CPUs.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.acceptance, pytest.mark.nightly, pytest.mark.timeout(900)]

PACKAGE = Path(__file__).parents[2] / "harness" / "workers" / "acceptance"
FAULT = Path(__file__).parent / "acceptance_fault"
NODES, BAD = 5, 3
START = """
cd /workspace
for node in 4 3 2 1 0; do
  [ "$node" = "$ABSENT" ] && continue
  path=
  [ "$node" = "$BAD" ] && path=/fault
  PYTHONPATH=$path python3 -m acceptance.screen --nodes 5 --node-rank $node --device cpu --deadline 60 \\
    --iterations 2 --bytes 262144 --trial-deadline "$DEADLINE" --report-dir /reports/$node \\
    > /reports/$node.log 2>&1 &
  pids="$pids $node:$!"
done
for pair in $pids; do wait ${pair#*:}; echo "${pair%:*} $?"; done
"""


@dataclass(frozen=True)
class Screened:
    """What a screening left."""

    report: dict[str, Any]
    codes: dict[int, int]
    log: str

    def checks(self, verdict: str) -> list[dict[str, Any]]:
        """Return the checks of one verdict."""
        return [check for check in self.report["checks"] if check["verdict"] == verdict]


@pytest.fixture(scope="session")
def torch_image() -> str:
    """Return the newest worker image on this machine: PyTorch with gloo."""
    command = ["docker", "images", "--format", "{{.ID}}", "pluto-multinode-test"]
    images = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()
    if not images:
        pytest.fail("there is no worker image: `harness up` builds it")
    return images[0]


def screen(image: str, folder: Path, **environment: object) -> Screened:
    """Screen five nodes in one container."""
    words = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
    mounts = {FAULT: "/fault:ro", folder: "/reports"}
    words += [word for path, there in mounts.items() for word in ("-v", f"{path}:{there}")]
    words += ["-e", "PYTHONDONTWRITEBYTECODE=1", "-e", "OMP_NUM_THREADS=1"]
    # Links of the package, as frames.py, lead out of the mounted folder: copy what they point at first.
    copied = folder / "acceptance"
    subprocess.run(["cp", "-rL", PACKAGE, copied], check=True, timeout=60)
    words += ["-v", f"{copied}:/workspace/acceptance:ro"]
    done = subprocess.run(
        ["docker", "run", "--rm", *words, "--entrypoint", "bash", image, "-c", START],
        capture_output=True,
        text=True,
        timeout=840,
        check=True,
    )
    codes = {int(line.split()[0]): int(line.split()[1]) for line in done.stdout.splitlines()}
    log = (folder / "0.log").read_text()
    path = folder / "0" / "screen" / "ddp_tests_result.json"
    assert path.exists(), log
    return Screened(json.loads(path.read_text()), codes, log)


def test_healthy_nodes_pass(torch_image: str, tmp_path: Path) -> None:
    """Every pair and all together pass, and nobody is accused."""
    seen = screen(torch_image, tmp_path, DEADLINE=120)
    assert seen.report["verdict"] == "PASS", seen.log
    assert set(seen.codes.values()) == {0}
    assert len(seen.report["pairs"]) == NODES * (NODES - 1) // 2


@pytest.mark.parametrize("fault", ["wrong", "slow", "died", "hung"])
def test_the_bad_node_is_accused_and_no_other(torch_image: str, tmp_path: Path, fault: str) -> None:
    """Whatever its all-reduce does: rank 0 and the bad node's own pod fail, the others do not."""
    seen = screen(torch_image, tmp_path, BAD=BAD, ACCEPTANCE_FAULT=fault, DEADLINE=60)
    failed = seen.checks("FAIL")
    assert [(check["id"], check["ranks"], check["cause"]) for check in failed] == [
        ("screen.node", [BAD], "node.bad")
    ], seen.log
    assert not seen.checks("UNKNOWN"), seen.log
    assert seen.codes == {0: 1, 1: 0, 2: 0, BAD: 1, 4: 0}
    bad = {(pair["a"], pair["b"]) for pair in seen.report["pairs"] if pair["verdict"] == "FAIL"}
    assert bad == {(min(node, BAD), max(node, BAD)) for node in range(NODES) if node != BAD}


def test_a_node_without_an_agent_is_unknown(torch_image: str, tmp_path: Path) -> None:
    """It is no pass, and no accusation; the others are tested all the same."""
    seen = screen(torch_image, tmp_path, ABSENT=4, DEADLINE=120)
    assert [(check["id"], check["ranks"]) for check in seen.checks("UNKNOWN")] == [("screen.nodes", [4])]
    assert not seen.checks("FAIL")
    assert seen.codes[0] == 2
