"""What ranks run in: the one that differs is accused."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netcheck_facts import FACTS

from harness.workers.netcheck.surroundings import SHM_PER_PROCESS, compare, facts


def accused(
    of: dict[int, Any], offsets: dict[int, tuple[float, float]] | None = None, processes: int = 1
) -> list[tuple]:  # type: ignore[type-arg]
    return [(f.cause, f.ranks) for f in compare(of, offsets or {}, processes) if f.status == "failed"]


def ranks(**odd: Any) -> dict[int, Any]:
    return {0: FACTS, 1: FACTS, 2: FACTS, 3: {**FACTS, **odd}}


@pytest.mark.parametrize("name", ["python", "torch", "nccl"])
def test_a_rank_with_another_version_is_accused(name: str) -> None:
    assert accused(ranks(**{name: "1.0"})) == [(f"versions.{name}", (3,))]


def test_two_that_differ_are_both_accused() -> None:
    assert accused({0: FACTS, 1: {**FACTS, "torch": "2.8.0"}}) == [("versions.torch", (0, 1))]


@pytest.mark.parametrize(
    ("size", "processes", "small"), [(64 << 20, 1, False), (64 << 20, 8, True), (64 << 10, 1, True)]
)
def test_shared_memory_too_small_for_its_processes_is_accused(size: int, processes: int, small: bool) -> None:
    assert accused(ranks(shm=size), processes=processes) == ([("shm.small", (3,))] if small else [])
    assert SHM_PER_PROCESS * 4 == 64 << 20  # a container's usual size is enough for four


def test_no_shared_memory_is_unknown() -> None:
    assert [f.status for f in compare(ranks(shm=None), {})] == ["unknown", "ok"]


def test_locked_memory_counts_where_infiniband_is() -> None:
    assert accused(ranks(memlock=65536)) == []
    assert accused(ranks(memlock=65536, infiniband=["mlx5_0"])) == [("memlock.low", (3,))]


@given(st.integers(0, 3), st.floats(10, 1e6), st.booleans())
def test_the_clock_that_is_off_is_named(rank: int, seconds: float, ahead: bool) -> None:
    """Contract: also when it is rank 0, to which the offsets are measured."""
    clock = {r: (seconds if ahead else -seconds) if r == rank else 0.0 for r in range(4)}
    offsets = {r: (clock[r] - clock[0], 0.01) for r in range(1, 4)}
    assert accused(dict.fromkeys(range(4), FACTS), offsets) == [("clock.offset", (rank,))]


@given(st.floats(-4, 4), st.floats(0, 1))
def test_a_clock_that_is_about_right(seconds: float, error: float) -> None:
    assert (
        accused(dict.fromkeys(range(4), FACTS), {1: (seconds, error), 2: (0.0, error), 3: (0.0, error)}) == []
    )


def test_a_slow_answer_proves_no_offset() -> None:
    """Half of the round trip is the error of the measurement."""
    assert accused({0: FACTS, 1: FACTS, 2: FACTS}, {1: (8.0, 6.0), 2: (0.0, 0.1)}) == []


def test_facts_of_this_process(tmp_path: Any) -> None:
    assert facts()["shm"] > 0
    assert facts(str(tmp_path / "absent"))["shm"] is None
    assert facts()["torch"] == ""  # no PyTorch where the tests run


def test_versions_are_read_without_running_pth_code(tmp_path: Path) -> None:
    """Contract: in a virtual environment under -S, whatever lies in its .pth files."""
    packages = (
        tmp_path / "env" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    )
    venv.create(tmp_path / "env")
    (packages / "hook.pth").write_text("import sys; sys.exit('a hook ran')\n")
    (packages / "torch-9.9.dist-info").mkdir()
    (packages / "torch-9.9.dist-info" / "METADATA").write_text("Name: torch\nVersion: 9.9\n")
    code = "from netcheck import surroundings as s; s.find_packages(); print(s.facts()['torch'])"
    words = [str(tmp_path / "env" / "bin" / "python"), "-S", "-c", code]
    env = {"PYTHONPATH": "harness/workers"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "9.9\n", done.stderr
