"""The tracker's Logs page shows logs as a terminal would, even while they are written, and without
secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from test_tracker_pages import BASE, logged_in
from tracker_demo import PROJECT, send
from tracker_server import Server, create

from tests.browser import Page

LINES = "[...document.querySelectorAll('.line .text')].map(e => e.innerText)"
TOKEN = f"ghp_{'a1B2' * 9}"
KEY = ["-----BEGIN PRIVATE KEY-----", *["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7"] * 3]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("logs")).start()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def page(served: Server) -> Iterator[Page]:
    with Page() as browser:
        yield logged_in(browser, served)


def write(served: Server, run: int, messages: list[str], who: str = "node0") -> None:
    """Send messages as Pluto's client does. Each message is the text between two line feeds."""
    rows: list[dict[str, object]] = [
        {"time": 1000 + at, "message": text, "lineNumber": at, "logType": "INFO"}
        for at, text in enumerate(messages)
    ]
    with served.client() as client:
        send(client, run, "logs", rows, who)


def run_of(served: Server, name: str) -> int:
    with served.client() as client:
        return int(create(client, name, projectName=PROJECT, runName=name)["runId"])


def test_bars_colours_and_cursor_movements(served: Server, page: Page) -> None:
    """Cases from public reports: a progress bar with 20,000 lines, `[32m` as text, nested bars, and truncated
    lines."""
    run = run_of(served, "bars")
    states = (f"{i / 200:5.1f}%|{'#' * (i // 1000):<20}| {i}/20000" for i in range(20001))
    bar = "".join(f"\r\x1b[32mepoch 1\x1b[0m {state}" for state in states)
    write(served, run, ["[rank0] loading", f"[rank0] {bar}", "[rank0] \x1b]0;title\x07\x1b[1mdone\x1b[0m"])
    write(served, run, ["x" * 12_000], "node1")
    page.go(f"{served.url}{BASE}/r{run}/logs")
    lines = page.ask(LINES)
    assert lines[0] == "[rank0] loading"
    assert lines[1].startswith("[rank0] epoch 1 100.0%|####################| 20000/20000 (")
    assert "updates left out" in lines[1]
    assert lines[2] == "[rank0] done"
    assert lines[3] == f"{'x' * 10_000} (2,000 more characters are available through the API)"
    page.go(f"{served.url}{BASE}/r{run}/logs?search=epoch+1+100")
    assert [line[:17] for line in page.ask(LINES)] == ["[rank0] epoch 1 1"]
    write(served, run, ["outer 1", "inner 1", "\x1b[2Aouter 2", "inner 2"], "node2")
    page.go(f"{served.url}{BASE}/r{run}/logs?sender=node2")
    page.ask("window.same = true")
    note = "(1 update left out)"
    assert page.ask(LINES) == [f"outer 2 {note}", f"inner 2 {note}"]
    write(served, run, ["\x1b[2Aouter 3", "inner 3", "RuntimeError"], "node2")
    page.until(f"{LINES}.length == 3", seconds=60)
    assert page.ask(LINES) == ["outer 3 (2 updates left out)", "inner 3 (2 updates left out)", "RuntimeError"]
    assert page.ask("window.same") is True
    assert page.errors == []


def test_secrets_are_replaced(served: Server, page: Page) -> None:
    """Secrets are replaced by the same rules as in bundles, even if they contain colours or several lines."""
    run = run_of(served, "secrets")
    write(served, run, ["DB_PASSWORD=hunter2two", f"push with {TOKEN[:10]}\x1b[31m{TOKEN[10:]}\x1b[0m", *KEY])
    page.go(f"{served.url}{BASE}/r{run}/logs")
    assert page.ask(LINES)[:3] == ["DB_PASSWORD=***", "push with ***", KEY[0]]
    html = page.ask("document.documentElement.outerHTML")
    for secret in ("hunter2two", TOKEN, KEY[1]):
        assert secret not in html
    with served.client() as client:
        stored = client.get(f"/api/runs/logs?runId={run}").json()["logs"]
    assert json.dumps(stored).count("hunter2two") == 1, "the API returns what the client sent"


@pytest.fixture(scope="module")
def searched(served: Server) -> int:
    """Return a run with messages that contain backspaces, NUL, C1 control characters and non-ASCII
    letters."""
    run = run_of(served, "searched")
    texts = [
        "anchor: ok\b\bfailed",
        "b\bbold note",
        "nul\0less",
        "Ошибка памяти",
        "\x9b31mcolour",
        "rate 100%_x",
    ]
    write(served, run, [*texts, "Cafe\u0301"])
    return run


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("anchor: FAILED", ["anchor: failed (1 update left out)"]),
        ("bold note", ["bold note"]),
        ("nulless", ["nulless"]),
        ("ОШИБКА памяти", ["Ошибка памяти"]),
        ("31mcolour", []),
        ("100%", ["rate 100%_x"]),
        ("caf\xe9", ["Cafe\u0301"]),
    ],
)
def test_a_search_finds_what_the_page_shows(
    served: Server, page: Page, searched: int, search: str, found: list[str]
) -> None:
    page.go(f"{served.url}{BASE}/r{searched}/logs?search={quote(search)}")
    assert page.ask(LINES) == found


def test_no_line_is_skipped_if_many_arrive_at_once(served: Server, page: Page) -> None:
    run = run_of(served, "many")
    write(served, run, ["first"])
    page.go(f"{served.url}{BASE}/r{run}/logs")
    write(served, run, [f"line {n}" for n in range(1400)])
    page.until(f"{LINES}.length == 1401", seconds=60)
    assert page.ask(LINES)[1:] == [f"line {n}" for n in range(1400)]
