"""How many ranks a pod of somebody else's job has: from its command, its environment or torchrun's log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.attach.rank_count import agreed, of_pod, reported, whole_order
from harness.evidence.torchrun_logs import LoggedRanks, logged

GPUS = {"limits": {"nvidia.com/gpu": "8"}}


def count(command: str, *, resources: dict[str, Any] | None = None, nodes: int = 2, **env: str) -> int | None:
    variables = [{"name": name, "value": value} for name, value in env.items()]
    container = {
        "name": "main",
        "command": ["bash", "-c", command],
        "env": variables,
        "resources": resources or {},
    }
    return of_pod({"containers": [container]}, "main", nodes).per_pod


@pytest.mark.parametrize(
    ("command", "more", "ranks"),
    [
        ("torchrun --nnodes=2 --nproc-per-node=4 train.py", {}, 4),
        ("torchrun --nproc_per_node 8 train.py", {}, 8),
        ("torchrun --nproc-per-node=$GPUS train.py", {"GPUS": "4"}, 4),
        ("torchrun --nproc-per-node=${GPUS:-2} train.py", {}, 2),
        ("torchrun --nproc-per-node=$(GPUS) train.py", {"GPUS": "3"}, 3),
        ("torchrun --nproc-per-node=$GPUS train.py", {}, None),
        ("torchrun --nproc-per-node=$NUM_GPUS_PER_NODE train.py", {"NUM_GPUS_PER_NODE": "0"}, None),
        ("torchrun --nproc-per-node=gpu train.py", {"resources": GPUS}, 8),
        ("torchrun --nproc-per-node=gpu train.py", {}, None),
        ("torchrun --nnodes=2 train.py", {}, 1),
        ("python -m torch.distributed.run train.py", {}, 1),
        ("torchrun train.py", {"PET_NPROC_PER_NODE": "auto", "resources": GPUS}, 8),
        ("python train.py", {"WORLD_SIZE": "8"}, 4),
        ("python train.py", {"WORLD_SIZE": "3"}, None),
        ("accelerate launch --num_processes 16 train.py", {}, 8),
        ("mpirun -np 8 python train.py", {"WORLD_SIZE": "2"}, None),
        ("python train.py", {}, None),
        ("my-torchrun-wrapper train.py", {}, None),
    ],
)
def test_the_number_of_ranks_in_a_pod(command, more, ranks):
    """Contract: it is known only where the spec has it; a guess is None."""
    assert count(command, **more) == ranks


def lines(log: Path) -> list[bytes]:
    return log.read_bytes().splitlines(keepends=True)


def test_torchrun_logs_its_ranks(tmp_path: Path):
    """Contract: the last rendezvous in the log counts, with the order that c10d chose."""
    log = tmp_path / "log"
    block = "[I] Rendezvous complete\n  group_rank={g}\n  global_ranks=[{r}]\n  global_world_sizes=[4, 4]\n"
    log.write_text(block.format(g=0, r="0, 1") + block.format(g=1, r="2, 3"))
    assert logged(lines(log)) == LoggedRanks(1, (2, 3), 4)
    log.write_text("step 1\n")
    assert logged(lines(log)) is None


def test_logs_agree_only_on_one_whole_world():
    """Contract: ranks of two worlds, or of only some pods, prove no number."""
    pair = {"0": LoggedRanks(1, (2, 3), 4), "1": LoggedRanks(0, (0, 1), 4)}
    found = agreed(pair, 2)
    assert found is not None
    assert found.per_pod == 2
    assert agreed(pair, 3) is None
    assert agreed({**pair, "1": LoggedRanks(0, (2, 3), 4)}, 2) is None
    assert agreed({"0": LoggedRanks(0, (0,), 1), "1": LoggedRanks(0, (0,), 1)}, 2) is None


REPORT = """Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_00:42:08
  host      : broken-node-0-0.broken
  rank      : {rank} (local_rank: {local})
  exitcode  : 3 (pid: 47)
"""


def test_a_failure_report_shows_the_place_of_its_pod(tmp_path) -> None:
    """Contract: under c10d, torchrun numbers pods as they arrive; its report names the global rank."""
    log = tmp_path / "log"
    log.write_text("step 1\n")
    assert reported(lines(log), 1) is None
    log.write_text(REPORT.format(rank=0, local=0) + REPORT.format(rank=13, local=5))
    assert reported(lines(log), 8) == 1
    assert reported(lines(log), 6) is None


def test_the_order_of_ranks_where_some_logs_show_it() -> None:
    """Contract: the other pods get the remaining places; logs that contradict each other show nothing."""
    assert whole_order({0: 1}, 2) == {0: 1, 1: 0}
    assert whole_order({0: 2, 2: 1}, 3) == {0: 2, 1: 0, 2: 1}
    assert whole_order({0: 0}, 3) is None
    assert whole_order({}, 3) is None
    assert whole_order({0: 1, 1: 1}, 3) is None
    assert whole_order({0: 7}, 3) is None
