"""A process that logs as an admitted recorder sees it, without the client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.workers.recorder import digest_lines as lines
from harness.workers.recorder import digest_recording
from harness.workers.recorder.point_digests import Digests

UID, OTHER = "11111111-aaaa", "22222222-bbbb"
RUN = "17"
Row = tuple[str, int, float, int]


@dataclass
class Process:
    """A process that logs as a recorder sees it, without the client."""

    rank: int = 0
    attempt: str = "attempt0"
    nonce: str = UID
    digests: Digests = field(default_factory=Digests)
    rows: list[Row] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    chain: str = ""
    count: int = 0

    def __post_init__(self) -> None:
        self.minute(0)

    def log(self, metric: str, step: int, value: float, time: int) -> None:
        self.digests.put(metric, step, value, time)
        self.rows.append((metric, step, value, time))

    def minute(self, time: int) -> None:
        digest = lines.short(self.digests.total(), 12)
        line = lines.Line(self.rank, self.attempt, self.count, self.digests.count, time, digest, "")
        line = line._replace(chain=lines.chained(self.chain, line))
        self.written.append(lines.encode_line(self.nonce, line))
        self.chain, self.count = line.chain, self.count + 1

    def end(self, **changed: Any) -> Process:
        self.minute(99)
        count = self.digests.count
        account = {"handed": count, "logged": count, "left": 0, "past": 0, "unseen": "", "omitted": []}
        life = {"start": 1, "end": 99, "restart": None, "host": "h", "pid": 7, "parent": None, "fault": ""}
        run = {"run": RUN, "uploads": True, "merged": [], "uncounted": 0}
        runs = [{**run, **digest_recording.sections(self.digests, lines.MAX_JSON)}]
        body = {**life, "lines": self.count, "chain": self.chain, **account, "runs": runs, **changed}
        self.written += lines.encode_summary(self.nonce, self.rank, self.attempt, 0, body)
        return self
