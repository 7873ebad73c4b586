"""The report page for acceptance tests in a real browser, for a few nodes and for 64 nodes with 8 GPUs
each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fleets import circle, collective, healthy, job

from harness.judge import judge
from harness.report.html.page import write
from tests.browser import Page
from tests.integration.test_report_browser import FAINT, OVERFLOWING

BYTES = 1_500_000
"""The maximum size of the page for 512 ranks, in bytes."""
RATIO = 8
"""The maximum CPU time of the large page, as a multiple of that of the small page."""
SHOWN = "[...document.querySelectorAll('.node')].filter(e => !e.classList.contains('hide')).length"


def report_page(folder: Path, nodes: int, gpus: int) -> Path:
    """Write the page for a cluster with a bad GPU, a node that did not respond, and a slow link."""
    there = healthy(nodes, gpus)
    there[1] = replace(there[1], bad={("compute.gemm.bf16.correct", 1): "FAIL"})
    there[2] = replace(there[2], lacks=("*",))
    report = collective("ddp.all_reduce.correct")
    bundle = job(there, report, pairs=circle(nodes, [(0, 3)])).write(folder / f"{nodes}")
    return write(bundle, judge(bundle))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_page(tmp_path_factory.mktemp("small"), 4, 2)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_page(tmp_path_factory.mktemp("large"), 64, 8)


@pytest.fixture(scope="module", params=[(1200, False), (1200, True), (390, True)])
def screen(request: pytest.FixtureRequest) -> Iterator[Page]:
    with Page(request.param[0], 844, request.param[1]) as page:
        yield page


def test_the_section_is_whole_on_every_screen(screen: Page, small: Path) -> None:
    """Contract: there are no errors, nothing is wider than the screen, and all text has enough contrast."""
    screen.errors.clear()
    screen.open(small)
    screen.ask("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert screen.errors == []
    assert screen.ask("document.documentElement.scrollWidth") <= screen.width
    assert screen.ask(OVERFLOWING) == []
    assert screen.ask(FAINT) == []
    assert "≥ 595.5 TFLOP/s" in screen.ask("document.querySelector('#acceptance').innerText")


def cpu_seconds(page_file: Path) -> float:
    """Return the CPU time in seconds of the browser process that displays a page.

    Other processes on a busy machine affect the CPU time less than the elapsed time.
    """
    with Page() as page:
        page.call("Performance.enable")
        page.open(page_file)
        metrics = page.call("Performance.getMetrics")["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "ProcessTime")


def test_512_ranks_open_without_hanging(small: Path, large: Path) -> None:
    """Contract: the size and the CPU time are limited. The limit of the CPU time is relative to a small page
    on the same machine."""
    took = {page_file: min(cpu_seconds(page_file) for _ in range(3)) for page_file in (small, large)}
    with Page() as page:
        page.open(large)
        count = page.ask("document.querySelectorAll('*').length")
    size = large.stat().st_size
    print(f"{size / 2**20:.2f} MiB, {count} elements, {took[large]:.2f} s; small {took[small]:.2f} s")
    assert size < BYTES
    assert took[large] < RATIO * max(took[small], 0.02)


def test_nodes_are_filtered(large: Path) -> None:
    """Contract: nodes are filtered by name, verdict, cause and check. The collapsed list of passed nodes is
    expanded if it has matches."""
    with Page() as page:
        page.open(large)
        assert page.ask(SHOWN) == 64
        assert page.ask("document.querySelectorAll('.node[open]').length") == 1
        page.type("#nodes-filter", "compute.wrong")
        assert page.ask(SHOWN) == 1
        assert page.ask("document.querySelector('#nodes-found').innerText") == "1 of 64 nodes"
        page.ask("document.querySelector('#nodes-filter').select()")
        page.type("#nodes-filter", "worker64")
        assert page.ask(SHOWN) == 1
        assert page.ask("document.querySelector('#nodes-passed').open") is True
        page.ask("document.querySelector('#nodes-filter').select()")
        page.call("Input.dispatchKeyEvent", type="keyDown", key="Backspace", windowsVirtualKeyCode=8)
        assert page.ask(SHOWN) == 64
        assert page.errors == []
