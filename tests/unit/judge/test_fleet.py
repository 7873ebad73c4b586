"""The verdict on a fleet: missing results are at best UNKNOWN, and a lost record never improves the
verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleets import Node, changed, collective, expected, healthy, printed, records, together
from hypothesis import given
from hypothesis import strategies as st

from harness.evidence.schema.acceptance import AcceptanceRecord, PairRow
from harness.judge.acceptance.fleet import ANSWERED, GPUS, REPORT, Fleet, fleet
from harness.judge.acceptance.multi_node_tests import TOGETHER
from harness.judge.acceptance.node_comparison import VERSIONS
from harness.judge.acceptance.pod_records import Member
from harness.judge.acceptance.results import ORDER, Cell, NodeResult


def node(found: Fleet, name: str) -> NodeResult:
    return next(one for one in found.nodes if one.node == name)


def cell(found: Fleet, name: str, id_: str, gpu: int | None = None) -> Cell:
    return next(one for one in node(found, name).cells if (one.id, one.gpu) == (id_, gpu))


def check(found: Fleet, id_: str) -> Cell:
    return next(one for one in found.checks if one.id == id_)


def test_a_healthy_cluster_passes() -> None:
    nodes = healthy(5)
    found = fleet(records(nodes), expected(nodes))
    assert found.verdict == "PASS"
    assert {one.verdict for one in found.nodes} == {"PASS"}
    assert [gpu.verdict for gpu in found.nodes[0].gpus] == ["PASS", "PASS"]
    assert cell(found, "gpu-00", "memory.copy", 1).median == 2600.0
    assert check(found, ANSWERED).verdict == check(found, VERSIONS).verdict == "PASS"


def test_nobody_expected_and_nothing_said_is_no_pass() -> None:
    assert fleet([], []).verdict == "UNKNOWN"


def test_a_node_without_a_report_is_unknown_and_first() -> None:
    nodes = changed(healthy(5), 0, bad={("env.shm", None): "FAIL"})
    found = fleet(records(nodes[:4]), expected(nodes))
    assert [(one.node, one.verdict) for one in found.nodes[:2]] == [("gpu-04", "UNKNOWN"), ("gpu-00", "FAIL")]
    assert "gpu-04" in check(found, ANSWERED).text
    assert found.verdict == "FAIL"


def test_one_bad_gpu_is_named_and_no_other() -> None:
    nodes = changed(healthy(5), 2, bad={("compute.gemm.bf16.correct", 1): "FAIL"})
    found = fleet(records(nodes), expected(nodes))
    assert [one.node for one in found.nodes if one.verdict == "FAIL"] == ["gpu-02"]
    assert [gpu.verdict for gpu in found.nodes[0].gpus] == ["PASS", "FAIL"]
    assert found.nodes[0].first == cell(found, "gpu-02", "compute.gemm.bf16.correct", 1)
    assert {one.verdict for one in found.nodes[1:]} == {"PASS"}


@pytest.mark.parametrize(("count", "verdict"), [(3, "PASS"), (4, "WARN")])
def test_slower_than_the_fleet_from_four_nodes_on(count: int, verdict: str) -> None:
    """Contract: a node at 0.9 of the healthy speed is within the limit, but slow if this is 0.69 of the other
    nodes' speed."""
    nodes = [replace(one, scale=1.3) for one in healthy(count)]
    nodes[1] = replace(nodes[1], scale=0.9)
    found = fleet(records(nodes), expected(nodes))
    assert node(found, "gpu-01").verdict == verdict
    slow = [one for one in node(found, "gpu-01").cells if one.cause == "fleet.slower"]
    assert bool(slow) is (verdict == "WARN")
    assert all("slower than the fleet: 0.69" in one.text for one in slow)


