"""report.html: everything at a glance, in one file that needs nothing else."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path

import bundles
import pytest

from harness.evidence import Bundle
from harness.judge import judge
from harness.judge.points.series import Series
from harness.report.html.curves import Metric, metrics, plot, steps
from harness.report.html.page import render, write
from harness.report.html.timeline import lanes, ticks


def page(job: bundles.Job, tmp_path: Path) -> str:
    bundle = job.write(tmp_path / "bundle")
    return render(bundle, judge(bundle))


class Links(HTMLParser):
    """What a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]
        if tag not in {"meta", "input", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.remove(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_it_fetches_nothing_and_is_well_formed(tmp_path):
    """Contract: one self-contained file."""
    text = page(bundles.healthy(), tmp_path)
    links = Links()
    links.feed(text)
    assert links.fetched == []
    assert links.open == []
    assert "url(" not in text
    assert "@import" not in text


def test_the_verdict_its_cause_and_every_check_are_there(tmp_path):
    """Contract: the page says what the terminal says."""
    job = bundles.healthy()
    bundles.crash(job, 1)
    bundle = job.write(tmp_path / "bundle")
    verdict = judge(bundle)
    text = render(bundle, verdict)
    assert f"<title>FAIL {verdict.cause}" in text
    for check in verdict.checks:
        assert f">{check.name}</td>" in text
    for line in verdict.next:
        assert line.split()[0] in text


def test_a_lost_point_is_marked_in_matrix_and_curve(tmp_path):
    """Contract: the page shows metric, rank and step of what is missing."""
    job = bundles.healthy()
    gone = next(point for point in job.points if point.step == 2 and math.isfinite(point.value))
    job.points = [point for point in job.points if (point.metric, point.step) != (gone.metric, gone.step)]
    text = page(job, tmp_path)
    assert "1 missing" in text
    assert f"step {gone.step}: " in text
    assert 'class="gone"' in text


def test_what_misses_points_comes_first(tmp_path):
    """Contract: among many metrics, those that miss points are at the top and never left out."""
    job = bundles.healthy()
    last = max(point.metric for point in job.points)
    job.points = [point for point in job.points if (point.metric, point.step) != (last, 2)]
    found = metrics(job.write(tmp_path / "bundle"), bundles.RUN_ID)
    assert next(iter(found)) == last
    assert list(found)[1:] == sorted(list(found)[1:])


def test_what_a_rank_prints_is_text_not_markup(tmp_path):
    """Contract: a log line cannot add to the page; frames are left out."""
    bundle = bundles.healthy().write(tmp_path / "bundle")
    log = next((bundle.path / "logs").glob("*.log"))
    with log.open("a") as file:
        file.write("2026-01-01T00:00:00Z <script>alert(1)</script> &amp;\n")
    text = render(Bundle.open(bundle.path), judge(bundle))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp;amp;" in text
    assert "@truth1" not in text


def test_logs_are_what_a_terminal_shows(tmp_path):
    bundle = bundles.healthy().write(tmp_path / "b")
    log = next((bundle.path / "logs").glob("*.log"))
    with log.open("a") as file:
        file.write("2026-11-21T05:00:01Z train: 1%\rtrain: \x1b[32m2%\x1b[0m\x1b]0;title\x07 of all\n")
    html = render(Bundle.open(bundle.path), judge(bundle))
    assert "train: 2% of all (1 update left out)" in html
    assert "\x1b" not in html


@pytest.mark.parametrize("missing", ["manifest.json", "objects", "logs", "truth", "tracker"])
def test_a_damaged_bundle_still_has_a_page(tmp_path, missing):
    """Contract: the page shows what there is, because it is needed most when something is missing."""
    bundle = bundles.healthy().write(tmp_path / "bundle")
    target = bundle.path / missing
    target.rename(tmp_path / "gone")
    damaged = Bundle.open(bundle.path)
    path = write(damaged, judge(damaged))
    assert path == bundle.path / "report.html"
    assert "UNKNOWN" in path.read_text()


def test_lanes_cover_stages_objects_and_pods(tmp_path):
    """Contract: one lane each; no span ends before it starts."""
    bundle = bundles.healthy().write(tmp_path / "bundle")
    assert bundle.manifest is not None
    made = lanes(bundle, bundle.manifest)
    names = " ".join(lane.name for lane in made)
    assert "JobSet" in names
    assert "node 0: pod" in names
    assert "node 1: pod" in names
    assert all(span.end >= span.start for lane in made for span in lane.spans)


def test_long_curves_keep_their_extremes():
    """Contract: a curve has at most some hundred points and keeps every peak."""
    rows = [(step, 0.0) for step in range(100_000)]
    rows[77_777] = (77_777, 9.0)
    metric = Metric("m", truth={0: Series(rows)}, recorded=Series(rows))
    drawn = plot(metric)
    assert drawn is not None
    assert drawn.truth[0].count("L") <= 400
    assert drawn.high == "9"
    heights = [float(place.split()[1]) for place in re.split(r"[ML] ?", drawn.truth[0])[1:]]
    assert min(heights) == 6.0


@pytest.mark.parametrize(
    ("lost", "text"),
    [([3], "3"), ([1, 2, 3, 7], "1–3, 7"), (range(0, 40, 2), "0, 2, 4, 6, 8, 10 and 14 more")],
)
def test_steps_are_told_in_few_words(lost, text):
    """Contract: ranges, and a limit."""
    assert steps(list(lost)) == text


def test_curves_of_extreme_values_have_finite_places() -> None:
    """In public reports (tensorboard #3273, wandb #2202), labels are equal, and NaN is invisible."""
    most = 1.7976931348623157e308
    extremes = plot(Metric("a", recorded=Series([(0, -most), (1, 0.0), (2, most)])))
    assert extremes is not None
    assert extremes.recorded == "M6.0 114.0 L180.0 60.0 L354.0 6.0"
    assert (extremes.low, extremes.high) == ("-1.79769e+308", "1.79769e+308")
    smallest = plot(Metric("a", recorded=Series([(0, 0.0), (1, 5e-324)])))
    assert smallest is not None
    assert smallest.recorded == "M6.0 114.0 L354.0 6.0"
    close = plot(Metric("a", recorded=Series([(0, 3e9), (1, 3e9 + 1)])))
    assert close is not None
    assert (close.low, close.high) == ("3e+09", "3000000001")
    nan = [(4, 0.5), (5, math.nan), (6, -math.inf)]
    diverged = plot(Metric("a", truth={3: Series(nan)}, recorded=Series(nan[:2])))
    assert diverged is not None
    assert diverged.not_finite == "2 non-finite values, from step 5"


def test_values_that_cannot_be_drawn_are_left_out(tmp_path):
    """Contract: NaN and infinity are not drawn. A metric without other values has no curve."""
    nan = Metric("n", truth={0: Series([(0, float("nan"))])}, recorded=Series([(0, float("nan"))]))
    assert plot(nan) is None
    assert metrics(bundles.healthy().write(tmp_path / "bundle"), None)


@pytest.mark.parametrize(
    "length", [0.0, -1.0, 0.5, 7.0, 60.0, 3600.0, 86_400.0, 1e7, 1e308, math.inf, math.nan]
)
def test_number_of_ticks_does_not_depend_on_length(length: float) -> None:
    """Contract: a bundle that claims to have lasted until the year 9999 does not fill the memory."""
    labels = ticks(length)
    assert len(labels) <= 8
    assert all(0 <= position <= 100 for position, _ in labels)
    assert bool(labels) == (0 < length < 3e8)


@pytest.mark.parametrize("ended_at", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "x"])
def test_a_bundle_of_any_length_has_a_page(tmp_path: Path, ended_at: str) -> None:
    job = bundles.healthy()
    job.manifest = job.manifest.model_copy(update={"ended_at": ended_at})
    assert "</html>" in page(job, tmp_path)
