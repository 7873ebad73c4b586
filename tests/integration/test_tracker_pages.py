"""The tracker's pages in a real browser: in light and dark mode, on a phone, by keyboard, live, and with a
million points. The tests need Chromium, like test_report_browser.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tracker_demo import HOSTILE, PROJECT, Demo, fill, send
from tracker_server import KEY, Server, create

from tests.browser import Page
from tests.integration.test_report_browser import FAINT, OVERFLOWING, PAGE_COLOUR

SCREENS = {"light": (1200, False), "dark": (1200, True), "phone": (360, False), "phone-dark": (360, True)}
BASE = f"/o/harness/projects/{PROJECT}"
TABS = ("", "/logs", "/files", "/data", "/config", "/ranks")
DRAWN = """[...document.querySelectorAll('details[open] .chart')]
    .filter(c => c.getBoundingClientRect().top < innerHeight).every(c => c.querySelector('svg .curve'))"""
UNNAMED = """[...document.querySelectorAll('input, select')].filter(
    e => e.type != 'hidden' && !e.labels.length && !e.ariaLabel).map(e => e.outerHTML)"""
FIRST = "document.querySelector('.chart')"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("pages")).start()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def demo(served: Server) -> Demo:
    return fill(served)


def logged_in(page: Page, server: Server, path: str = "/o/harness/projects") -> Page:
    """Log in as a user does: the link leads to the login form, which leads back to the link."""
    page.go(server.url + path)
    page.type("#key", KEY)
    return page.submit(".door form")


@pytest.fixture(scope="module", params=SCREENS)
def screen(request: pytest.FixtureRequest, served: Server) -> Iterator[tuple[Page, bool]]:
    width, dark = SCREENS[request.param]
    with Page(width, 844, dark) as page:
        page.go(f"{served.url}/login")
        assert page.ask(FAINT) == []
        assert page.ask("document.documentElement.scrollWidth") <= width
        yield logged_in(page, served), dark


@pytest.fixture
def page(served: Server) -> Iterator[Page]:
    with Page() as browser:
        yield logged_in(browser, served)


def paths(demo: Demo) -> list[str]:
    runs = [f"{BASE}/r{run}{tab}" for run in (demo.run, demo.hostile) for tab in TABS]
    compared = [f"{BASE}?runs={demo.run},{other}" for other in (demo.other, demo.hostile)]
    return ["/o/harness/projects", BASE, f"{BASE}/r{demo.large}", *compared, *runs]


def test_pages_are_whole_on_every_screen(screen: tuple[Page, bool], served: Server, demo: Demo) -> None:
    """Contract: there are no errors and no requests to other servers, nothing is wider than the screen, all
    text has enough contrast (WCAG AA), and nothing that a client sent is executed.
    """
    page, dark = screen
    for path in paths(demo):
        page.errors.clear()
        page.requests.clear()
        page.go(served.url + path)
        page.until(DRAWN)
        assert page.errors == [], path
        assert {urlsplit(url).netloc for url in page.requests} == {urlsplit(served.url).netloc}, path
        assert page.ask("document.documentElement.scrollWidth") <= page.width, path
        assert page.ask(OVERFLOWING) == [], path
        assert page.ask("getComputedStyle(document.body).backgroundColor") == PAGE_COLOUR[dark]
        page.ask("document.querySelectorAll('details').forEach(e => e.open = true)")
        assert page.ask(FAINT) == [], path
        assert page.ask("document.querySelectorAll('main script, main img[onerror], [onload]').length") == 0
        assert page.ask("document.title") != "ran"
        assert page.ask(UNNAMED) == [], path


def test_what_a_client_sent_is_text(page: Page, served: Server, demo: Demo) -> None:
    """Contract: names, tags, logs, notes, settings and labels are shown literally."""
    where = {
        "": "h1",
        "/logs": ".line .text",
        "/config": ".pairs",
        "/data": "main",
        "/ranks": "main",
        "/files": "main",
    }
    for tab, selector in where.items():
        page.go(f"{served.url}{BASE}/r{demo.hostile}{tab}")
        assert HOSTILE in page.ask(f"document.querySelector({json.dumps(selector)}).innerText"), tab
        assert HOSTILE in page.ask("document.querySelector('.notes').innerText")
    page.go(f"{served.url}{BASE}/r{demo.hostile}/config")
    assert "not to be seen" not in page.ask("document.documentElement.outerHTML")
    page.go(f"{served.url}{BASE}/r{demo.hostile}")
    page.until(DRAWN)
    labels = page.ask("[...document.querySelectorAll('.legend button')].map(e => e.innerText)")
    assert "\"'><svg onload=alert(3)>" in labels


def test_files_never_run(page: Page, served: Server, demo: Demo) -> None:
    """Contract: a rank's HTML and SVG files are served as downloads, with a policy that forbids execution."""
    page.go(f"{served.url}{BASE}/r{demo.hostile}/files")
    links = page.ask("[...document.querySelectorAll('td a')].map(e => [e.href, e.download])")
    assert len(links) == 2
    for url, name in links:
        assert name
        answer = httpx.get(url, trust_env=False)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert "sandbox" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    page.go(f"{served.url}{BASE}/r{demo.run}/files")
    page.until("[...document.images].length == 3 && [...document.images].every(i => i.naturalWidth == 48)")
    assert page.errors == []