def test_a_missing_node_does_not_hide_a_slow_one() -> None:
    """Contract: the median of only the remaining measurements would be so low that the slow nodes pass."""
    nodes = [replace(one, scale=1.3 if number < 3 else 0.9) for number, one in enumerate(healthy(5))]
    for there in (nodes, nodes[1:]):
        found = fleet(records(there), expected(nodes))
        assert [node(found, name).verdict for name in ("gpu-03", "gpu-04")] == ["WARN", "WARN"]
    few = fleet(records(nodes[3:]), expected(nodes))
    assert "only 2 of 5 nodes reported this value" in cell(few, "gpu-03", "memory.copy", 0).text
    assert {one.verdict for one in few.nodes} == {"UNKNOWN"}


def test_versions_that_differ_name_the_node() -> None:
    nodes = changed(healthy(3), 1, versions={"torch": "2.8.0", "cuda": "13.0"})
    found = check(fleet(records(nodes), expected(nodes)), VERSIONS)
    assert (found.verdict, found.cause) == ("WARN", "versions.differ")
    assert "torch: gpu-01 has 2.8.0; the others have 2.9.1" in found.text


def test_a_check_that_others_have_is_not_reported() -> None:
    nodes = changed(healthy(3), 1, lacks=("memory.copy",))
    found = fleet(records(nodes), expected(nodes))
    assert cell(found, "gpu-01", "memory.copy", 0).verdict == "UNKNOWN"
    assert node(found, "gpu-01").verdict == "UNKNOWN"
    assert node(found, "gpu-00").verdict == "PASS"


def test_a_node_with_fewer_gpus_is_unknown() -> None:
    nodes = changed(healthy(3), 1, gpus=1)
    assert node(fleet(records(nodes), expected(nodes)), "gpu-01").verdict == "UNKNOWN"


def test_another_gpu_model_needs_no_fp8_check() -> None:
    nodes = changed(healthy(5), 1, model="NVIDIA A100-SXM4-80GB", lacks=("compute.gemm.fp8",))
    assert fleet(records(nodes), expected(nodes)).verdict == "PASS"


def test_the_last_report_counts() -> None:
    """Contract: after a restart, the later report counts. If the last start reported nothing, the node is
    UNKNOWN."""
    good, bad = Node("a"), Node("a", bad={("env.shm", None): "FAIL"})
    once, twice = [Member("a", good.pod)], [Member("a", good.pod, restarts=1)]
    assert fleet([*bad.said(), *good.said()], twice).verdict == "PASS"
    assert fleet([*good.said(), *bad.said()], twice).verdict == "FAIL"
    assert fleet(good.said(), once).verdict == "PASS"
    assert fleet(good.said(), twice).verdict == "UNKNOWN"
    assert fleet([*good.said(), *good.said()[:3]], twice).verdict == "UNKNOWN"
    assert fleet([*good.said(), *bad.said()[:3]], twice).verdict == "FAIL"


def test_a_pod_that_was_replaced_no_longer_counts() -> None:
    old, new = Node("a", bad={("env.shm", None): "FAIL"}), Node("a")
    before = [record.model_copy(update={"pod": "old"}) for record in old.said()]
    assert fleet([*new.said(), *before], [Member("a", new.pod)]).verdict == "PASS"
    assert fleet([*before, *new.said()], ["a"]).verdict == "PASS"
    assert fleet(before, [Member("a", new.pod)]).verdict == "UNKNOWN"


@pytest.mark.parametrize(
    "changes", [{"device": "cpu", "gpus": []}, {"gpus": []}, {"checks": [], "verdict": "PASS"}]
)
def test_no_gpu_and_no_check_are_no_pass(changes: dict[str, object]) -> None:
    report = Node("a").report().model_copy(update=changes)
    found = fleet(printed("accept-a", report), ["a"])
    assert found.verdict == "UNKNOWN"
    assert node(found, "a").first is not None


def test_report_that_says_worse_than_its_checks_is_believed() -> None:
    report = Node("a").report().model_copy(update={"verdict": "FAIL"})
    assert cell(fleet(printed("accept-a", report), ["a"]), "a", REPORT).verdict == "FAIL"


def test_a_pod_without_its_report_is_unknown_or_failed() -> None:
    one = Node("a", bad={("env.shm", None): "FAIL"})
    assert fleet(one.said()[:-1], expected([one])).verdict == "FAIL"
    assert fleet(Node("a").said()[:-1], expected([one])).verdict == "UNKNOWN"
    assert fleet(Node("a").said()[:-1], ["b"]).verdict == "UNKNOWN"


