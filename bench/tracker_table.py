"""The figures of bench/tracker.py as the tables of docs/reference/tracker.md."""

from __future__ import annotations

from typing import Any


def table(found: dict[str, Any]) -> str:
    """Return the figures as the tables of docs/reference/tracker.md."""
    mlflow = any("mlflow" in row for row in found.get("matrix", []))
    lines = [
        "| points a request | senders | tracker, points/s | p50, p99 (ms) | its processor time (µs a point) "
        "| bare loop, points/s | ratio | the senders alone, points/s |"
        + (" MLflow's server, points/s | p50, p99 (ms) |" if mlflow else "")
        + " other work |",
        "|---" * (11 if mlflow else 9) + "|",
    ]
    for row in found.get("matrix", []):
        ours, theirs = row["tracker"], row.get("mlflow")
        cells = [
            row["size"],
            row["senders"],
            f"{ours['points_per_second']:,}",
            _both(ours),
            row["cpu_us_per_point"],
            f"{row['bare']:,}",
            row["ratio"],
            f"{row['senders_alone']:,}",
        ]
        cells += [f"{theirs['points_per_second']:,}", _both(theirs)] if theirs else []
        lines.append(_cells([*cells, f"{row['others']:.0%}"]))
    lines += [
        "",
        "| points a request | senders | at 100 000 points/s: p50, p99 (ms) | the same while others read "
        "| a series of 2000 | list of runs | other work |",
        "|---" * 7 + "|",
    ]
    for row in found.get("half", []):
        cells = [
            _both(row["alone"]),
            _both(row["tracker"]),
            _both(row["reads"]["series"]),
            _both(row["reads"]["runs"]),
        ]
        lines.append(_cells([row["size"], row["senders"], *cells, f"{row['others']:.0%}"]))
    lines += [
        "",
        "| rows | audit (s) | into a bundle (s) | memory (MiB) | bytes on the disk a point | other work |",
        "|---" * 6 + "|",
    ]
    for row in found.get("audit", []):
        bundle = row["bundle_seconds"]
        cells = [
            f"{row['rows']:,}",
            row["seconds"],
            bundle,
            row["memory"]["VmHWM"],
            row["disk_bytes_per_point"],
        ]
        lines.append(_cells([*cells, f"{row['others']:.0%}"]))
    return "\n".join(lines)


def _both(figures: dict[str, float]) -> str:
    refused = f"; {figures['refused']} of {figures['requests']} refused" if figures.get("refused") else ""
    return f"{figures['p50']}, {figures['p99']}{refused}"


def _cells(cells: list[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
