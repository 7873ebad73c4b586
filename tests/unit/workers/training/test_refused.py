"""training.sh when the trainer refuses its options or data, with a torchrun of a few lines."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "harness" / "workers" / "training" / "training.sh"
RESTARTS = """#!/bin/bash
echo started >>"$OUT_DIR/starts"
touch "$TRAINING_REFUSED"
trap 'exit 1' TERM
while :; do sleep 0.1; done
"""
"""As torchrun does with restarts left: it starts the ranks again, and again."""


def node(folder: Path, torchrun: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run one node to its end."""
    (folder / "torchrun").write_text(torchrun)
    (folder / "torchrun").chmod(0o755)
    environment = {
        **{"PATH": f"{folder}:{os.environ['PATH']}", "HOSTNAME": "node-0", "NNODES": "2", "RESTARTS": "3"},
        **{
            "MASTER_ADDR": "node-0",
            "RUN_ID": "run",
            "DATA_DIR": str(folder),
            "OUT_DIR": str(folder),
            "TMPDIR": str(folder),
        },
        **more,
    }
    return subprocess.run(
        ["sh", SCRIPT, "-m", "x"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "torchrun", [RESTARTS, '#!/bin/bash\necho started >>"$OUT_DIR/starts"\ntouch "$TRAINING_REFUSED"\nexit 1']
)
def test_an_error_of_usage_ends_the_node_at_once(tmp_path: Path, torchrun: str) -> None:
    """Contract: exit code 2 within seconds, one start, and the line that points at the reason."""
    began = time.monotonic()
    done = node(tmp_path, torchrun)
    assert done.returncode == 2
    assert (tmp_path / "starts").read_text() == "started\n"
    assert "is not started again" in done.stdout
    assert "once more" not in done.stdout
    assert time.monotonic() - began < 20


def test_other_nodes_of_launch_end_with_reason(tmp_path: Path) -> None:
    """Contract: a refusal that only one rank sees, such as data that only its node lacks, ends all nodes."""
    waits = (
        "#!/bin/bash\ntrap 'exit 1' TERM\necho started >>\"$OUT_DIR/starts\"\nwhile :; do sleep 0.1; done\n"
    )
    refuses = '#!/bin/bash\necho "rank 1: no data" >"$TRAINING_REFUSED"\nexit 1\n'
    first = node(tmp_path, refuses, HARNESS_NONCE="n1")
    assert first.returncode == 2
    other = node(tmp_path, waits, HARNESS_NONCE="n1", NODE_RANK="1")
    assert other.returncode == 2
    assert "node 1: another node refuses its options or its data" in other.stdout
    assert other.stdout.rstrip().endswith("rank 1: no data")
    assert (tmp_path / "starts").read_text() == "started\n"


def test_a_refusal_of_an_earlier_launch_does_not_count(tmp_path: Path) -> None:
    """Contract: neither in a later launch, nor when the same manifests are applied again."""
    (tmp_path / ".refused-run-n1").write_text("rank 0: no data\n")
    for nonce in ("n2", ""):
        assert node(tmp_path, "#!/bin/sh\nexit 0\n", HARNESS_NONCE=nonce).returncode == 0