def test_a_collective_accuses_the_node_of_its_rank() -> None:
    """Contract: a failed collective proves nothing about the other nodes. Only their own results do."""
    nodes = healthy(4)
    wrong = collective("ddp.all_reduce.correct", "FAIL", 3)
    screened = [collective("screen.node", "FAIL", 2, 3), collective("screen.node", "PASS", 0, 1, 4, 5, 6, 7)]
    links = [PairRow(a=0, b=1, busbw=1.0, verdict="FAIL", text="slow"), PairRow(a=2, b=3, verdict="PASS")]
    report = together(nodes, wrong, *screened, pairs=links)
    found = fleet([*records(nodes), *printed(nodes[0].pod, report)], expected(nodes, world=True))
    assert node(found, "gpu-01").verdict == "FAIL"
    assert cell(found, "gpu-02", "ddp.all_reduce.correct").verdict == "UNKNOWN"
    assert "gpu-01" in cell(found, "gpu-02", "ddp.all_reduce.correct").text
    assert cell(found, "gpu-02", "screen.node").verdict == "PASS"
    assert [(pair.a, pair.b) for pair in found.pairs] == [("gpu-00", "gpu-01"), ("gpu-02", "gpu-03")]


def test_slow_collective_that_accuses_nobody_fails_cluster_alone() -> None:
    nodes = healthy(3)
    report = together(nodes, collective("ddp.all_reduce.busbw", "FAIL"))
    found = fleet([*records(nodes), *printed(nodes[0].pod, report)], expected(nodes, world=True))
    assert found.verdict == "FAIL"
    assert {one.verdict for one in found.nodes} == {"UNKNOWN"}


def test_nodes_that_speak_through_the_collectives_alone_answered() -> None:
    nodes = healthy(3)
    report = together(nodes, collective("ddp.all_reduce.correct"))
    assert fleet(printed(nodes[0].pod, report), expected(nodes, world=True)).verdict == "PASS"
    found = fleet(printed(nodes[0].pod, report), expected(healthy(4), world=True))
    assert found.verdict == node(found, "gpu-03").verdict == "UNKNOWN"


def test_collectives_do_not_replace_missing_node_tests() -> None:
    nodes = healthy(4)
    report = together(nodes, collective("ddp.all_reduce.correct"))
    found = fleet([*records(nodes[:3]), *printed(nodes[0].pod, report)], expected(nodes, world=True))
    assert (found.nodes[0].node, found.nodes[0].verdict) == ("gpu-03", "UNKNOWN")
    assert "gpu-03" in check(found, ANSWERED).text


def test_without_the_tests_together_a_cluster_is_unknown() -> None:
    nodes = healthy(3)
    assert check(fleet(records(nodes), expected(nodes, world=True)), TOGETHER).verdict == "UNKNOWN"


def test_a_gpu_without_any_check_is_unknown() -> None:
    report = Node("a", few=True).report()
    kept = [one for one in report.checks if one.index != 1]
    found = fleet(printed("accept-a", report.model_copy(update={"checks": kept})), ["a"])
    assert [gpu.verdict for gpu in node(found, "a").gpus] == ["PASS", "UNKNOWN"]
    assert found.verdict == "UNKNOWN"


def test_cells_say_that_no_gpu_was_tested_once() -> None:
    report = Node("a", few=True).report().model_copy(update={"device": "cpu", "gpus": []})
    found = fleet(printed("accept-a", report), ["a"])
    assert cell(found, "a", GPUS).cause == "gpu.not_tested"


