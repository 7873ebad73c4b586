"""Record what a rank logs, independently of the tracker and its client.

    truth = Recorder.from_env(rank)
    truth.record("loss/node0", step, value)   # before every run.log()
    truth.end()                                  # at the end; writes the digest to the termination message

Import this module before the client is initialised. Frames are written to the process's stdout at the time of
the import. A client that captures the console replaces stdout with a pipe to itself, and the contents of that
pipe are lost if the process dies abruptly. The wire format is in truth_frames.py. This module uses only the
standard library.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from . import client_rules, code_digest
from . import truth_frames as frames
from .kept_rows import KeptRows

ROWS_PER_FRAME = 20
BLOCK_ROWS = 1000
AT_ONCE_PER_SECOND, AT_ONCE_IN_A_ROW = 1000.0, 200.0
"""The rate limit (rows per second) and the burst size. Up to these limits, each row is written immediately in
its own frame, so that no row is lost if the process is killed. A rank that logs faster writes several rows
per frame."""
MAX_WARNINGS = 200
"""Maximum number of warnings in the log. There is at most one per metric and reason."""
STDOUT, STDERR = os.dup(1), os.dup(2)
"""Duplicates of the original stdout and stderr. They remain valid after a redirection, and child processes do
not inherit them."""


class Recorder:
    """Records one rank's rows (metric, step, value) in order. Not thread-safe."""

    mark: ClassVar[dict[str, str]] = {}
    """Extra fields in each frame and in the result file. Only recorder/client_calls.py sets them."""

    def __init__(self, nonce: str, rank: int, *, row_limit: int = 200_000, fd: int = STDOUT) -> None:
        """Write the start frame.

        Rows beyond `row_limit` are recorded in blocks, with one digest per block.
        """
        self.nonce = nonce
        self.rank = rank
        self.row_limit = row_limit
        self.fd = fd
        self.count = 0
        self.attempt = f"{int(time.time() * 1000):x}-{os.urandom(4).hex()}"
        self._seq = 0
        self._root = hashlib.sha256()
        self._pending: list[list[Any]] = []
        self._credit, self._credited = AT_ONCE_IN_A_ROW, time.monotonic()
        self._batching = False
        self._blocks: dict[str, list[tuple[str, int, float]]] = {}
        self._metrics: dict[str, tuple[int, Any]] = {}
        self._kept_rows: dict[str, KeptRows] = {}
        self._in_blocks: set[str] = set()
        self._reports_code = False
        self._warned: set[tuple[str, str]] = set()
        """The (metric, reason) pairs for which a warning has been written."""
        self._write({"k": "start", "t": int(time.time() * 1000), **self._life()})

    @classmethod
    def from_env(cls, rank: int) -> Recorder:
        """Return a recorder that uses the launch's HARNESS_NONCE. Raises RuntimeError if it is not set."""
        nonce = os.environ.get("HARNESS_NONCE", "")
        if not nonce:
            raise RuntimeError(
                "HARNESS_NONCE is not set, so no ground truth can be "
                "recorded. Launch this script with `harness run`."
            )
        recorder = cls(nonce, rank, row_limit=int(os.environ.get("HARNESS_TRUTH_ROWS", "200000")))
        recorder.code()
        return recorder

    def code(self, last: bool = False) -> None:
        """Record which code this process runs (code_digest.py). `end` calls this again with `last=True`."""
        self.flush()
        try:
            facts = code_digest.facts(last)
        except Exception as error:
            # Training must continue even if the code cannot be identified. The checks report the reason.
            facts = [["error", type(error).__name__, str(error)[:300]]]
        self._reports_code = True
        self._write_in_parts(facts, lambda part: {"k": "code", "facts": part})

    def record(self, metric: str, step: int, value: Any, time_ms: int | None = None) -> None:
        """Record a value that this rank is about to log with `run.log({metric: value}, step=step)`.

        `time_ms` is the point's time, by default the current time. Values that are not numbers are not
        recorded as rows. If the client will change or drop the value, this method writes a warning to the log
        and a frame for the harness, once per metric and reason.
        """
        delivery = client_rules.sent(value, step)
        if delivery.why:
            self._report_change(metric, step, value, delivery)
        if (name := client_rules.sent_name(metric)) != metric:
            self._warn(metric, "name", f"Pluto's client renames {metric!r} to {name!r}")
        whole = client_rules.whole(step)
        if whole is not None:
            for number in delivery.values:
                self._record(metric, whole, number, time_ms)

    def _record(self, metric: str, step: int, value: float, time_ms: int | None) -> None:
        row = frames.row_bytes(metric, step, value)
        self._root.update(row)
        count, sha = self._metrics.setdefault(metric, (0, hashlib.sha256()))
        sha.update(row)
        self._metrics[metric] = (count + 1, sha)
        self.count += 1
        time_ms = time_ms or int(time.time() * 1000)
        kept_rows = self._kept_rows.get(metric)
        if kept_rows is None:
            kept_rows = self._kept_rows[metric] = KeptRows()
        kept_rows.put(int(step), value, time_ms)
        if self.count > self.row_limit:
            self._to_block(metric, step, value)
            return
        self._pending.append([metric, int(step), frames.encode_value(value), time_ms])
        if len(self._pending) >= ROWS_PER_FRAME or self._may_write_at_once():
            self.flush()

    def flush(self) -> None:
        """Write the pending rows to the log as frames."""
        row_count = min(self.count, self.row_limit)
        self._write_in_parts(
            self._pending, lambda part: {"k": "rows", "n": row_count - len(self._pending), "rows": part}
        )

    def client(self, state: dict[str, Any] | None) -> None:
        """Record the steps that the Pluto client has queued and sent, as returned by client_state.read.

        If the sent steps do not fit into a frame, they are omitted. If the rest does not fit either, nothing
        is recorded.
        """
        if state is None:
            return
        self.flush()
        for payload in (state, {**state, "whole": False, "sent": {}}):
            try:
                self._write({"k": "client", **payload})
                return
            except ValueError:
                continue

    def end(self, output_dir: str | None = None) -> dict[str, Any]:
        """Write the remaining frames.

        Write the row count and digest to $KONDUKTOR_OUTPUT_DIR, and return them.
        """
        blocks = self._write_blocks, self._write_kept
        for write in (self.flush, *blocks, self._write_last_code, self._write_metrics):
            self.guarded(write)
        summary = {"count": self.count, "sha256": self._root.hexdigest()}
        self._write({"k": "end", **summary})
        folder = output_dir or os.environ.get("KONDUKTOR_OUTPUT_DIR")
        if folder:
            _merge_result(Path(folder) / "result.json", self.rank, {**summary, **self.mark})
        return summary

    def guarded(self, write: Callable[[], None]) -> None:
        """Call a function that writes frames. If it raises an exception, record a fault and continue."""
        while True:
            try:
                return write()
            except Exception as error:
                self.fault(f"{type(error).__name__}: {error}")
                if not isinstance(error, ValueError) or not self._pending:
                    return None
                # The row that was too long for a frame has been dropped. Write the rows after it.

    def fault(self, text: str) -> None:
        """Record that rows may be missing, and why."""
        self._write({"k": "fault", "text": text[:500]})

    def _write_blocks(self) -> None:
        for metric in list(self._blocks):
            self._write_block(metric)

    def _write_last_code(self) -> None:
        if self._reports_code:
            self.code(last=True)

    def _write_metrics(self) -> None:
        if self.count > self.row_limit:
            metrics = [[name, rows, sha.hexdigest()] for name, (rows, sha) in self._metrics.items()]
            self._write_in_parts(metrics, lambda part: {"k": "metrics", "metrics": part})

    def _report_change(self, metric: str, step: int, value: Any, delivery: client_rules.Sent) -> None:
        """Report in the log and in a frame how the client changes or drops a value.

        Long texts are truncated.
        """
        reason = delivery.why.partition(":")[0]
        if not self._warn(metric, reason, f"{metric!r} = {repr(value)[:80]} at step {step}: {delivery.why}"):
            return
        self.flush()
        change = {"metric": metric[:400], "step": str(step)[:40], "was": repr(value)[:80]}
        self._write({"k": "rewrite", **change, "kept": delivery.kept, "why": delivery.why[:300]})

    def _warn(self, metric: str, reason: str, text: str) -> bool:
        """Write a warning to the log, once per metric and reason. Return whether it was written."""
        if (metric, reason) in self._warned or len(self._warned) >= MAX_WARNINGS:
            return False
        self._warned.add((metric, reason))
        os.write(self.fd, f"[rank {self.rank}] warning: {text}\n".encode(errors="backslashreplace"))
        return True

    def _to_block(self, metric: str, step: int, value: float) -> None:
        rows = self._blocks.setdefault(metric, [])
        rows.append((metric, int(step), value))
        if len(rows) >= BLOCK_ROWS:
            self._write_block(metric)

    def _write_block(self, metric: str) -> None:
        rows = self._blocks.pop(metric)
        steps = [step for _, step, _ in rows]
        span = {"first": min(steps), "last": max(steps), "count": len(rows)}
        ordered = {"ordered": self._kept_rows[metric].ascending}
        self._in_blocks.add(metric)
        self._write({"k": "block", "metric": metric, **span, "sha256": frames.block_digest(rows), **ordered})

    def _write_kept(self) -> None:
        """For each metric in blocks whose steps went back or repeated, write the rows that Pluto keeps."""
        for metric in self._in_blocks:
            rows = self._kept_rows[metric]
            if rows.ascending or not rows.known:
                continue
            part: list[tuple[int, float, bool, bool]] = []
            for row in rows.kept():
                part.append(row)
                if len(part) >= BLOCK_ROWS:
                    self._write_kept_block(metric, part)
                    part = []
            if part:
                self._write_kept_block(metric, part)

    def _write_kept_block(self, metric: str, rows: list[tuple[int, float, bool, bool]]) -> None:
        span = {"first": rows[0][0], "last": rows[-1][0], "count": len(rows)}
        sha256 = frames.block_digest((metric, step, value) for step, value, _, _ in rows)
        counts = {"again": sum(row[2] for row in rows), "older": sum(row[3] for row in rows)}
        head = {"k": "block", "metric": metric, **span, "sha256": sha256}
        self._write({**head, "kept": True, "ordered": True, **counts})

    def _may_write_at_once(self) -> bool:
        """Return whether the rate limit allows a separate frame for this row.

        Before the first row waits, a frame announces that rows may wait, because waiting rows are lost if the
        process is killed.
        """
        now = time.monotonic()
        credit = self._credit + (now - self._credited) * AT_ONCE_PER_SECOND
        self._credit, self._credited = min(AT_ONCE_IN_A_ROW, credit), now
        if self._credit < 1:
            if not self._batching:
                self._batching = True
                self._write({"k": "batching", "rows": ROWS_PER_FRAME})
            return False
        self._credit -= 1
        return True

    def _write_in_parts(self, items: list[Any], payload: Callable[[list[Any]], dict[str, Any]]) -> None:
        """Write the items as frames, and remove each written item from the list.

        If a frame would be too long for one pipe write, its items are split over several frames.
        """
        size = len(items)
        while items:
            try:
                self._write(payload(items[:size]))
                del items[:size]
            except ValueError:
                if size == 1:
                    del items[:1]  # Remove this item, because it would block all later items.
                    raise
                size //= 2

    def _write(self, payload: dict[str, Any]) -> None:
        """Write one frame. If it would be too long, writes nothing and raises ValueError."""
        head = {"k": payload["k"], "r": self.rank, "a": self.attempt, "q": self._seq}
        line = frames.encode(self.nonce, {**head, **self.mark, **payload})
        os.write(self.fd, (line + "\n").encode())
        self._seq += 1

    def _life(self) -> dict[str, Any]:
        """Return this attempt's host and pid, torchrun's restart count and limit, and the world size."""
        counts = {"restart": "TORCHELASTIC_RESTART_COUNT", "max_restarts": "TORCHELASTIC_MAX_RESTARTS"}
        counts["world"] = "WORLD_SIZE"
        texts = {name: os.environ.get(variable, "") for name, variable in counts.items()}
        numbers = {name: int(text) if text.isdecimal() else None for name, text in texts.items()}
        return {"host": os.uname().nodename, "pid": os.getpid(), **numbers}


def _merge_result(path: Path, rank: int, summary: dict[str, Any]) -> None:
    """Merge the summary into the pod's result file: {"truth": {"<rank>": {"count": …, …}}}.

    A summary with the key "s" comes from the recorder that wraps the client. It does not replace an entry
    that the worker's own recorder has written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = json.loads(path.read_text()) if path.exists() else {}
        summaries = result.setdefault("truth", {})
        if "s" not in summary or "s" in summaries.get(str(rank), summary):
            summaries[str(rank)] = summary
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(result, separators=(",", ":")))
        os.replace(partial, path)
