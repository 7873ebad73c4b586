"""A training on the page: its losses, its restarts and its checkpoints, of recorded bundles."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import bundles
import pytest

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.training import AUDIT
from harness.faults.recorded_bundles import extract
from harness.judge import judge
from harness.judge.points.series import Series
from harness.report.html.curves import Metric, metrics
from harness.report.html.page import render
from harness.report.html.training import View, view

RECORDED = Path("tests/recorded")


def seen(bundle: Bundle) -> View:
    """Return the view of a bundle that has one."""
    assert bundle.manifest is not None
    assert bundle.manifest.expected is not None
    found = view(bundle, metrics(bundle, bundle.manifest.expected.run_id))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A training whose rank 1 was killed before step 18."""
    folder = tmp_path_factory.mktemp("killed")
    return Bundle.open(extract(RECORDED / "training-rank-killed.tar.xz", folder / "b"))


def test_a_job_that_trains_nothing_has_no_section(tmp_path: Path) -> None:
    bundle = bundles.healthy().write(tmp_path / "b")
    assert view(bundle, {}) is None
    assert 'id="training"' not in render(bundle, judge(bundle))


def test_the_curves_of_a_resumed_training(killed: Bundle) -> None:
    """Contract: both losses, the step at which it went on, the entropy below them, `best` by its name."""
    training = seen(killed)
    assert training.curves is not None
    assert [mark.text for mark in training.curves.resumed] == ["resumed at step 12"]
    assert [mark.text.partition(":")[0] for mark in training.curves.points] == ["step 31", "step 63"]
    assert training.curves.trained.count("L") == 63
    assert training.curves.floor is not None
    assert training.curves.floor.y > max(mark.y for mark in training.curves.points)
    assert [one.name for one, best in training.checkpoints if best] == ["epoch-0002-step-00000064"]
    page = render(killed, judge(killed))
    assert "resumed at step 12" in page
    assert "epoch-0000-step-00000012" in page


def test_a_checkpoint_that_is_torn_is_marked(tmp_path: Path) -> None:
    """Contract: the page says which, and what is wrong with it."""
    bundle = Bundle.open(extract(RECORDED / "training-checkpoint-torn.tar.xz", tmp_path / "b"))
    torn = [one.name for one, _ in seen(bundle).checkpoints if not one.whole]
    assert torn == ["epoch-0000-step-00000024"]
    assert "rank-0/model.safetensors has" in render(bundle, judge(bundle))


@pytest.mark.parametrize("content", ["", "[]", "{", '{"checkpoints": 1}', '{"error": "no pod"}'])
def test_no_evidence_of_the_disk_breaks_no_page(killed: Bundle, tmp_path: Path, content: str) -> None:
    """Contract: an audit that failed is said, one that cannot be read leaves no section."""
    bundle = Bundle.open(extract(RECORDED / "training-rank-killed.tar.xz", tmp_path / "b"))
    (bundle.path / AUDIT).write_text(content)
    page = render(bundle, judge(bundle))
    has_error = content.startswith("{") and "error" in content
    assert ("The checkpoints were not read: no pod" in page) == has_error
    assert ('id="training"' in page) == has_error


@pytest.mark.parametrize("value", [0.0, 1e17, -1e299])
def test_a_constant_loss_of_any_size_is_drawn(killed: Bundle, tmp_path: Path, value: float) -> None:
    bundle = Bundle.open(extract(RECORDED / "training-rank-killed.tar.xz", tmp_path / "b"))
    audit = json.loads((bundle.path / AUDIT).read_text())
    (bundle.path / AUDIT).write_text(json.dumps({**audit, "entropy": None}))
    loss = Metric("train/loss", recorded=Series([(0, value), (1, value)]))
    training = view(bundle, {"train/loss": loss})
    assert training is not None
    assert training.curves is not None
    assert training.curves.trained.count("L") == 1


@pytest.mark.parametrize("value", ["NaN", sys.float_info.max, -sys.float_info.max])
def test_a_loss_that_is_not_finite_is_not_drawn(killed: Bundle, tmp_path: Path, value: object) -> None:
    """Contract: NaN in the run leaves a gap and no broken picture.

    So does the largest double, as which some trackers keep infinity (mlflow #22826).
    """
    bundle = Bundle.open(extract(RECORDED / "training-rank-killed.tar.xz", tmp_path / "b"))
    points = bundle.path / "tracker" / "points.jsonl"
    lines = [json.loads(line) for line in points.read_text().splitlines()]
    for line in lines:
        if line.get("metric") == "train/loss" and line.get("step") == 5:
            line["value"] = value
    points.write_text("".join(json.dumps(line) + "\n" for line in lines))
    curves = seen(bundle).curves
    assert curves is not None
    assert curves.trained.count("L") == 62
    assert "nan" not in curves.trained