def test_each_rank_has_its_curve(page: Page, served: Server, demo: Demo) -> None:
    """Contract: one chart shows four ranks, each of which can be hidden. NaN is marked, and log scale and
    smoothing redraw the chart."""
    page.go(f"{served.url}{BASE}/r{demo.run}?metrics=train%2F")
    page.until(DRAWN)
    chart = "[...document.querySelectorAll('.chart')].find(c => c.innerText.startsWith('train/loss'))"
    assert page.ask(f"{chart}.querySelectorAll('svg path.curve').length") == 4
    labels = page.ask(f"[...{chart}.querySelectorAll('.legend button')].map(e => e.innerText)")
    assert labels == ["node 0", "node 1", "node 2", "node 3"]
    page.ask(f"{chart}.querySelector('.legend button').click()")
    assert page.ask(f"{chart}.querySelectorAll('svg path.curve').length") == 3
    norm = "[...document.querySelectorAll('.chart')].find(c => c.innerText.startsWith('train/grad'))"
    assert page.ask(f"{norm}.querySelectorAll('svg .odd').length") == 1
    assert "1 not finite" in page.ask(f"{norm}.querySelector('.readout').innerText")
    before = page.ask(f"{norm}.querySelector('svg path.curve').getAttribute('d')")
    page.ask("document.querySelector('#log').click()")
    logged = page.ask(f"{norm}.querySelector('svg path.curve').getAttribute('d')")
    page.ask("document.querySelector('#smooth').value = 0.9")
    page.ask("document.querySelector('#smooth').dispatchEvent(new Event('input'))")
    smooth = page.ask(f"{norm}.querySelector('svg path.curve').getAttribute('d')")
    assert len({before, logged, smooth}) == 3
    assert page.ask(f"{norm}.querySelectorAll('svg path.raw').length") == 1
    assert "log scale" in page.ask(
        "[...document.querySelectorAll('.chart')].find(c => c.innerText.startsWith('train/lr')).innerText"
    )


