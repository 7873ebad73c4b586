"""Charts group the metrics of all ranks, and each curve of a chart has its own label."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.tracker.pages import groups

PARTS = st.lists(
    st.sampled_from(["loss", "Loss", "/", "node", "rank", "_", "-", ".", "1", "01", "2", "٣"]), min_size=1
)


def labels(*names: str) -> dict[str, list[str]]:
    found = groups.charts([(1, "", name) for name in names])
    return {chart.title: [one.label for one in chart.series] for chart in found}


def test_the_ranks_of_a_metric_share_a_chart() -> None:
    assert labels("loss/node10", "loss/node9", "lr") == {"loss/node*": ["node 9", "node 10"], "lr": ["lr"]}


def test_names_differing_in_case_have_separate_charts() -> None:
    """Public report: mlflow #7857."""
    assert labels("loss/node1", "Loss/node1", "loss/Node1").keys() == {
        "loss/node*",
        "Loss/node*",
        "loss/Node*",
    }


def test_metrics_with_two_rank_spellings_are_distinguished() -> None:
    expected = ["node 1 (loss/node1)", "node 1 (loss/node_1)", "node 2"]
    assert labels("loss/node1", "loss/node_1", "loss/node2") == {"loss/node*": expected}


@given(st.sets(PARTS.map("".join), min_size=1, max_size=12))
def test_no_two_curves_of_a_chart_look_alike(names: set[str]) -> None:
    for curves in labels(*sorted(names)).values():
        assert len(set(curves)) == len(curves)
