"""Compute the timeline of the report: lanes of spans for each stage and object, and the ticks of its axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from harness.core.clock import seconds
from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes import kinds
from harness.evidence.kubernetes.objects import ObjectState, items, mapping
from harness.evidence.schema.bundle import Manifest

MAX_AXIS_SECONDS = 10 * 365 * 86_400
"""Maximum length in seconds of a time axis with ticks. The times in a damaged bundle can be far apart."""
LETTER = 0.85
"""Width of a letter in a label, as a percentage of the timeline's width on a wide screen."""


@dataclass(frozen=True)
class Span:
    """A time span, in seconds since the epoch. `kind` (wait, work, good, bad or idle) sets its colour."""

    start: float
    end: float
    label: str
    kind: str


@dataclass(frozen=True)
class Lane:
    name: str
    spans: list[Span]
    group: str


def lanes(bundle: Bundle, manifest: Manifest) -> list[Lane]:
    """Return the lanes of the timeline.

    There is one lane for each stage, the launched object, its Workload, each rank's pod, and each node that
    was not Ready.
    """
    end = _end(manifest)
    all_lanes = [Lane(name, spans, "harness") for name, spans in _stages(manifest)]
    launched_kind = manifest.launch.kind if manifest.launch else "JobSet"
    for kind, name in ((kinds.FILES.get(launched_kind, "jobset"), launched_kind), ("workload", "Workload")):
        for states in bundle.objects(kind).values():
            all_lanes.append(Lane(f"{name} {states[0].name}", list(_conditions(states, end, kind)), "queue"))
    job = manifest.launch.object_name if manifest.launch else None
    for index, pods in bundle.pod_attempts().items():
        for pod in pods:
            name = pod.name.removeprefix(f"{job}-")
            all_lanes.append(Lane(f"node {index}: pod {name}", list(_pod(list(pod.history), end)), "ranks"))
    for states in bundle.objects("node").values():
        spans = list(_not_ready(states, end))
        if spans:
            all_lanes.append(Lane(f"node {states[0].name}", spans, "nodes"))
    return [lane for lane in all_lanes if lane.spans]


def ticks(length: float) -> list[tuple[float, str]]:
    """Return at most eight ticks at round values for the time axis, as (position in percent, label).

    The number of ticks is limited, because a damaged bundle can result in a very long axis.
    """
    if not 0 < length < MAX_AXIS_SECONDS:
        return []
    hours = 3600 * math.ceil(length / 7 / 3600)
    step = next((s for s in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800) if length / s <= 7), hours)
    return [(100 * t / length, f"{t} s") for t in range(0, int(length) + 1, step)]


def positions(begin: float, end: float) -> Callable[[Lane], list[dict[str, Any]]]:
    """Return a function that maps a lane to the positions, widths (in percent) and labels of its spans."""
    scale = 100 / max(end - begin, 1e-9)

    def place(lane: Lane) -> list[dict[str, Any]]:
        return [
            {
                "left": round((span.start - begin) * scale, 3),
                "width": round(max((span.end - span.start) * scale, 0.25), 3),
                "label": span.label,
                "kind": span.kind,
                "fits": (span.end - span.start) * scale > LETTER * len(span.label) + 1,
                "title": f"{span.label}: {span.start - begin:.1f}–{span.end - begin:.1f} s",
            }
            for span in lane.spans
        ]

    return place


def _end(manifest: Manifest) -> float:
    last = [seconds(stage.started_at) or 0.0 for stage in manifest.stages]
    end_times = [start + stage.seconds for start, stage in zip(last, manifest.stages, strict=True)]
    return max([seconds(manifest.ended_at) or 0.0, seconds(manifest.started_at) or 0.0, *end_times])


def _stages(manifest: Manifest) -> Iterator[tuple[str, list[Span]]]:
    for stage in manifest.stages:
        start = seconds(stage.started_at)
        if start is not None:
            label = f"{stage.name} {stage.seconds:.1f} s"
            kind = "work" if stage.ok else "bad"
            yield stage.name, [Span(start, start + stage.seconds, label, kind)]


def _phase(item: ObjectState, kind: str) -> tuple[str, str]:
    """Return an object's state and the colour for it, based on its most advanced condition."""
    true_conditions = {
        c.get("type") for c in items(item.object, "status", "conditions") if c.get("status") == "True"
    }
    if kind != "workload":
        end_state = next((word for word in ("Complete", "Failed") if word in true_conditions), "")
        state = mapping(item.object, "status").get("terminalState") or end_state
        if state:
            return str(state), "good" if str(state).startswith("Complete") else "bad"
        suspended = mapping(item.object, "spec").get("suspend") is True
        return ("suspended", "wait") if suspended else ("running", "work")
    for name, colour in (
        ("Finished", "good"),
        ("Evicted", "bad"),
        ("Admitted", "work"),
        ("QuotaReserved", "wait"),
    ):
        if name in true_conditions:
            return name, colour
    return "pending", "wait"


def _conditions(states: list[ObjectState], end: float, kind: str) -> Iterator[Span]:
    yield from _runs([(seconds(state.received_at), *_phase(state, kind)) for state in states], end)


def _pod(states: list[ObjectState], end: float) -> Iterator[Span]:
    states_at = []
    for state in states:
        status = mapping(state.object, "status")
        phase = str(status.get("phase", "unknown"))
        waiting_reasons = [
            mapping(c, "state", "waiting").get("reason") for c in items(status, "containerStatuses")
        ]
        label = next((str(reason) for reason in waiting_reasons if reason), phase)
        deleting = mapping(state.object, "metadata").get("deletionTimestamp") and phase == "Running"
        colour = {"Pending": "wait", "Running": "work", "Succeeded": "good", "Failed": "bad"}.get(
            phase, "idle"
        )
        states_at.append((seconds(state.received_at), "being deleted" if deleting else label, colour))
    yield from _runs(states_at, end)


def _not_ready(states: list[ObjectState], end: float) -> Iterator[Span]:
    states_at = []
    for state in states:
        conditions = items(state.object, "status", "conditions")
        ready = next((c.get("status") for c in conditions if c.get("type") == "Ready"), "Unknown")
        states_at.append(
            (seconds(state.received_at), f"Ready is {ready}", "idle" if ready == "True" else "bad")
        )
    if any(colour == "bad" for _, _, colour in states_at):
        yield from _runs(states_at, end)


def _runs(states_at: list[tuple[float | None, str, str]], end: float) -> Iterator[Span]:
    """Yield one span per sequence of equal states. The last span extends to the end of the launch."""
    timed = [(at, label, colour) for at, label, colour in states_at if at is not None]
    start = 0
    for position in range(1, len(timed) + 1):
        if position == len(timed) or timed[position][1:] != timed[start][1:]:
            span_end = timed[position][0] if position < len(timed) else max(end, timed[start][0])
            yield Span(timed[start][0], span_end, timed[start][1], timed[start][2])
            start = position