def test_a_single_peak_is_drawn_and_reachable_by_keyboard(page: Page, served: Server, demo: Demo) -> None:
    """Contract: one peak among a million points is drawn, and zooming with the keyboard reaches its step."""
    page.go(f"{served.url}{BASE}/r{demo.large}")
    page.until(DRAWN)
    assert "1,000,000 points" in page.ask(f"{FIRST}.querySelector('.readout').innerText")
    assert "to 1000" in page.ask(f"{FIRST}.querySelector('svg').getAttribute('aria-label')")
    page.ask("document.querySelector('summary').focus()")
    page.press("Tab")
    assert page.ask(f"document.activeElement == {FIRST}")
    page.press("Home")
    assert page.ask(f"{FIRST}.querySelector('.readout').innerText").startswith("steps 0–")
    for _ in range(3):
        page.press("ArrowRight")
    assert page.ask("document.querySelectorAll('.cross').length") == 1
    page.press("+")
    page.until(f"{FIRST}.dataset.drawn != 'null-null'")
    page.press("Escape")
    page.until(f"{FIRST}.dataset.drawn == 'null-null'")
    page.ask("document.querySelector('#first').value = 654300")
    page.ask("document.querySelector('#last').value = 654350")
    page.ask("document.querySelector('#last').dispatchEvent(new Event('change'))")
    page.until(f"{FIRST}.dataset.drawn == '654300-654350'")
    assert page.ask(f"{FIRST}.querySelectorAll('svg circle').length") == 51
    page.press("End")
    for _ in range(29):
        page.press("ArrowLeft")
    assert page.ask(f"{FIRST}.querySelector('.readout').innerText") == "step 654321: 1000"
    assert page.errors == []


def test_a_drag_zooms_and_two_clicks_go_back(page: Page, served: Server, demo: Demo) -> None:
    page.go(f"{served.url}{BASE}/r{demo.run}?metrics=eval")
    page.until(DRAWN)
    box = page.ask(
        f"(b => [b.left, b.top, b.width])({FIRST}.querySelector('.canvas').getBoundingClientRect())"
    )
    y, mouse = box[1] + 100, {"button": "left", "clickCount": 1}

    def at(kind: str, part: float, **more: object) -> None:
        page.call("Input.dispatchMouseEvent", type=kind, x=box[0] + box[2] * part, y=y, **more)

    at("mousePressed", 0.4, **mouse)
    at("mouseMoved", 0.6, button="left")
    at("mouseReleased", 0.6, **mouse)
    page.until(f"{FIRST}.dataset.drawn != 'null-null'")
    first, last = (int(part) for part in page.ask(f"{FIRST}.dataset.drawn").split("-"))
    assert 150 < first < last < 450
    page.ask("document.querySelector('#whole').click()")
    page.until(f"{FIRST}.dataset.drawn == 'null-null'")


def test_points_and_lines_arrive_while_one_looks(served: Server, page: Page) -> None:
    """Contract: an open page shows new points, the status and new log lines without a reload."""
    with served.client() as client:
        run = create(client, "live", projectName=PROJECT, runName="live")["runId"]
        row = {"time": 1, "step": 0, "data": {"loss": 5.0}}
        send(client, run, "metrics", [row])
        page.go(f"{served.url}{BASE}/r{run}")
        page.until(DRAWN)
        page.ask("window.same = true")
        send(client, run, "metrics", [{**row, "step": step, "data": {"loss": 4.0}} for step in range(1, 30)])
        page.until(f"{FIRST}.querySelectorAll('svg circle').length == 30")
        page.until(f"{FIRST}.querySelector('.legend b').innerText == '4'")
        send(client, run, "metrics", [{**row, "data": {"other": 1}}])
        page.until("!document.querySelector('#fresh').hidden")
        client.post("/api/runs/status/update", json={"runId": run, "status": "FAILED"})
        page.until("document.querySelector('#status').innerText == 'failed'")
        assert page.ask("window.same") is True
        page.go(f"{served.url}{BASE}/r{run}/logs?search=epoch")
        for number, text in enumerate(("epoch 1", "no such", f"epoch {HOSTILE}")):
            line = {"time": 1, "message": text, "lineNumber": number, "logType": "INFO"}
            send(client, run, "logs", [line])
        page.until("document.querySelectorAll('.line').length == 2", seconds=60)
        assert page.ask("document.querySelector('.line:last-of-type .text').innerText") == f"epoch {HOSTILE}"
    assert page.errors == []


