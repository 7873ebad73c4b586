"""Decode each rank's ground truth from log lines. TruthGap records mark the places of missing frames."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from harness.evidence.schema.ground_truth import (
    TruthAccount,
    TruthBatching,
    TruthBlock,
    TruthClient,
    TruthCode,
    TruthEnd,
    TruthFault,
    TruthGap,
    TruthInit,
    TruthLeft,
    TruthLine,
    TruthMetrics,
    TruthRewrite,
    TruthRow,
    TruthSettings,
    TruthStart,
)
from harness.workers.ground_truth import truth_frames

OUTSIDE = "outside"
"""The value of a frame's "s" field if the frame comes from the recorder that wraps the Pluto client, and not
from the worker."""


_AsItIs = (
    TruthAccount
    | TruthBatching
    | TruthBlock
    | TruthClient
    | TruthCode
    | TruthFault
    | TruthInit
    | TruthLeft
    | TruthMetrics
    | TruthRewrite
    | TruthSettings
)
_AS_THEY_ARE: dict[str, type[_AsItIs]] = {
    "account": TruthAccount,
    "batching": TruthBatching,
    "init": TruthInit,
    "left": TruthLeft,
    "settings": TruthSettings,
    "block": TruthBlock,
    "client": TruthClient,
    "code": TruthCode,
    "fault": TruthFault,
    "metrics": TruthMetrics,
    "rewrite": TruthRewrite,
}
"""Maps a frame's kind to its record type, for the kinds whose frames have the same fields as their
records."""


def _lines(frame: dict[str, Any], pod: str) -> list[TruthLine]:
    kind = frame["k"]
    fields = {name: value for name, value in frame.items() if name != "k"}
    if kind == "start":
        return [
            TruthStart.model_validate(
                {
                    **fields,
                    "attempt": frame["a"],
                    "time_ms": frame["t"],
                    "pod": pod or None,
                    "outside": frame.get("s") == OUTSIDE,
                }
            )
        ]
    if kind == "rows":
        return [
            TruthRow(metric=metric, step=step, value=value, time_ms=time_ms)
            for metric, step, value, time_ms in frame["rows"]
        ]
    if kind in _AS_THEY_ARE:
        return [_AS_THEY_ARE[kind].model_validate(fields)]
    if kind == "end":
        return [TruthEnd(count=frame["count"], sha256=frame["sha256"], metrics=frame.get("metrics") or {})]
    raise ValueError(f"a truth frame of kind {kind!r}")


@dataclass
class _Attempt:
    """The frames of one attempt, keyed by sequence number, and the pod whose log contains them."""

    pod: str = ""
    outside: bool = False
    frames: dict[int, list[TruthLine]] = field(default_factory=dict)
    conflicts: set[int] = field(default_factory=set)

    def lines(self, id_: str) -> list[TruthLine]:
        lines: list[TruthLine] = []
        last = -1
        for seq, decoded in sorted(self.frames.items()):
            if seq < 0:  # Frames from a rank's child processes are not part of the sequence.
                lines.extend(decoded)
                continue
            if seq != last + 1:
                lines.append(TruthGap(after_seq=last, next_seq=seq))
            if seq in self.conflicts:
                lines.append(TruthGap(after_seq=seq, next_seq=seq))
            lines.extend(decoded)
            last = seq
        if not id_:
            return lines
        # If the attempt's start frame was lost, a start record is added.
        # Without it, readers would attribute the rows to the previous attempt.
        first = [line for line in lines if isinstance(line, TruthStart)]
        start = first[0] if first else self._assumed_start(id_)
        return [start, *(line for line in lines if not isinstance(line, TruthStart))]

    def _assumed_start(self, id_: str) -> TruthStart:
        return TruthStart(attempt=id_, time_ms=self.began, pod=self.pod or None, outside=self.outside)

    @property
    def began(self) -> int:
        """Return the earliest time recorded in the attempt, in milliseconds since the epoch, or 0 if there is
        none."""
        times = [
            line.time_ms
            for lines in self.frames.values()
            for line in lines
            if isinstance(line, TruthStart | TruthRow)
        ]
        return min(times, default=0)


class TruthCollector:
    """Collects the ground truth frames in log lines.

    Lines can be added in any order, and more than once. For each rank, attempt and sequence number, only one
    frame is kept.
    """

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._attempts: dict[int, dict[str, _Attempt]] = {}

    def feed(self, line: str, pod: str = "") -> None:
        """Add the frames in one line from a pod's log. A malformed frame becomes a gap in the sequence."""
        try:
            frames = list(truth_frames.decode(self._nonce, [line]))
        except ValueError:
            return
        for frame in frames:
            try:
                rank, id_, seq = int(frame["r"]), str(frame.get("a", "")), int(frame["q"])
                decoded = _lines(frame, pod)
            except (KeyError, TypeError, ValueError, AttributeError, ValidationError):
                continue
            attempt = self._attempts.setdefault(rank, {}).setdefault(
                id_, _Attempt(pod, frame.get("s") == OUTSIDE)
            )
            existing = attempt.frames.setdefault(seq, decoded)
            if existing is not decoded and [*map(repr, existing)] != [*map(repr, decoded)]:
                attempt.conflicts.add(seq)

    def result(self) -> dict[int, list[TruthLine]]:
        """Return each rank's ground truth, sorted by the attempts' start times and the frames' numbers.

        A TruthGap marks a place where frames are missing, or where frames with the same number differ. If a
        worker writes its own ground truth, the recorder's attempts are left out.
        """
        return {
            rank: self._of(_recorded_by(attempts, self._outside(rank)))
            for rank, attempts in sorted(self._attempts.items())
        }

    def outside(self) -> dict[int, list[TruthLine]]:
        """Return the recorder's ground truth of each rank whose worker also writes its own ground truth."""
        outside = {rank: _recorded_by(attempts, True) for rank, attempts in sorted(self._attempts.items())}
        return {
            rank: self._of(attempts)
            for rank, attempts in outside.items()
            if attempts and not self._outside(rank)
        }

    def _outside(self, rank: int) -> bool:
        """Return whether the recorder wrote all of the rank's attempts, and the worker none."""
        return all(attempt.outside for attempt in self._attempts[rank].values())

    @staticmethod
    def _of(attempts: dict[str, _Attempt]) -> list[TruthLine]:
        ordered = sorted(attempts.items(), key=lambda entry: (entry[1].began, entry[0]))
        return [line for id_, attempt in ordered for line in attempt.lines(id_)]


def _recorded_by(attempts: dict[str, _Attempt], outside: bool) -> dict[str, _Attempt]:
    return {id_: attempt for id_, attempt in attempts.items() if attempt.outside == outside}


def extract(lines: Iterable[str], nonce: str) -> dict[int, list[TruthLine]]:
    """Return the ground truth of each rank, read from log lines of any number of containers.

    The lines must not have been redacted.
    """
    collector = TruthCollector(nonce)
    for line in lines:
        collector.feed(line)
    return collector.result()
