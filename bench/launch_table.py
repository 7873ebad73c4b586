"""The tables and pictures of bench/launch.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from machine import Used, machine

from harness.core.kubernetes import condition
from harness.evidence.io.reader import Bundle

FLOORS = {
    "cold": ("bare create", "job", "bare delete"),
    "fresh": ("bare create", "job", "bare delete"),
    "up": ("bare create",),
    "documented": ("cold",),
    "resumed": ("job",),
    "kept": ("job",),
    "edit": ("job",),
    "failing": ("job",),
    "four jobs": ("one small",),
    "beside": ("one small",),
}
"""What an arm is compared with: the sum of these in the same round."""
COLUMNS = ("arm", "s", "least – most", "÷", "ratio", "processor s", "MiB of memory", "MiB of disk")


def markdown(
    workers: int, seconds: dict[str, list[float]], used: dict[str, list[Used]], bundles: dict[str, list[Path]]
) -> str:
    """Return the table, and pictures of single launches. Memory and disk are the most of all rounds."""
    rounds = max(map(len, seconds.values()))
    lines = [f"{machine()}; {workers} workers beside the control plane. Medians of {rounds} rounds.", ""]
    lines += [f"| {' | '.join(COLUMNS)} |", "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |"]
    for arm, values in seconds.items():
        floor = [name for name in FLOORS.get(arm, ()) if name in seconds]
        floors = map(sum, zip(*(seconds[name] for name in floor), strict=False))  # documented: some rounds
        ratios = [value / below for value, below in zip(values, floors, strict=False)]
        ratio = f"{median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})" if ratios else ""
        spread = f"{min(values):.1f} – {max(values):.1f}"
        processor = f"{median(each.processor for each in used[arm]):.0f}"
        most = [max(each.memory for each in used[arm]) >> 20, max(each.disk for each in used[arm]) >> 20]
        cells = [arm, f"{median(values):.1f}", spread, ", ".join(floor), ratio, processor, *map(str, most)]
        lines.append(f"| {' | '.join(cells)} |")
    if "failing" in bundles:
        late = zip(*map(told_after, bundles["failing"]), strict=True)
        container, job = (f"{median(each):.2f} s ({min(each):.2f} – {max(each):.2f})" for each in late)
        lines += ["", f"failing: the verdict with its cause was written {job} after the API server showed"]
        lines += [f"that the JobSet had failed, {container} after it showed the first failed container."]
    for arm in ("cold", "kept", "failing"):
        if arm in bundles:
            lines += ["", *picture(arm, bundles[arm][-1])]
    return "\n".join(lines)


def told_after(bundle: Path) -> tuple[float, float]:
    """Return how many seconds before the verdict a failed container was seen, and the JobSet's failure."""
    written = (bundle / "verdict.json").stat().st_mtime

    def first(kind: str, failed: Callable[[Any], bool]) -> float:
        for line in (bundle / f"objects/{kind}.jsonl").read_text().splitlines():
            seen = json.loads(line)
            if failed(seen["object"].get("status") or {}):
                return written - time_of(seen["received_at"])
        raise SystemExit(f"{bundle}: no {kind} failed")

    def container(status: Any) -> bool:
        ends = [each["state"].get("terminated") for each in status.get("containerStatuses") or []]
        return any(end and end["exitCode"] for end in ends)

    return first("pod", container), first("jobset", lambda s: bool(condition({"status": s}, "Failed")))


def picture(arm: str, bundle: Path) -> list[str]:
    """Return the stages of one launch as a Gantt chart in Mermaid: what waited for what."""
    manifest = Bundle.open(bundle).manifest
    assert manifest is not None
    lines = [
        "```mermaid",
        "gantt",
        f"  title {arm}: the last of the rounds",
        "  dateFormat x",
        "  axisFormat %M:%S",
    ]
    stages = sorted(manifest.stages, key=lambda stage: stage.started_at)
    begun = time_of(stages[0].started_at)
    for stage in stages:
        at = round(1000 * (time_of(stage.started_at) - begun))
        lines.append(
            f"  {stage.name} ({stage.seconds:.1f} s) :{at}, {at + max(1, round(1000 * stage.seconds))}"
        )
    return [*lines, "```"]


def time_of(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
