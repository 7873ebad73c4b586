"""From log lines to ground truth: what each rank says it logged, and where its word is incomplete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from harness.evidence.schema import TruthBlock, TruthClient, TruthEnd, TruthGap, TruthLine, TruthRow
from harness.workers import truth_frames


def _lines(frame: dict[str, Any]) -> list[TruthLine]:
    kind = frame["k"]
    if kind == "rows":
        return [
            TruthRow(metric=metric, step=step, value=value, time_ms=time_ms)
            for metric, step, value, time_ms in frame["rows"]
        ]
    if kind == "block":
        return [TruthBlock.model_validate({name: v for name, v in frame.items() if name != "k"})]
    if kind == "client":
        return [TruthClient.model_validate({name: v for name, v in frame.items() if name != "k"})]
    if kind == "end":
        return [TruthEnd(count=frame["count"], sha256=frame["sha256"], metrics=frame.get("metrics") or {})]
    raise ValueError(f"a truth frame of kind {kind!r}")


class TruthCollector:
    """Takes log lines in any order and any number of times; keeps each frame once, by rank and sequence."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._frames: dict[int, dict[int, list[TruthLine]]] = {}
        self._conflicts: dict[int, set[int]] = {}

    def feed(self, line: str) -> None:
        """Keep the frames of one log line. A frame that is not well-formed is left out: it shows as a gap."""
        try:
            frames = list(truth_frames.decode(self._nonce, [line]))
        except ValueError:
            return
        for frame in frames:
            try:
                rank, seq, decoded = int(frame["r"]), int(frame["q"]), _lines(frame)
            except (KeyError, TypeError, ValueError, ValidationError):
                continue
            known = self._frames.setdefault(rank, {}).setdefault(seq, decoded)
            if known is not decoded and [*map(repr, known)] != [*map(repr, decoded)]:
                self._conflicts.setdefault(rank, set()).add(seq)

    def result(self) -> dict[int, list[TruthLine]]:
        """Rank → its lines by sequence, with a TruthGap where frames are missing.

        Two different frames of one number (a rank that started again) are a gap from it to itself.
        """
        return {rank: self._of(rank) for rank in sorted(self._frames)}

    def _of(self, rank: int) -> list[TruthLine]:
        lines: list[TruthLine] = []
        last = -1
        for seq, decoded in sorted(self._frames[rank].items()):
            if seq != last + 1:
                lines.append(TruthGap(after_seq=last, next_seq=seq))
            if seq in self._conflicts.get(rank, ()):
                lines.append(TruthGap(after_seq=seq, next_seq=seq))
            lines.extend(decoded)
            last = seq
        return lines


def extract(lines: Iterable[str], nonce: str) -> dict[int, list[TruthLine]]:
    """The ground truth in log lines, before redaction, of any number of containers: rank → lines."""
    collector = TruthCollector(nonce)
    for line in lines:
        collector.feed(line)
    return collector.result()
