"""The cost of judging a bundle with an inflated number of ranks."""

from __future__ import annotations

import json
import time
from pathlib import Path

import bundles
import pytest

from harness.evidence import Bundle
from harness.judge import judge
from harness.report.html import page

FEW, MANY = 1000, 8000


def claiming(bundle: Bundle, nodes: int, ranks: int) -> Bundle:
    """Return the bundle with another number of nodes and ranks in its manifest."""
    path = bundle.path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["expected"] |= {"num_nodes": nodes, "ranks": ranks}
    path.write_text(json.dumps(manifest))
    return Bundle.open(bundle.path)


def seconds(bundle: Bundle, nodes: int, ranks: int) -> float:
    """Return the CPU seconds of one verdict and its report."""
    claimed = claiming(bundle, nodes, ranks)
    began = time.process_time()
    verdict = judge(claimed)
    page.render(claimed, verdict)
    assert verdict.verdict != "PASS"
    return time.process_time() - began


@pytest.mark.parametrize("nodes_too", [False, True], ids=["ranks", "nodes"])
def test_judging_cost_is_linear_in_the_claimed_ranks(tmp_path: Path, nodes_too: bool) -> None:
    """Contract: eight times as many ranks take about eight times as long, and not 64 times."""
    bundle = bundles.healthy(nodes=2).write(tmp_path / "bundle")
    few, many = (seconds(bundle, ranks if nodes_too else 2, ranks) for ranks in (FEW, MANY))
    assert many < 24 * few


@pytest.mark.parametrize("ranks", [10**6, 10**8, 2**63])
def test_more_ranks_than_a_launch_can_have_are_damage(tmp_path: Path, ranks: int) -> None:
    """Contract: such a bundle is judged like a bundle without a manifest."""
    bundle = claiming(bundles.healthy(nodes=2).write(tmp_path / "bundle"), 2, ranks)
    verdict = judge(bundle)
    assert verdict.verdict == "UNKNOWN"
    assert bundle.damaged == ["manifest.json cannot be read"]
    assert bundle.ranks() == {}
    assert "UNKNOWN" in page.render(bundle, verdict)
