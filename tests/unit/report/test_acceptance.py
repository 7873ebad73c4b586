"""An acceptance on the page, in the terminal, in Markdown, as tests for CI and as JSON."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import bundles
import pytest
from fleets import SOURCE, Node, circle, collective, healthy, job
from rich.console import Console

from harness.evidence.io.reader import Bundle
from harness.judge import judge
from harness.judge.acceptance.expected_nodes import of_bundle
from harness.report import report_files
from harness.report.ci.launch_properties import from_properties, launched, properties
from harness.report.ci.summary import Row, launches
from harness.report.html.acceptance import of_fleet
from harness.report.html.page import render
from harness.report.terminal import verdict as terminal


@pytest.fixture
def faulty(tmp_path: Path) -> Bundle:
    """A launch on five nodes: a wrong GPU on the second, a slow link, and no answer of the fifth."""
    nodes = healthy(5)
    nodes[1] = replace(nodes[1], bad={("compute.gemm.bf16.correct", 1): "FAIL"})
    nodes[2] = replace(nodes[2], bad={("env.pcie", 0): "WARN"})
    nodes[4] = replace(nodes[4], lacks=("*",))
    made = job(nodes, collective("ddp.pairs", "WARN"), pairs=circle(5, [(0, 3)]))
    return made.write(tmp_path / "20261123T030000Z-n0nce7f3a")


def test_without_acceptance_there_is_nothing_of_it(tmp_path: Path) -> None:
    bundle = bundles.healthy().write(tmp_path / "b")
    assert of_bundle(bundle) is None
    assert 'id="acceptance"' not in render(bundle, judge(bundle))
    assert report_files.write(bundle, judge(bundle)) == {}
    assert not bundle.has("fleet.json")
    assert launched(judge(bundle), bundle.path).acceptance == []


def test_who_should_answer_is_known_from_the_cluster(faulty: Bundle) -> None:
    found = of_bundle(faulty)
    assert found is not None
    assert [(node.node, node.verdict) for node in found.nodes[:3]] == [
        ("e2e-worker5", "UNKNOWN"),
        ("e2e-worker2", "FAIL"),
        ("e2e-worker1", "WARN"),
    ]
    assert found.verdict == "FAIL"


def test_the_page_has_figures_beside_limits_and_the_fleet(faulty: Bundle) -> None:
    page = render(faulty, judge(faulty))
    assert page.count('<details class="node') == 5
    assert f'<td title="{SOURCE}">≥ 595.5 TFLOP/s</td><td>780 TFLOP/s</td>' in page
    assert '<i class="FAIL" title="GPU 1: FAIL">1</i>' in page
    assert page.count('<rect class="FAIL"') == 2
    assert "e2e-worker1 ↔ e2e-worker4: 12 GB/s: slower than half of the median" in page


def test_what_a_pod_says_is_not_markup(tmp_path: Path) -> None:
    evil = replace(Node("x"), versions={"torch": "<script>alert(1)</script>"})
    bundle = job([evil, Node("y")]).write(tmp_path / "b")
    page = render(bundle, judge(bundle))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_frames_are_not_shown_among_the_log(tmp_path: Path) -> None:
    made = job(healthy(2))
    name = made.pod_name(0)
    made.logs[name] = [f"{bundles.at(6, True)} [ENV] PASS it", f"{bundles.at(7, True)} @accept1 0011 1/1 eJw"]
    bundle = made.write(tmp_path / "b")
    page = render(bundle, judge(bundle))
    assert "[ENV] PASS it" in page
    assert "@accept1" not in page


def test_terminal_shows_what_failed_first_and_verdict_last(faulty: Bundle) -> None:
    with (console := Console(width=160)).capture() as capture:
        terminal.render(judge(faulty), [], faulty.path, console, accepted=of_bundle(faulty))
    shown = [line for line in capture.get().splitlines() if re.match(r"[✓✗?!] +(e2e|all|acceptance)", line)]
    assert [line.split()[1] for line in shown[:2]] == ["e2e-worker5", "e2e-worker2"]
    assert "compute.gemm.bf16.correct GPU 1" in shown[1]
    assert shown[-1].split()[:3] == ["✗", "acceptance", "FAIL"]


def test_ci_is_told_through_properties_and_reads_a_table(faulty: Bundle) -> None:
    one = launched(judge(faulty), faulty.path)
    assert from_properties(properties(one)) == [one]
    summary = launches([Row(one)])
    assert "**Acceptance: FAIL** (5 nodes: 1 FAIL, 1 UNKNOWN, 3 WARN)" in summary
    assert "\n| ✗ | e2e-worker2 | FAIL | `compute.wrong` | compute.gemm.bf16.correct GPU 1:" in summary


def test_each_check_of_each_node_is_a_test(faulty: Bundle) -> None:
    """Contract: as many tests as checks, each name once, UNKNOWN is no pass, WARN passes and says so."""
    found, verdict = of_bundle(faulty), judge(faulty)
    assert found is not None
    assert report_files.write(faulty, verdict) == {}
    count = 1 + len(verdict.checks) + len(found.checks) + sum(len(node.cells) for node in found.nodes)
    cases = list(ET.parse(faulty.path / "junit.xml").getroot().iter("testcase"))
    assert len(cases) == len({case.get("name") for case in cases}) == count
    by_name = {case.get("name"): case for case in cases}
    failed = by_name["acceptance / e2e-worker2 / compute.gemm.bf16.correct GPU 1"].find("failure")
    assert failed is not None
    assert failed.get("type") == "compute.wrong"
    assert by_name["acceptance / e2e-worker5 / fleet.report"].find("error") is not None
    warned = by_name["acceptance / e2e-worker3 / env.pcie GPU 0"]
    assert (warned.findtext("system-out") or "").startswith("WARN: ")
    tests = {
        one["name"]: one for one in json.loads((faulty.path / "ctrf.json").read_text())["results"]["tests"]
    }
    assert len(tests) == count
    assert tests["acceptance / e2e-worker3 / env.pcie GPU 0"]["tags"] == ["WARN"]
    assert tests["acceptance / e2e-worker5 / fleet.report"]["status"] == "other"


def test_fleet_json_has_all_of_it(faulty: Bundle) -> None:
    assert report_files.write(faulty, judge(faulty)) == {}
    document = json.loads((faulty.path / "fleet.json").read_text())
    assert document["verdict"] == "FAIL"
    assert document["nodes"][1]["cells"][0]["cause"] == "compute.wrong"
    assert {figure["id"]: figure["median"] for figure in document["figures"]}["copy.h2d"] == 55.0


def test_the_worst_figure_of_the_fleet_is_found(tmp_path: Path) -> None:
    nodes = healthy(4)
    nodes[2] = replace(nodes[2], scale=0.97)
    found = of_bundle(job(nodes).write(tmp_path / "b"))
    assert found is not None
    spread = next(one for one in of_fleet(found).spreads if one.id == "copy.peer")
    assert (spread.where, spread.count, spread.limit) == ("e2e-worker3 GPU 0", "8 of 8", "≥ 335 GB/s")
    assert spread.worst == "384.1 GB/s"
