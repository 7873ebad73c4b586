"""The digests of a bounded recorder are those of the points that Pluto keeps, or are marked as unknown."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from harness.workers.recorder import digest_recording, point_digests
from harness.workers.recorder.digest_lines import GROUPS, MAX_JSON, nodes_from, nodes_text
from harness.workers.recorder.point_digests import BLOCK_STEPS, MASK, Digests, nodes_of

POINTS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 6 * BLOCK_STEPS) | st.sampled_from([0, 1, 999, 1000, 1001, 2**63 - 1]),
        st.sampled_from([0.0, -0.0, math.nan, math.inf, 1.5, 2.5]),
        st.integers(1, 5),
    ),
    max_size=60,
)


def kept(points: list[tuple[str, int, float, int]], metric: str) -> tuple[list[int], list[float]]:
    """Return steps and values that Pluto keeps of a metric: the latest of each step, or the last of them."""
    rows: dict[int, tuple[int, float]] = {}
    for name, step, value, time in points:
        if name == metric and (step not in rows or time >= rows[step][0]):
            rows[step] = time, value
    return sorted(rows), [rows[step][1] for step in sorted(rows)]


@given(POINTS, st.sampled_from([1, 3, 1000]))
def test_digests_equal_those_of_the_kept_points(
    points: list[tuple[str, int, float, int]], max_rows: int
) -> None:
    digests = Digests(max_rows)
    for point in points:
        digests.put(*point)
    for name, metric in digests.metrics.items():
        steps, values = kept(points, name)
        nodes = nodes_of(name, steps, values)
        if max_rows == 1000:
            assert not metric.unknown
        if not metric.unknown:
            assert metric.all_nodes() == nodes
            assert (metric.count, metric.first, metric.last) == (len(steps), steps[0], steps[-1])
        for node in nodes.keys() - metric.unknown:
            assert metric.all_nodes()[node] == nodes[node]


def test_rising_steps_need_no_more_memory_than_last_points() -> None:
    digests = Digests(max_rows=100)
    for step in range(5 * BLOCK_STEPS):
        digests.put("loss", step, step / 3, step)
    metric = digests.metrics["loss"]
    assert not metric.unknown
    assert sum(len(block.rows or ()) for block in metric.open.values()) <= 100
    assert metric.all_nodes() == nodes_of("loss", range(5000), [step / 3 for step in range(5000)])


def test_a_long_series_gets_larger_blocks(monkeypatch: object) -> None:
    digests = Digests(max_rows=4)
    blocks = 2 * point_digests.MAX_NODES + 10
    for block in range(blocks):
        digests.put("loss", block * BLOCK_STEPS, 1.0, block)
    metric = digests.metrics["loss"]
    assert metric.level == 2
    assert len(metric.nodes) <= point_digests.MAX_NODES
    steps = range(0, blocks * BLOCK_STEPS, BLOCK_STEPS)
    assert (
        sum(metric.all_nodes().values()) & MASK
        == sum(nodes_of("loss", steps, [1.0] * blocks).values()) & MASK
    )


def test_metrics_that_do_not_fit_are_in_groups() -> None:
    digests = Digests()
    for number in range(3000):
        digests.put(f"metric/{number:04}/with_a_name_that_is_long", 1, 1.0, 1)
    found = digest_recording.sections(digests, MAX_JSON)
    assert 100 < len(found["metrics"]) < 3000
    assert len(found["groups"]) == GROUPS
    assert len(found["metrics"]) + sum(group[1] for group in found["groups"]) == 3000


@given(
    st.dictionaries(st.integers(0, 50), st.integers(1, MASK), max_size=20),
    st.sets(st.integers(0, 50), max_size=3),
)
def test_nodes_survive_their_text(nodes: dict[int, int], unknown: set[int]) -> None:
    found = nodes_from(nodes_text(nodes, unknown))
    assert found.keys() == {*nodes, *unknown}
    assert all((found[node] == "") == (node in unknown) for node in found)