def test_runs_are_chosen_and_compared_by_form(page: Page, served: Server, demo: Demo) -> None:
    """Contract: the curves of both runs are in one chart, each run has its own colour, and differing settings
    come first."""
    page.go(served.url + BASE)
    for run in (demo.other, demo.run):
        page.ask(f"document.querySelector('input[value=\"{run}\"]').click()")
    page.submit("form:has(table)")
    page.until(DRAWN)
    assert page.ask("document.querySelectorAll('.head li').length") == 2
    loss = "[...document.querySelectorAll('.chart')].find(c => c.innerText.startsWith('train/loss'))"
    assert page.ask(f"{loss}.querySelectorAll('svg path.curve').length") == 8
    assert (
        page.ask(f"new Set([...{loss}.querySelectorAll('svg path.curve')].map(e => e.classList[1])).size")
        == 2
    )
    differs = page.ask("[...document.querySelectorAll('tr.differs td:first-child')].map(e => e.innerText)")
    assert {"lr", "seed"} <= set(differs)
    assert "batch" not in differs
    assert page.errors == []


def test_the_ranks_page_says_who_is_not_unified(page: Page, served: Server, demo: Demo) -> None:
    """Contract: the page names a rank that wrote to another run, with that run, and values that hide other
    values."""
    page.go(f"{served.url}{BASE}/r{demo.run}/ranks")
    text = page.ask("document.querySelector('#unified').innerText")
    assert "4 processes attached to this run; 1 of them created it" in text
    assert "no rank between them is missing" in text
    assert "Not unified: job pretrain-7-x7 also wrote to" in text
    assert "(pretrain-7-typo), ranks 3" in text
    assert "No step has different values in 11 metrics" in text
    with served.client() as client:
        run = create(client, "collides", projectName=PROJECT)["runId"]
        for value, who in ((1.0, "node0"), (1.0, "node0"), (2.0, "node1")):
            data = {"shared": value, "again": 5.0, "own": 1.0} if who == "node0" else {"shared": value}
            send(client, run, "metrics", [{"time": 1, "step": 0, "data": data}], who)
    page.go(f"{served.url}{BASE}/r{run}/ranks")
    assert "1 metric has different values for one step" in page.ask(
        "document.querySelector('#unified').innerText"
    )


def test_it_can_be_read_without_its_script(served: Server, demo: Demo, tmp_path: Path) -> None:
    """Contract: last values, logs, settings and ranks are shown. The script is needed only for charts and
    live updates."""
    with Page() as page:
        page.call("Emulation.setScriptExecutionDisabled", value=True)
        page.go(f"{served.url}/login?next={BASE}/r{demo.run}")
        page.ask("document.querySelector('#key').focus()")
        page.call("Input.insertText", text=KEY)
        page._loaded = False
        page.press("Enter")
        page.loaded()
        tree = page.call("Accessibility.getFullAXTree")["nodes"]
        names = {node.get("name", {}).get("value") for node in tree}
        assert {"baseline", "train/loss/node*", "node 3", "2.2544"} <= names


def canvas(page: Page) -> tuple[float, float, float]:
    """Return the left edge, top edge and width of the first chart."""
    page.ask(f"{FIRST}.scrollIntoView()")
    found = page.ask(
        f"(b => [b.left, b.top, b.width])({FIRST}.querySelector('.canvas').getBoundingClientRect())"
    )
    return found[0], found[1], found[2]


