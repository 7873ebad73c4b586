"""The bench of the torchrun controller fails when a figure leaves its range."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("torchrun_figures", BENCH / "torchrun_figures.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def arm(p50: float, p99: float, status_p99: float, requests: float, memory: float) -> dict[str, object]:
    return {
        "seconds": 100.0,
        "requests_per_job": requests,
        "own_requests_per_job": requests / 10,
        "to_jobset_seconds": {"p50": p50, "p99": p99},
        "to_told_seconds": {"p50": 0.0, "p99": status_p99},
        "memory_mib": memory,
    }


def test_figure_that_leaves_its_range(figures: ModuleType) -> None:
    """Contract: a figure out of its range is named with both; one within says nothing."""
    result = {"torchrun": arm(1, 2, 3, 40, 50)}
    assert figures.left(result, {"torchrun.memory_mib": [0, 50]}) == []
    found = figures.left(
        result, {"torchrun.to_jobset_seconds.p99": [0, 1.9], "torchrun.memory_mib": [51, 60]}
    )
    assert found == [
        "torchrun.to_jobset_seconds.p99 is 2: expected 0 to 1.9",
        "torchrun.memory_mib is 50: expected 51 to 60",
    ]
    with pytest.raises(KeyError):
        figures.left(result, {"torchrun.not_measured": [0, 1]})


def test_ranges_are_of_figures_that_are_there(figures: ModuleType) -> None:
    """Contract: every key of the range file is measured, and a run twice as bad leaves each range."""
    ranges = tomllib.loads((BENCH / "torchrun_scale.toml").read_text())
    most = {path: bound for path, (_, bound) in ranges.items()}
    ours, theirs, floor = arm(4, 8, 3, 70, 80), arm(2, 4, 1, 40, 160), arm(0, 0, 0, 60, 1)
    result = {
        "torchrun": ours,
        "ratio_to_jobset": figures.ratio({"torchrun": ours, "floor": floor}, "torchrun", "floor"),
        "ratio_to_trainer": figures.beside(ours, theirs),
    }
    found = figures.left(result, {path: [most[path] + 10_000, most[path] + 20_000] for path in ranges})
    assert len(found) == len(ranges)
