"""Render report.html, a self-contained page about a bundle that works without a network or scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.core import terminal_text
from harness.core.clock import seconds
from harness.evidence.io.files import replace_file
from harness.evidence.io.harness_log_lines import split_time, without_own
from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes.objects import mapping
from harness.evidence.schema.bundle import Check, Manifest, Verdict
from harness.report.html import acceptance, training
from harness.report.html import points_table as matrix_
from harness.report.html.attempts import HEADINGS, attempts
from harness.report.html.curves import Metric, metrics, plot, steps
from harness.report.html.netcheck import matrix
from harness.report.html.pairs import describe
from harness.report.html.timeline import lanes, positions, ticks

REPORT = "report.html"
LOG_LINES = 2000
"""Maximum number of log lines per container, counted from the end. The bundle contains the full log."""
ALL_LINES = 20_000
"""Maximum number of log lines on the page, for all containers together. A browser takes about one second to
display three times as many lines.
"""
MAX_EVENTS = 500
MAX_PLOTS = 60


@dataclass(frozen=True)
class Log:
    title: str
    file: str
    omitted: int
    lines: list[tuple[int, str, str]]
    """The number, time and text of each line."""


def render(bundle: Bundle, verdict: Verdict) -> str:
    """Return the page as text. All data comes from the bundle and its verdict."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # jinja2 is slow to import.

    manifest = bundle.manifest or Manifest(nonce="", started_at="")
    run_id = manifest.expected.run_id if manifest.expected else None
    by_name = metrics(bundle, run_id)
    ranks = sorted({rank for metric in by_name.values() for rank in metric.cells})
    all_lanes = lanes(bundle, manifest)
    begin = min((span.start for lane in all_lanes for span in lane.spans), default=0.0)
    end = max((span.end for lane in all_lanes for span in lane.spans), default=1.0)
    environment = Environment(
        loader=PackageLoader("harness.report", "files"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["steps"] = steps
    plots = [
        metric_plot
        for metric in list(by_name.values())[:MAX_PLOTS]
        if (metric_plot := plot(metric)) is not None
    ]
    return environment.get_template("report.html.j2").render(
        verdict=verdict,
        manifest=manifest,
        bundle=bundle.path.name,
        tiles=_tiles(manifest, by_name),
        checks=_checks(verdict),
        metrics=by_name,
        wide=matrix_.wide(by_name.values(), len(ranks)),
        ranks=ranks,
        attempts=[one.cells() for one in attempts(bundle, verdict)],
        headings=HEADINGS,
        netcheck=matrix(bundle),
        acceptance=acceptance.view(bundle),
        training=training.view(bundle, by_name),
        marks=acceptance.MARKS,
        describe=describe,
        plots=plots,
        lanes=all_lanes,
        ticks=ticks(end - begin),
        place=positions(begin, end),
        logs=list(_logs(bundle)),
        events=list(_events(bundle)),
        facts=_facts(manifest),
    )


def write(bundle: Bundle, verdict: Verdict, path: Path | None = None) -> Path:
    """Write the page to a file atomically. The default is REPORT in the bundle.

    The page does not need redaction, because the bundle is already redacted.
    """
    path = path or bundle.path / REPORT
    replace_file(path, render(bundle, verdict))
    return path


def _tiles(manifest: Manifest, by_name: dict[str, Metric]) -> list[tuple[str, str]]:
    logged = sum(cell.logged for metric in by_name.values() for cell in metric.cells.values())
    missing = sum(metric.missing_count for metric in by_name.values())
    tiles = []
    if manifest.expected:
        tiles.append(("ranks", f"{manifest.expected.ranks} on {manifest.expected.num_nodes} nodes"))
    launch = manifest.launch
    if launch is None or (launch.netcheck != "alone" and launch.acceptance is None):
        if manifest.expected:
            tiles.append(("run id", manifest.expected.run_id))
        tiles.append(("points logged", f"{logged}"))
        tiles.append(("not in the run", f"{missing}"))
    if manifest.retries:
        tiles.append(("tried again", f"{len(manifest.retries)} requests"))
    start, end = seconds(manifest.started_at), seconds(manifest.ended_at)
    if start is not None and end is not None:
        tiles.append(("took", f"{end - start:.1f} s"))
    return tiles


def _checks(verdict: Verdict) -> list[tuple[bool, list[Check]]]:
    """Return two groups of (expanded, checks): those that did not pass, and those that passed.

    The second group is collapsed if there are checks in both groups.
    """
    passed = [check for check in verdict.checks if check.result == "PASS"]
    failed = [check for check in verdict.checks if check.result == "FAIL"]
    not_passed = failed + [check for check in verdict.checks if check.result == "UNKNOWN"]
    return [(True, not_passed), (not not_passed, passed)]


def _logs(bundle: Bundle) -> Iterator[Log]:
    owner = {pod.name: index for index, pod in bundle.pods().items()}
    names = bundle.names("logs", ".log")
    limit = min(LOG_LINES, max(1, ALL_LINES // max(1, len(names))))
    for name in names:
        lines = list(_rows(bundle.tail(f"logs/{name}", limit)))
        pod = next((pod for pod in owner if name.startswith(f"{pod}-")), None)
        title = f"node {owner[pod]}" if pod else name.removesuffix(".log")
        yield Log(title, f"logs/{name}", (lines[0][0] - 1) if lines else 0, lines)


def _rows(tail: list[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    """Yield (number, time, text) for each line that a terminal would show for these log lines."""
    for number, line in tail:
        stamp, text = split_time(line)
        users = without_own(text)
        for row in [] if users is None else terminal_text.rows(users):
            yield number, stamp[11:23], row.described


def _events(bundle: Bundle) -> Iterator[dict[str, str]]:
    for state in bundle.history("event")[-MAX_EVENTS:]:
        about = mapping(state.object, "involvedObject")
        yield {
            "time": state.received_at[11:19],
            "type": str(state.object.get("type", "")),
            "reason": str(state.object.get("reason", "")),
            "object": f"{about.get('kind', '')} {about.get('name', '')}",
            "message": str(state.object.get("message", "")),
        }


def _facts(manifest: Manifest) -> dict[str, str]:
    facts = {"started": manifest.started_at, "ended": manifest.ended_at or "not recorded"}
    facts["command"] = " ".join(manifest.command)
    facts |= {name: str(value) for name, value in manifest.cluster.items()}
    facts |= dict(sorted(manifest.versions.items()))
    if manifest.launch:
        facts["launched"] = (
            f"{manifest.launch.kind} {manifest.launch.namespace}/{manifest.launch.object_name}"
        )
    return facts
