"""A process that logs and reports its blocks, with the recorder's own code and without a tracker."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

from admitted_process import RUN, Process

from harness.evidence.schema.tracker import DigestReport
from harness.workers.recorder import digest_lines as lines
from harness.workers.recorder import digest_reports


@dataclass
class Reporting(Process):
    """A process whose minutes report the complete blocks. Each report is acknowledged at once."""

    stored: list[bytes] = field(default_factory=list)
    head: bytes = b""
    acknowledged: tuple[int, str] = (0, "")
    dropped: int = 0

    def minute(self, time: int) -> None:
        line = lines.Line(self.rank, self.attempt, self.count, self.digests.count, time, "", "")
        line = line._replace(reports=self.acknowledged[0], head=self.acknowledged[1])
        line = line._replace(digest=lines.short(self.digests.total(), lines.line_bytes(line)))
        line = line._replace(chain=lines.chained(self.chain, line))
        self.written.append(lines.encode_line(self.nonce, line))
        self.chain, self.count = line.chain, self.count + 1
        self.report()

    def report(self, *, at_end: bool = False, drop: bool = False) -> None:
        entries, _ = self.digests.take(at_end=at_end)
        if drop:
            self.dropped += len(entries)
        elif entries:
            body = {"process": self.attempt, "rank": self.rank, "number": len(self.stored)}
            body |= {"line": self.count - 1, "chain": self.chain, "entries": entries}
            self.store(json.dumps(body).encode())

    def store(self, report: bytes) -> None:
        head = self.head or digest_reports.first_head(self.nonce, self.attempt, RUN)
        self.head = digest_reports.head_after(head, report)
        self.stored.append(report)
        self.acknowledged = len(self.stored), digest_reports.head_text(self.head)

    def end(self, *, unsent: bool = False, **changed: Any) -> Reporting:
        if not unsent:
            self.report(at_end=True)
        sent = {"run": RUN, "reports": len(self.stored), "head": self.acknowledged[1], "why": ""}
        sent |= {"unsent": self.digests.untaken, "dropped": self.dropped, "failures": 0}
        super().end(**{"sent": sent, **changed})
        return self

    def in_tracker(self) -> list[DigestReport]:
        return [packed(number, report, self.attempt) for number, report in enumerate(self.stored)]


def packed(number: int, report: bytes, process: str = "attempt0") -> DigestReport:
    text = base64.b64encode(zlib.compress(report)).decode().rstrip("=")
    return DigestReport(run_id=int(RUN), process=process, number=number, packed=text)
