"""Limits calibrated with a good fleet: the fleet passes them, and a bad node hardly changes them."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from fleets import Node, changed, expected, healthy, records
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.judge.acceptance.calibrate import SHARE, Calibration, baselines, stable, toml
from harness.judge.acceptance.fleet import Fleet, fleet
from harness.workers.acceptance.limits import Limits, judged

SHIPPED = {"bundle": "20261123T030000Z-n0nce7f3a", "date": "2026-11-23"}


def judged_fleet(nodes: list[Node]) -> Fleet:
    return fleet(records(nodes), expected(nodes))


def limits(nodes: list[Node], folder: Path) -> Limits:
    """Return the shipped limits, and the limits computed from these nodes."""
    file = folder / "limits.toml"
    file.write_text(toml(baselines(judged_fleet(nodes)), **SHIPPED))
    return Limits.load(file)


def verdicts(nodes: list[Node], by: Limits) -> set[str]:
    """Compare the nodes' measurements with limits, as a pod does."""
    results = set()
    for node in nodes:
        for check in node.checks():
            if check.measured is not None:
                row = by.row(model=node.model, check=check.id)
                assert row is not None
                text = f"{check.measured}"
                results.add(judged(check.id, "COMPUTE", check.measured, check.unit, row, "x", text).verdict)
    return results


@settings(max_examples=30, deadline=None)
@given(scales=st.lists(st.floats(0.985, 1.015), min_size=4, max_size=8))
def test_a_healthy_fleet_passes_its_own_calibration(
    scales: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Contract: measurements within 1.5 % of their mean pass, without a WARN."""
    nodes = [Node(f"n{number}", 2, scale) for number, scale in enumerate(scales)]
    assert verdicts(nodes, limits(nodes, tmp_path_factory.mktemp("limits"))) == {"PASS"}


@pytest.mark.parametrize("scale", [0.01, 0.5, 0.85, 1.3, 10.0])
def test_one_outlier_of_eight_does_not_move_it(scale: float, tmp_path: Path) -> None:
    """Contract: a limit from eight nodes changes by at most one millionth, whatever one of the nodes
    measures."""
    good, bad = healthy(8), changed(healthy(8), 3, scale=scale)
    rows = {row.check: row.value for row in baselines(judged_fleet(good)).rows}
    moved = {row.check: row.value for row in baselines(judged_fleet(bad)).rows}
    assert moved == pytest.approx(rows, rel=1e-6)
    if scale < 1:
        assert verdicts([bad[3]], limits(bad, tmp_path)) == {"FAIL"}


@given(
    st.lists(st.floats(0.96, 1.04), min_size=5, max_size=20),
    st.lists(st.floats(0.001, 0.8) | st.floats(1.25, 50), max_size=2),
)
def test_outliers_are_dropped_and_nothing_else(good: list[float], bad: list[float]) -> None:
    """Contract: if there are two outliers and at least five good measurements, only the outliers are
    dropped."""
    kept = stable([*bad, *good], SHARE)
    assert kept == good
    assert mean(kept) == pytest.approx(mean(good))


def test_the_file_is_one_that_limits_reads(tmp_path: Path) -> None:
    """Contract: the file overrides the shipped limits for this GPU model. Its sources name the bundle, date
    and nodes."""
    nodes = healthy(5)
    text = toml(baselines(judged_fleet(nodes)), **SHIPPED)
    rows = {row["check"]: row for row in tomllib.loads(text)["row"]}
    assert rows["copy.h2d"]["source"] == f"calibrated from {SHIPPED['bundle']} on 2026-11-23, 5 nodes"
    row = limits(nodes, tmp_path).row(model="NVIDIA H100 80GB HBM3", check="copy.h2d")
    assert row is not None
    assert row.limit == pytest.approx(SHARE * 55.0)


def test_a_dropped_figure_is_said() -> None:
    nodes = changed(healthy(5), 0, scale=0.5)
    assert "2 of 10 values dropped" in toml(baselines(judged_fleet(nodes)), **SHIPPED)


def test_few_nodes_make_no_limit() -> None:
    """Contract: if there are too few nodes, no limits file is written, and the shipped limits are not used in
    its place."""
    found = baselines(judged_fleet(healthy(3)))
    assert found.rows == ()
    with pytest.raises(ValueError, match="at least 4 nodes must measure it, but only 3 did"):
        toml(found, **SHIPPED)
    with pytest.raises(ValueError, match="any measured values"):
        toml(Calibration((), ()), **SHIPPED)


def test_a_fleet_of_two_speeds_makes_no_limit() -> None:
    nodes = [replace(node, scale=1.0 if number % 2 else 0.6) for number, node in enumerate(healthy(6))]
    found = baselines(judged_fleet(nodes))
    assert found.rows == ()
    assert any("are close to each other" in reason for reason in found.refused)


def test_models_are_calibrated_apart() -> None:
    other = [replace(node, model="NVIDIA B200", name=f"b{i}", scale=2.0) for i, node in enumerate(healthy(4))]
    found = baselines(judged_fleet([*healthy(4), *other]))
    by_model = {row.model: row.value for row in found.rows if row.check == "copy.peer"}
    assert by_model == pytest.approx({"NVIDIA H100 80GB HBM3": 396.0, "NVIDIA B200": 792.0})


@pytest.mark.parametrize("share", [0.0, -1.0, 0.99, 2.0])
def test_a_share_under_which_good_figures_fail_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        baselines(judged_fleet(healthy(4)), share)