def test_points_are_placed_by_time_when_asked(served: Server, page: Page) -> None:
    """Contract: distances, ticks, values and zoom can use the client's time in place of the step, and can be
    switched back."""
    began = 1_769_860_800_000  # 2026-01-31 12:00:00 UTC
    seconds = [0, 10, 20, 30, 600, 3600]
    with served.client() as client:
        run = create(client, "timed", projectName=PROJECT)["runId"]
        rows = [{"time": began + 1000 * at, "step": n, "data": {"m": n}} for n, at in enumerate(seconds)]
        send(client, run, "metrics", rows)
    page.go(f"{served.url}{BASE}/r{run}")
    page.until(DRAWN)
    places = f"[...{FIRST}.querySelectorAll('svg circle')].map(e => Number(e.getAttribute('cx')))"

    def parts() -> list[float]:
        found = page.ask(places)
        return [round((one - found[0]) / (found[-1] - found[0]), 2) for one in found]

    assert parts() == [0, 0.2, 0.4, 0.6, 0.8, 1]
    page.ask("document.querySelector('#axis').value = 'time'")
    page.ask("document.querySelector('#axis').dispatchEvent(new Event('change'))")
    page.until(f"{FIRST}.dataset.axis == 'time'")
    assert parts() == [round(at / 3600, 2) for at in seconds]
    texts = page.ask(f"[...{FIRST}.querySelectorAll('svg text')].map(e => e.textContent)")
    assert "12:30" in texts
    assert "times 2026-01-31 12:00:00.000–2026-01-31 13:00:00.000" in page.ask(
        f"{FIRST}.querySelector('svg').getAttribute('aria-label')"
    )
    assert page.ask("document.querySelector('#first').closest('label').offsetWidth") == 0
    page.ask(f"{FIRST}.focus()")
    page.press("End")
    assert page.ask(f"{FIRST}.querySelector('.readout').innerText") == "time 2026-01-31 13:00:00.000: 5"
    page.press("Home")
    page.press("+")
    page.until(f"{FIRST}.dataset.drawn != 'null-null'")
    first, last = (int(part) for part in page.ask(f"{FIRST}.dataset.drawn").split("-"))
    assert (first, last) == (began - 900_000, began + 900_000)
    page.until(f"{places}.length == 5")
    page.ask("document.querySelector('#axis').value = 'step'")
    page.ask("document.querySelector('#axis').dispatchEvent(new Event('change'))")
    page.until(f"{FIRST}.dataset.axis == 'step' && {places}.length == 6")
    assert parts() == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert page.errors == []


@pytest.mark.nightly
def test_touch_gestures_zoom_select_and_read_values(served: Server, demo: Demo) -> None:
    """Contract: two fingers zoom around the points under them, one finger selects a range, and a tap shows
    the values."""
    with Page(360, 844) as page:
        page.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=3)
        logged_in(page, served)
        page.go(f"{served.url}{BASE}/r{demo.run}?metrics=eval")
        page.until(DRAWN)
        left, top, width = canvas(page)
        inner = width - 64

        def fingers(kind: str, *parts: float) -> None:
            points = [
                {"x": left + 54 + inner * part, "y": top + 100, "id": at} for at, part in enumerate(parts)
            ]
            page.call("Input.dispatchTouchEvent", type=kind, touchPoints=points)

        def window() -> tuple[int, int]:
            page.until(f"{FIRST}.dataset.drawn != 'null-null'")
            first, _, last = page.ask(f"{FIRST}.dataset.drawn").partition("-")
            return int(first), int(last)

        def whole() -> int:
            page.ask("document.querySelector('#whole').click()")
            page.until(f"{FIRST}.dataset.drawn == 'null-null'")
            label = page.ask(f"{FIRST}.querySelector('svg').getAttribute('aria-label')")
            return int(label.partition("steps ")[2].partition(",")[0].partition("–")[2])

        most = whole()
        fingers("touchStart", 0.5)
        fingers("touchEnd")
        assert page.ask(f"{FIRST}.querySelector('.readout').innerText").startswith("step ")
        assert page.ask(f"{FIRST}.dataset.drawn") == "null-null"

        fingers("touchStart", 0.4, 0.6)
        fingers("touchMove", 0.3, 0.7)
        fingers("touchMove", 0.2, 0.8)
        fingers("touchEnd")
        first, last = window()
        assert abs(first - most * (0.5 - 1 / 6)) < most * 0.03
        assert abs(last - most * (0.5 + 1 / 6)) < most * 0.03

        whole()
        fingers("touchStart", 0.25)
        fingers("touchMove", 0.4)
        fingers("touchMove", 0.5)
        fingers("touchEnd")
        first, last = window()
        assert abs(first - most * 0.25) < most * 0.06
        assert abs(last - most * 0.5) < most * 0.06
        assert page.errors == []
