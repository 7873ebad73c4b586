"""Charts of unusual series in a real browser: there are no errors in its console, and all numbers in a
drawing are finite."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from fractions import Fraction

import pytest
from test_tracker_pages import BASE, FIRST, logged_in
from tracker_demo import PROJECT, send
from tracker_server import Server, create

from tests.browser import Page

NAN, INF = math.nan, math.inf
LOADED = """[...document.querySelectorAll('.chart')].every(
    c => c.dataset.drawn == '%s' && c.querySelector('svg'))"""
UNDRAWABLE = """[...document.querySelectorAll('svg *')].filter(e => [...e.attributes].some(
    a => /NaN|Infinity|undefined/.test(a.value))).map(e => e.outerHTML.slice(0, 200))"""
EMPTY = """[...document.querySelectorAll('.chart')].filter(c => !c.querySelector('svg text')).length"""
LOG = ("#log", "e.checked = !e.checked", "change")
SETTINGS = (LOG, ("#smooth", "e.value = 0.9", "input"), LOG)
VALUES = (
    *(NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1e308, -1e308, 1.7976931348623157e308, -1.7976931348623157e308),
    *(5e-324, -5e-324, 2.2e-308, 1e-300, 1e300, 0.1, 3e-4, 1e15 + 0.5, 123456789.123, -2.5),
)
STEPS = (0, 1, 2, 3, 10, 999, 1000, 10**6, 2**31, 2**40, 2**53, 2**53 + 1, 2**62, 2**63 - 1)
Points = list[tuple[int, int, float]]
NAMED: dict[str, Points] = {
    "alternating": [(n, n, 1e308 if n % 2 else -1e308) for n in range(50)],
    "extremes": [(0, 0, -1.7976931348623157e308), (1, 1, 1.7976931348623157e308)],
    "all_nan": [(n, n, NAN) for n in range(30)],
    "all_inf": [(n, n, INF) for n in range(3)],
    "one": [(5, 5, 1.0)],
    "one_at_end": [(2**63 - 1, 5, 1e308)],
    "two": [(0, 0, 1.0), (1, 1, 2.0)],
    "constant": [(n, n, 7.0) for n in range(20)],
    "constant_zero": [(n, n, 0.0) for n in range(20)],
    "constant_huge": [(n, n, 1.7976931348623157e308) for n in range(20)],
    "constant_tiny": [(n, n, 5e-324) for n in range(20)],
    "tiny": [(n, n, 5e-324 * (n % 3)) for n in range(20)],
    "close": [(n, n, 1e15 + n * 0.125) for n in range(20)],
    "wide_log": [(n, n, 10.0 ** (n * 30 - 320)) for n in range(20)],
    "negative": [(n, n, -float(n)) for n in range(20)],
    "far_step": [*((n, n, 1.0 / (n + 1)) for n in range(20)), (2**40, 21, 0.5)],
    "far_step_of_many": [*((n, n, n / 7) for n in range(2000)), (2**40, 2001, 0.5)],
    "far_time": [(n, 10**17 if n == 9 else 1_790_000_000_000 + n, 1.0) for n in range(10)],
    "last_times": [(n, 2**63 - 1 - n, 1.0) for n in range(10)],
}


def generated(seed: int) -> Points:
    """Return a series of few or many points, with arbitrary steps and values."""
    dice = random.Random(seed)
    count = dice.choice([1, 2, 3, 5, 30, 750])
    base = [dice.choice(VALUES) for _ in range(dice.randrange(1, 4))]
    points: Points = []
    for at in range(count):
        step = dice.choice(STEPS) if dice.random() < 0.05 else at * dice.choice([1, 1, 1, 1000])
        time = dice.choice([at, 1_790_000_000_000 + at * 900, dice.choice(STEPS)])
        kind = dice.random()
        value = dice.choice(base) if kind < 0.6 else dice.choice(VALUES) if kind < 0.7 else dice.gauss(0, 1)
        points.append((step, time, value))
    return points


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("charts")).start()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def page(served: Server) -> Iterator[Page]:
    with Page(1200, 8000) as browser:
        yield logged_in(browser, served)


def run_of(served: Server, name: str, series: dict[str, Points]) -> int:
    with served.client() as client:
        run = int(create(client, name, projectName=PROJECT, runName=name)["runId"])
        for metric, points in series.items():
            rows: list[dict[str, object]] = [
                {"time": time, "step": step, "data": {metric: value}} for step, time, value in points
            ]
            send(client, run, "metrics", rows)
    return run


def checked(page: Page, what: str) -> None:
    page.until(LOADED % what)
    assert page.errors == []
    assert page.ask(UNDRAWABLE) == []
    assert page.ask(EMPTY) == 0


def use_every_control(page: Page, url: str) -> None:
    """Use the scales, smoothing, both axes, keys, zoom and the display of values, which must work with every
    series."""
    page.errors.clear()
    page.go(url)
    checked(page, "null-null")
    for control, change, event in SETTINGS:
        dispatched = f"{change}; e.dispatchEvent(new Event('{event}'))"
        page.ask(f"(e => {{ {dispatched} }})(document.querySelector('{control}'))")
        checked(page, "null-null")
    page.ask("document.querySelector('#whole').click()")
    page.until(f"{FIRST}.dataset.all == 'true'")
    checked(page, "null-null")
    for key in ("Home", "ArrowRight", "End", "ArrowLeft"):
        pressed = f"c.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))"
        page.ask(f"document.querySelectorAll('.chart').forEach(c => {pressed})")
    checked(page, "null-null")
    page.ask(f"{FIRST}.dispatchEvent(new KeyboardEvent('keydown', {{key: '+'}}))")
    page.until(f"{FIRST}.dataset.drawn != 'null-null'")
    checked(page, page.ask(f"{FIRST}.dataset.drawn"))
    page.ask(
        "(e => { e.value = 'time'; e.dispatchEvent(new Event('change')) })(document.querySelector('#axis'))"
    )
    page.until(f"{FIRST}.dataset.axis == 'time' && {FIRST}.dataset.drawn == 'null-null'")
    checked(page, "null-null")


def test_named_series_are_drawn(served: Server, page: Page) -> None:
    run = run_of(served, "named", NAMED)
    use_every_control(page, f"{served.url}{BASE}/r{run}")


def test_generated_series_are_drawn(served: Server, page: Page) -> None:
    run = run_of(served, "generated", {f"m{seed}": generated(seed) for seed in range(6)})
    use_every_control(page, f"{served.url}{BASE}/r{run}")


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(25))
def test_more_generated_series_are_drawn(served: Server, page: Page, part: int) -> None:
    seeds = range(1000 + part * 40, 1040 + part * 40)
    run = run_of(served, f"generated-{part}", {f"m{seed}": generated(seed) for seed in seeds})
    use_every_control(page, f"{served.url}{BASE}/r{run}")


def test_an_outlier_does_not_make_the_others_a_dot(served: Server, page: Page) -> None:
    """Contract: a point at step 2**40 is mentioned below the chart, and shown on request. All raw rows are
    kept."""
    for name, count in (("far_step", 20), ("far_step_of_many", 2000)):
        run = run_of(served, name, {name: NAMED[name]})
        page.go(f"{served.url}{BASE}/r{run}")
        page.until(LOADED % "null-null")
        label = page.ask(f"{FIRST}.querySelector('svg').getAttribute('aria-label')")
        assert f"{count} points, steps 0–{count - 1}," in label
        readout = page.ask(f"{FIRST}.querySelector('.readout').innerText")
        assert f"1 point far from the others, at step {2**40}; “All steps” shows it" in readout
        page.ask("document.querySelector('#whole').click()")
        page.until(f"{FIRST}.querySelector('svg').getAttribute('aria-label').includes('{2**40}, values')")
        page.ask(f"{FIRST}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Escape'}}))")
        page.until(
            f"{FIRST}.querySelector('svg').getAttribute('aria-label').includes('–{count - 1}, values')"
        )


def test_resumed_run_shows_newest_and_mentions_older_values(served: Server, page: Page) -> None:
    """Contract: the newest value of each step is drawn, the page counts the older ones, and the API has both.

    The steps are 0 to 19, then 10 to 14 with other values, and then 0 to 2.
    """
    parts = ((0, 20, 0), (10, 15, 1000), (0, 3, 2000))
    points = [(step, 100 * at + step, 100.0 - step + offset) for at, (first, last, offset) in enumerate(parts)
              for step in range(first, last)]  # fmt: skip
    run = run_of(served, "back", {"loss": points})
    page.go(f"{served.url}{BASE}/r{run}")
    page.until(LOADED % "null-null")
    assert "8 older values of the same steps not shown" in page.ask(
        f"{FIRST}.querySelector('.readout').innerText"
    )
    assert page.ask(f"{FIRST}.querySelectorAll('svg circle').length") == 20
    page.ask(f"{FIRST}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Home'}}))")
    assert page.ask(f"{FIRST}.querySelector('.readout').innerText") == "step 0: 2100"
    with served.client() as client:
        query = f"projectName={PROJECT}&runId={run}&logName=loss"
        newest = client.get(f"/api/runs/metrics?{query}").json()["metrics"]
        raw = client.get(f"/api/runs/metrics/raw?{query}").json()
    assert [point["value"] for point in newest if point["step"] in (0, 10, 19)] == [2100, 1090, 81]
    assert sorted(point["value"] for point in raw["metrics"] if point["step"] == 0) == [100, 2100]


LABELS = """[...document.querySelectorAll('.chart')].map(c => {
    const lines = [...c.querySelectorAll('line.grid')].map(e => +e.getAttribute('y1'));
    const texts = [...c.querySelectorAll('svg > text')].map(e => [e.textContent, +e.getAttribute('x')]);
    return [c.querySelector('figcaption').innerText, lines, texts.slice(0, lines.length),
            texts.slice(lines.length)] })"""
CLOSE: dict[str, Points] = {
    "late_steps": [(10**6 + n, n, 1.0 / (n + 1)) for n in range(100)],
    "very_late_steps": [(10**12 + n, n, 1.0 / (n + 1)) for n in range(100)],
    "accuracy": [(n, n, 0.99987 + n * 1e-8) for n in range(20)],
    "tokens": [(n, n, 99_990.0 + n / 100) for n in range(20)],
    "billions": [(n, n, 3e9 + n) for n in range(20)],
    "small_steps_down": [(n, n, -1e-5 - n * 1e-12) for n in range(20)],
}


def test_labels_are_the_values_of_their_places(served: Server, page: Page) -> None:
    """In public reports (tensorboard #3273, #1753), the labels of an axis are equal or misplaced."""
    series = {
        **CLOSE,
        **{name: NAMED[name] for name in ("close", "constant_tiny", "constant", "extremes", "tiny")},
    }
    run = run_of(served, "labels", series)
    page.go(f"{served.url}{BASE}/r{run}")
    checked(page, "null-null")
    for title, lines, values, steps in page.ask(LABELS):
        assert len(lines) >= 2, title
        numbers = [Fraction(text) for text, _ in values]
        for places, labels in (
            (lines, numbers),
            ([x for _, x in steps], [Fraction(text) for text, _ in steps]),
        ):
            assert len(set(labels)) == len(labels), (title, labels)
            if len(labels) > 2 and "end" not in title:
                scale = [(a - places[0]) / (places[1] - places[0]) for a in places]
                expected = [labels[0] + Fraction(at) * (labels[1] - labels[0]) for at in scale]
                off = max(abs(a - b) for a, b in zip(labels, expected, strict=True))
                assert off <= abs(labels[1] - labels[0]) / 5, (title, labels)


def test_a_loss_that_became_nan_does_not_look_good(served: Server, page: Page) -> None:
    """In public reports (wandb #2202, mlflow #2763 and #15535), NaN is invisible, or breaks the page."""
    losses = [(step, step, 0.5 if step < 7 else NAN) for step in range(10)]
    run = run_of(served, "diverged", {"loss": losses, "never": [(3, 3, INF)], "good": losses[:7]})
    page.go(f"{served.url}{BASE}/r{run}")
    checked(page, "null-null")
    legends = page.ask("[...document.querySelectorAll('.legend li')].map(e => e.innerText)")
    ends = [" ".join(one.split()) for one in legends]
    assert ends == [
        "good 0.5 step 6",
        "loss 0.5 step 6 not finite from step 7",
        "never – not finite from step 3",
    ]
    loss = "document.querySelectorAll('.chart')[1]"
    page.ask(f"{loss}.dispatchEvent(new KeyboardEvent('keydown', {{key: 'End'}}))")
    assert page.ask(f"{loss}.querySelector('.readout').innerText") == "step 9: not finite"
    with served.client() as client:
        send(client, run, "metrics", [{"time": 11, "step": 10, "data": {"loss": 0.25}}])
    page.until(f"{loss}.querySelector('.legend b').innerText == '0.25'", seconds=60)
    assert "not finite" not in page.ask(f"{loss}.querySelector('.legend li').innerText")
