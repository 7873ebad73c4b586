"""report.html of recorded bundles in a real browser, in light and dark mode and on a phone. The tests need
Chromium, which `make test` and `make unit` provide. Without it, they fail and are not skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_matrices import cell, document, outcome

from harness.evidence import Bundle
from harness.faults.recorded_bundles import extract
from harness.judge import judge
from harness.report.html.page import write
from harness.versions.matrix_report import as_html
from tests.browser import Page

RECORDED = Path(__file__).parents[1] / "recorded"
BUNDLES = [
    "client-drop-point",
    "rank-hang-at-step",
    "docker-not-installed",
    "rank-log-flood",
    "tracker-outage",
    "scheduling-gpu",
    "rendezvous-wrong-port",
    "rank-job-recreated",
    "harness-sigkill-observe",
]
SCREENS = {"light": (1200, False), "dark": (1200, True), "phone": (390, False), "phone-dark": (390, True)}
PAGE_COLOUR = {False: "rgb(246, 247, 249)", True: "rgb(15, 20, 25)"}
OVERFLOWING = """[...document.querySelectorAll('body *')].filter(e => {
    const box = e.getBoundingClientRect();
    return box.width && box.right > screen.width + 1 && !e.closest('.scroll, .log, svg, .bar');
}).map(e => e.tagName + '.' + e.className)"""
FAINT = """(() => {
    const rgb = text => text.match(/[\\d.]+/g).map(Number);
    const part = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    const ground = e => { for (; e; e = e.parentElement) {
        const c = rgb(getComputedStyle(e).backgroundColor);
        if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
    return [...document.querySelectorAll('body *')].filter(e =>
        [...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim()) && e.getClientRects().length
        && !e.closest('script, .none')
    ).map(e => {
        const both = [light(rgb(getComputedStyle(e).color)), light(ground(e))];
        const [a, b] = both.sort((x, y) => y - x);
        return [(a + 0.05) / (b + 0.05), e.className || e.tagName]; }).filter(([ratio]) => ratio < 4.5);
})()"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    paths = {}
    for name in BUNDLES:
        bundle = Bundle.open(extract(RECORDED / f"{name}.tar.xz", folder / name))
        paths[name] = write(bundle, judge(bundle))
    return paths


@pytest.fixture(scope="module", params=SCREENS)
def screen(request: pytest.FixtureRequest) -> Iterator[tuple[Page, bool]]:
    width, dark = SCREENS[request.param]
    with Page(width, 844, dark) as page:
        yield page, dark


@pytest.mark.parametrize("name", BUNDLES)
def test_the_report_is_whole_on_every_screen(
    screen: tuple[Page, bool], reports: dict[str, Path], name: str
) -> None:
    """Contract: there are no errors, the only request is for the file itself, nothing is wider than the
    screen, all text has enough contrast (WCAG AA, 4.5 to 1), and the verdict is at the top."""
    page, dark = screen
    page.errors.clear()
    page.requests.clear()
    page.open(reports[name])
    verdict = judge(Bundle.open(reports[name].parent))
    assert page.errors == []
    assert page.requests == [reports[name].resolve().as_uri()]
    assert page.ask("screen.width") == page.width
    assert page.ask("document.documentElement.scrollWidth") <= page.width
    assert page.ask(OVERFLOWING) == []
    assert page.ask("getComputedStyle(document.body).backgroundColor") == PAGE_COLOUR[dark]
    assert page.ask(FAINT) == []
    head = page.ask("document.querySelector('h1').innerText")
    assert head.startswith(verdict.verdict)
    assert page.ask("document.querySelector('h1').getBoundingClientRect().bottom") < 200
    page.ask("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert page.ask(OVERFLOWING) == []
    assert page.ask(FAINT) == []
    shown = page.ask("document.body.innerText")
    assert verdict.explanation.split("\n")[0] in shown
    for check in verdict.checks:
        assert check.name in shown


def test_page_of_matrix_is_whole_on_every_screen(screen: tuple[Page, bool], tmp_path: Path) -> None:
    """Contract: the requirements are those for a report. Each cell links to the reports of its launches,
    worst first."""
    page, _ = screen
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "report.html").touch()
    fail = outcome("FAIL", "unification.client_rewrote", bundle=str(tmp_path / "b"), explanation="lost " * 40)
    nightlies = {"konduktor-nightly": "0.1.0.dev20261027031956"}
    results = [
        cell(outcome(bundle=str(tmp_path / "b")), versions={**nightlies, "pluto-ml": "0.0.28"}),
        cell(fail, versions={**nightlies, "pluto-ml": "/home/user/checkouts/a-client-with-a-long-name"}),
        cell(fail, outcome(attempt=2), versions={**nightlies, "pluto-ml": "0.0.27"}),
        cell(fail, versions={**nightlies, "pluto-ml": "0.0.26"}, expected="FAIL"),
        cell(versions={**nightlies, "pluto-ml": "0.0.25"}),
    ]
    file = tmp_path / "matrix.html"
    file.write_text(as_html(document(tmp_path, *results)))
    page.errors.clear()
    page.requests.clear()
    page.open(file)
    assert (page.errors, page.requests) == ([], [file.resolve().as_uri()])
    assert page.ask("document.documentElement.scrollWidth") <= page.width
    assert page.ask(OVERFLOWING) == []
    assert page.ask(FAINT) == []
    assert (
        page.ask("document.querySelector('#cells td.result').innerText") == "FAIL unification.client_rewrote"
    )
    links = "[...document.querySelectorAll('.grid a, .result a')].map(link => link.getAttribute('href'))"
    assert page.ask(links) == ["b/report.html"] * 8


def test_what_is_missing_can_be_seen(reports: dict[str, Path]) -> None:
    """Contract: the rank, metric and step of a lost point are in the table, and the point is a ring on the
    curve."""
    with Page() as page:
        page.open(reports["client-drop-point"])
        matrix = page.ask("document.querySelector('#matrix').innerText")
        assert "20, 1 missing" in matrix
        assert "step 7" in matrix
        assert page.ask("document.querySelectorAll('circle.gone').length") == 1
        ring = "document.querySelector('circle.gone').getBoundingClientRect()"
        assert page.ask(f"{ring}.width") > 4


def test_the_search_finds_lines_in_every_log(reports: dict[str, Path]) -> None:
    """Contract: a search shows only the matching lines, highlights the matches and expands their logs. An
    empty search shows all lines."""
    seen = "[...document.querySelectorAll('.line')].filter(e => !e.classList.contains('hide'))"
    with Page() as page:
        page.open(reports["rank-hang-at-step"])
        everything = page.ask(f"{seen}.length")
        assert everything > 20
        page.type("#search", "STEP 6 LOSS")
        found = page.ask(f"{seen}.map(e => e.innerText)")
        assert 0 < len(found) < everything
        assert all("step 6 loss" in line for line in found)
        marked = page.ask("[...document.querySelectorAll('mark')].map(e => e.textContent)")
        assert marked == ["step 6 loss"] * len(found)
        assert page.ask("document.querySelector('#found').innerText") == f"{len(found)} lines"
        page.type("#search", " <no such thing>")
        assert page.ask(f"{seen}.length") == 0
        assert page.ask("document.querySelector('#found').innerText") == "0 lines"
        page.ask("document.querySelector('#search').select()")
        page.call("Input.dispatchKeyEvent", type="keyDown", key="Backspace", windowsVirtualKeyCode=8)
        assert page.ask(f"{seen}.length") == everything
        assert page.ask("document.querySelectorAll('mark').length") == 0
        assert page.errors == []


def test_it_can_be_read_without_its_script(reports: dict[str, Path]) -> None:
    """Contract: the script is needed only for the search."""
    with Page() as page:
        page.call("Emulation.setScriptExecutionDisabled", value=True)
        page.open(reports["tracker-outage"])
        tree = page.call("Accessibility.getFullAXTree")["nodes"]
        names = {node.get("name", {}).get("value") for node in tree}
        assert {"PASS", "Checks", "Timeline", "Environment"} <= names
