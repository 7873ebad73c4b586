"""training.sh when its pod is told to end, in a real shell with a torchrun of a few lines."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "harness" / "workers" / "training" / "training.sh"


@pytest.mark.parametrize(
    ("torchrun", "source", "until"),
    [
        ("echo ready; trap 'exit 5' TERM; while :; do sleep 0.02; done", "0", "ready"),
        ("exit 1", "0", "once more"),  # then it waits a second
        ("exit 1", "1", "waits"),  # for node 0, which makes the texts
    ],
)
def test_sigterm_ends_a_node(tmp_path: Path, torchrun: str, source: str, until: str) -> None:
    """Contract: a pod that is told to end ends, whatever it waits for. A shell without a trap does not hear
    the signal as process 1, and costs the whole grace period.
    """
    (tmp_path / "torchrun").write_text(f"#!/bin/bash\n{torchrun}\n")
    # The loop that waits for texts sleeps 0.2 s: the first time it says so.
    (tmp_path / "sleep").write_text('#!/bin/sh\n[ "$1" != 0.2 ] || echo waits\nexec /bin/sleep "$1"\n')
    for name in ("torchrun", "sleep"):
        (tmp_path / name).chmod(0o755)
    environment = {
        **{"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOSTNAME": "node-1", "NNODES": "2"},
        **{"MASTER_ADDR": "node-0", "RUN_ID": "run", "TRAINING_SOURCE": source},
        **{"DATA_DIR": str(tmp_path), "OUT_DIR": str(tmp_path)},
    }
    with subprocess.Popen(
        ["sh", SCRIPT, "-m", "x"], stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    ) as running:
        assert running.stdout is not None
        assert any(until in line for line in running.stdout)
        running.terminate()
        assert running.wait(timeout=30) == 143


def test_restart_kills_remaining_ranks_of_this_node_only(tmp_path: Path) -> None:
    """Contract: ranks that outlive their torchrun are killed, and ranks of other trainings are not."""
    (tmp_path / "torchrun").write_text(
        '#!/bin/bash\n[ ! -e "$OUT_DIR/rank" ] || exit 0\nLOCAL_RANK=0 sleep 600 >/dev/null &\n'
        'echo $! >"$OUT_DIR/rank"\nexit 1\n'
    )
    (tmp_path / "torchrun").chmod(0o755)
    environment = {
        **{"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOSTNAME": "node-0", "NNODES": "1"},
        **{"MASTER_ADDR": "node-0", "RUN_ID": "run", "DATA_DIR": str(tmp_path), "OUT_DIR": str(tmp_path)},
        "TMPDIR": str(tmp_path),
    }
    with subprocess.Popen(["sleep", "600"], env={**os.environ, "LOCAL_RANK": "0"}) as other:
        try:
            subprocess.run(["sh", SCRIPT, "-m", "x"], env=environment, cwd=tmp_path, check=True, timeout=60)
            assert other.poll() is None
        finally:
            other.kill()
    rank = Path("/proc") / (tmp_path / "rank").read_text().strip() / "stat"
    assert not rank.exists() or rank.read_text().rpartition(")")[2].split()[0] == "Z"