VERDICTS = st.sampled_from(["PASS", "PASS", "WARN", "FAIL", "UNKNOWN"])
NODES = st.builds(
    lambda scale, bad, version, model, lacks, gpus: Node(
        "", gpus, scale, bad, {"torch": version}, model, lacks, few=True
    ),
    st.sampled_from([1.0, 1.0, 0.8, 1.3]),
    st.dictionaries(
        st.tuples(st.sampled_from(["env.driver", "compute.gemm.bf16"]), st.sampled_from([None, 0])),
        VERDICTS,
        max_size=1,
    ),
    st.sampled_from(["2.9.1", "2.9.1", "2.8.0"]),
    st.sampled_from(["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "NVIDIA B200"]),
    st.sampled_from([(), (), ("compute.gemm.fp16",)]),
    st.sampled_from([1, 1, 2]),
)
CLUSTERS = st.lists(NODES, min_size=1, max_size=6).map(
    lambda nodes: [replace(one, name=f"n{number}") for number, one in enumerate(nodes)]
)
GROUPS = st.none() | st.lists(
    st.tuples(st.sampled_from(["ddp.all_reduce.correct", "ddp.stragglers"]), VERDICTS, st.integers(-1, 4)),
    min_size=1,
    max_size=3,
    unique_by=lambda check: check[0],  # ddp_tests runs each check once.
)


def stream(nodes: list[Node], group: list[tuple[str, str, int]] | None) -> list[AcceptanceRecord]:
    if group is None:
        return records(nodes)
    ranks = sum(one.gpus for one in nodes)
    checks = [
        collective(id_, verdict, *([rank] if 0 <= rank < ranks else []))  # type: ignore[arg-type]
        for id_, verdict, rank in group
    ]
    return [*records(nodes), *printed(nodes[0].pod, together(nodes, *checks))]


def better(now: str, before: str) -> bool:
    return ORDER.index(now) > ORDER.index(before)  # type: ignore[arg-type]


@given(CLUSTERS, GROUPS, st.data())
def test_removing_a_record_never_makes_a_verdict_better(
    nodes: list[Node], group: list[tuple[str, str, int]] | None, data: st.DataObject
) -> None:
    """Property: if any one record of the pods that reported is lost, no verdict improves. Each check is in
    the log twice.

    This applies to the fleet, its nodes and its own checks.
    """
    records = stream(nodes, group)
    members = expected(nodes, world=group is not None)
    before = fleet(records, members)
    gone = data.draw(st.integers(0, len(records) - 1))
    after = fleet(records[:gone] + records[gone + 1 :], members)
    assert not better(after.verdict, before.verdict)
    for one in before.nodes:
        now = node(after, one.node)
        assert not better(now.verdict, one.verdict), (one.first, now.first)
    left = {one.id: one.verdict for one in before.checks}
    for one in after.checks:
        assert one.id not in left or not better(one.verdict, left[one.id]) or one.verdict == "FAIL"


@given(CLUSTERS, GROUPS, st.data())
def test_lost_records_never_turn_another_verdict_into_pass(
    nodes: list[Node], group: list[tuple[str, str, int]] | None, data: st.DataObject
) -> None:
    """Property: if any records are lost, even all records of a pod, the fleet passes only if it passed before
    and every report is left. A node passes only if its report is complete and every check in it passed. If
    only the report about all nodes together is left, it is judged alone, because some launches print no other
    report."""
    if len(nodes) == 1:
        group = None  # A single node does not need a test of several nodes.
    records = stream(nodes, group)
    members = expected(nodes, world=group is not None)
    before = fleet(records, members)
    keep = data.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
    left = [record for record, kept in zip(records, keep, strict=True) if kept]
    after = fleet(left, members)
    together_alone = group is not None and not any(
        (one.check and one.check.tag != "DDP") or (one.report and one.report.kind == "node") for one in left
    )
    reports = {one.report.node: one.report for one in left if one.report and one.report.kind == "node"}
    if after.verdict == "PASS" and not together_alone:
        assert before.verdict == "PASS"
        assert set(reports) == {one.name for one in nodes}
    for one in after.nodes:
        if one.verdict == "PASS":
            assert one.answered
            assert one.node in reports or together_alone
            if one.node in reports:
                assert {check.verdict for check in reports[one.node].checks} == {"PASS"}
                assert one.gpus
                assert {gpu.verdict for gpu in one.gpus} == {"PASS"}
