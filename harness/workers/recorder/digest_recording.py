"""Record digests of the points, instead of the points themselves, in an admitted pod.

An admitted pod is one to which the admission policy has added the recorder. The policy sets
HARNESS_RECORDER_MODE=admitted (harness/launch/recorder_policy.py). The recorder then writes one line per
minute to the log and a summary at the end (digest_lines.py), so a week of training adds less than 1.5 MB.
Digests of complete blocks of steps also go to the tracker, if it has a route for them (digest_reports.py).
The digests cover the values that the client queues, with the client's own names, steps and times. The account
(queued_values.py) compares the queued values with the values that the program passed to the client.

The recorder does not affect the process in any other way. It does not change other modules' exit handlers,
send other requests or write files. This module uses only the standard library, and supports Python 3.9 and
later.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
import weakref
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ..ground_truth import client_rules
from . import digest_lines as lines
from . import hooks, point_digests
from .client_calls import Call, Recording, crashed, recording_here
from .digest_reports import Reports
from .point_digests import Digests, Metric
from .queued_values import Queue

LINE_SECONDS = 60.0
MAX_AT_FINISH = 3
"""Maximum number of summaries that are written after calls to `run.finish()`. Another one is written at
exit."""
MAX_NAME = 400
"""Maximum length of a metric's name in characters. Metrics with longer names are recorded only in groups."""
MAX_OMITTED, MAX_MERGED, MAX_RENAMED = 20, 20, 1000
OWN_METRICS = "sys/"
"""Prefix of the client's own metrics, which ranks do not log."""
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


class Lines:
    """Writes one process's log lines. Has the methods of client_calls.Stream that `Recording` calls."""

    def __init__(self, nonce: str, rank: int | None, parent: int | None) -> None:
        """Write the first line.

        `parent` is the rank's pid if this process is a child of a rank, otherwise None.
        """
        self.parent = parent
        self._nonce, self._rank = nonce, rank
        self._attempt = "".join(_ALPHABET[byte % 36] for byte in os.urandom(8))
        self._started_at = _now()
        self._number = self._summaries = 0
        self._chain = ""
        self._next = 0.0
        self.fault_text = ""
        self.group: dict[str, Any] | None = None
        """The largest torch.distributed process group of which this process has been a member, or None.

        A rank may form its own group before or after training, for example to evaluate the model.
        """
        self.reports: Reports | None = None
        """The reports about the first run with a complete block, or None if there is no such run yet."""
        self.line({})

    def line(self, digests: Mapping[Any, Digests]) -> None:
        """Write the line with the digest of all points so far.

        `digests` maps each run id to the run's digests.
        """
        group = process_group()
        if group is not None and (self.group is None or group["size"] >= self.group["size"]):
            self.group = group
        self._next = time.monotonic() + LINE_SECONDS
        total = sum(one.total() for one in digests.values()) & point_digests.MASK
        points = sum(one.count for one in digests.values())
        report_state = self.reports.acknowledged if self.reports is not None else (0, "")
        line = lines.Line(self._rank, self._attempt, self._number, points, _now(), "", "", *report_state)
        line = line._replace(digest=lines.short(total, lines.line_bytes(line)))
        line = line._replace(chain=lines.chained(self._chain, line))
        self._write([lines.encode_line(self._nonce, line)])
        self._chain, self._number = line.chain, self._number + 1

    def report(self, digests: Digests, op: Any, *, at_end: bool = False) -> None:
        """Send the digests of a run's complete blocks to the tracker. `op` is the client's run object.

        At the end of a run, all its blocks are complete. They are reported only if at least one block was
        reported earlier.
        """
        if self.reports is None and at_end:
            return
        entries, dropped = digests.take(at_end=at_end)
        short_entries = [entry for entry in entries if len(entry[0]) <= MAX_NAME]
        if self.reports is None and short_entries:
            self.reports = Reports(self._nonce, self._rank, self._attempt, op)
        if self.reports is not None:
            self.reports.add(
                short_entries, dropped + len(entries) - len(short_entries), self._number - 1, self._chain
            )

    @property
    def due(self) -> bool:
        """Return whether LINE_SECONDS seconds have passed since the last line."""
        return time.monotonic() >= self._next

    def summary(self, runs: list[dict[str, Any]], account: dict[str, Any], unreported: int = 0) -> None:
        """Write a summary of at most MAX_SUMMARY bytes.

        `unreported` is the number of blocks that have changed since their last report (Digests.untaken).
        """
        counts = {name: os.environ.get(variable, "") for name, variable in _LIFE.items()}
        body = {
            "start": self._started_at,
            "end": _now(),
            "lines": self._number,
            "chain": self._chain,
            **{name: int(text) if text.isdecimal() else None for name, text in counts.items()},
            "group": self.group,
            "host": os.uname().nodename[:100],
            "pid": os.getpid(),
            "parent": self.parent,
            "crashed": crashed(),
            "fault": self.fault_text,
            "sent": self.reports.state(unreported) if self.reports is not None else None,
            **account,
            "runs": runs,
        }
        self._write(lines.encode_summary(self._nonce, self._rank, self._attempt, self._summaries, body))
        self._summaries += 1

    def _write(self, texts: list[str]) -> None:
        descriptor = hooks.log_of_the_container()
        for text in texts:
            os.write(descriptor, (text + "\n").encode())

    # -- methods of Stream that do nothing here, or only contribute to the summary ---------------------------
    def call(self, *_: Any) -> None:
        """Do nothing, because the digests are computed from the client's queue."""

    def settings(self, *_: Any, **__: Any) -> None:
        """Do nothing, because the summary contains the settings."""

    def rounded(self, *_: Any) -> None:
        """Do nothing, because the digests are computed from the rounded value."""

    def dropped(self, entry: list[Any]) -> None:
        """Do nothing, because the summary contains the outcome of all values."""

    def flush(self) -> None:
        """Do nothing, because lines are not buffered."""

    def code(self) -> None:
        """Do nothing, because the code of processes in an admitted pod is not recorded."""

    def fault(self, text: str) -> None:
        """Store the first reason why points may be missing, for the summary."""
        self.fault_text = self.fault_text or text[:300]


_LIFE = {"restart": "TORCHELASTIC_RESTART_COUNT", "world": "WORLD_SIZE"}


def process_group() -> dict[str, Any] | None:
    """Return the backend, store, rank and size of torch.distributed's default process group, or None.

    If the store is a TCPStore, rank 0 has waited for all ranks. The group then proves that all its ranks
    connected, even if no launcher reported the world size. Other stores, such as a file in each pod, do not
    prove this. Never raises.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_initialized():
            return None
        store = distributed.distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):  # A PrefixStore wraps another store.
            store = store.underlying_store
        names = {"backend": str(distributed.get_backend())[:40], "store": type(store).__name__[:40]}
        return {**names, "rank": int(distributed.get_rank()), "size": int(distributed.get_world_size())}
    except Exception:
        # torch.distributed is being imported or is not included in PyTorch, or its group is being destroyed.
        return None


class Admitted(Recording):
    """Records one process in an admitted pod. Thread-safe."""

    def __init__(self, stream: Lines) -> None:
        super().__init__(stream)  # type: ignore[arg-type]
        self.lines = stream
        self._digests: dict[str, Digests] = {}
        """Maps each run id to the run's digests."""
        self._uploads: dict[str, bool] = {}
        self._ops: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        """Maps each run id to the client's run object."""
        self._names: dict[str, str] = {}
        """Maps the original name of each metric that the client renamed to the name in the run."""
        self._at_finish = 0

    def _queue_of(self, op: Any, manager: Any) -> Queue:
        run = str(getattr(op.settings, "_op_id", ""))
        return Queue(
            manager.store, functools.partial(self.queued_directly, op), functools.partial(self.queued, run)
        )

    def record_call(self, op: Any, data: Any, step: Any, timestamp: Any) -> Call:
        call = super().record_call(op, data, step, timestamp)
        if isinstance(data, dict):
            for name in data:
                if isinstance(name, str) and len(self._names) < MAX_RENAMED:
                    sent_name = client_rules.sent_name(name)
                    if sent_name != name:
                        self._names[name] = sent_name
        return call

    def queued_directly(self, op: Any, metrics: Mapping[str, Any], step: Any, time_ms: Any) -> None:
        own = {name: value for name, value in metrics.items() if not name.startswith(OWN_METRICS)}
        if own:
            super().queued_directly(op, own, step, time_ms)

    def queued(self, run: str, metrics: Mapping[str, Any], step: Any, time_ms: Any) -> None:
        """Add to the digests the numbers that the client queued. Never raises."""
        if not self.here:
            return
        try:
            whole_step = client_rules.whole(step or 0)
            if whole_step is None or client_rules.refused(step or 0):
                return  # The step is invalid. `Account` (queued_values.py) reports the value.
            with self._lock:
                self.lines.group = self.lines.group or process_group()
                digests = self._digests.get(run)
                if digests is None:
                    digests = self._digests[run] = Digests()
                for name, value in metrics.items():
                    number = isinstance(value, (int, float)) and not isinstance(value, bool)
                    if number and not name.startswith(OWN_METRICS):
                        # float() raises OverflowError for a number that exceeds the range of a double. Pluto
                        # rejects such a number.
                        with contextlib.suppress(OverflowError):
                            digests.put(name, whole_step, float(value), int(time_ms))
                if self.lines.due:
                    self.lines.line(self._digests)
                    self._report()
        except Exception as error:
            self.failed(error)

    def _report(self, *, at_end: bool = False) -> None:
        """Send the digests of complete blocks to the tracker. Only one run per process is reported."""
        reports = self.lines.reports
        for run, digests in self._digests.items():
            op = self._ops.get(run)
            own = reports.run == run if reports is not None else self._uploads.get(run, False)
            if own and (op is not None or reports is not None):
                try:
                    self.lines.report(digests, op, at_end=at_end)
                except Exception as error:
                    hooks.say(f"could not send the digests to the tracker: {type(error).__name__}")
                return

    def _report_the_rest(self) -> None:
        """Send the remaining digests, and wait briefly until the tracker has acknowledged them."""
        with self._lock:
            self._report(at_end=True)
            reports = self.lines.reports
        if reports is not None:
            reports.wait()

    def record_settings(self, op: Any) -> None:
        run = str(getattr(op.settings, "_op_id", ""))
        self._uploads[run] = bool(op.settings.sync_process_enabled)
        self._ops[run] = op

    def finished(self) -> None:
        """Write a summary after `run.finish()`, because the process may be killed before it exits."""
        if self._at_finish >= MAX_AT_FINISH or self._ended:
            return
        self._report_the_rest()
        with self._lock:
            if self._at_finish < MAX_AT_FINISH and not self._ended:
                self._at_finish += 1
                self._summary()

    def end(self) -> None:
        """Write the summary, even after an uncaught exception. It contains only points that were queued."""
        if self._ended:
            return
        self._report_the_rest()
        with self._lock:
            if not self._ended:
                self._ended = True
                self._summary()

    def pause(self) -> None:
        self.finished()

    def failed(self, error: Exception) -> None:
        super().failed(error)
        if self._ended:  # An exit handler has logged points after the summary was written.
            with self._lock:
                self._summary()

    def _summary(self) -> None:
        try:
            if self._digests:
                self.lines.line(self._digests)
            omitted_entries, totals = self._account.frames()
            omitted_entries.sort(key=lambda entry: entry[1] == "NoneType")
            account = {**totals, "omitted": omitted_entries[:MAX_OMITTED]}
            room = lines.MAX_JSON - len(json.dumps(account)) - 2000
            runs = {**dict.fromkeys(self._uploads), **dict.fromkeys(self._digests)}
            each = room // max(1, len(runs))
            reports = self.lines.reports
            digests = self._digests.get(reports.run) if reports is not None else None
            unreported = digests.untaken if digests is not None else 0
            self.lines.summary([self._run(run, each) for run in runs], account, unreported)
        except Exception as error:
            hooks.say(f"could not write its summary: {error!r}")

    def _run(self, run: str, room: int) -> dict[str, Any]:
        digests = self._digests.get(run) or Digests()
        original_names: dict[str, list[str]] = {}
        for name, sent_name in self._names.items():
            if sent_name in digests.metrics:
                original_names.setdefault(sent_name, []).append(name[:200])
        head = {
            "run": run[:100],
            "uploads": self._uploads.get(run, True),
            "merged": [[sent_name[:200], names[:4]] for sent_name, names in original_names.items()][
                :MAX_MERGED
            ],
            "uncounted": digests.uncounted,
        }
        return {**head, **sections(digests, room - len(json.dumps(head)) - 100)}


def sections(digests: Digests, room: int) -> dict[str, Any]:
    """Return a summary's metrics and groups, in at most `room` bytes of JSON."""
    entries: list[list[Any]] = []
    groups: dict[int, list[Any]] = {}
    remaining = room - 60 * lines.GROUPS
    for metric in digests.metrics.values():
        entry = _entry(metric)
        size = len(json.dumps(entry)) + 3
        if len(metric.name) <= MAX_NAME and size <= remaining:
            remaining -= size
            entries.append(entry)
            continue
        # Group all further metrics too, so that the same metrics have their own entries in every summary.
        remaining = min(remaining, 0)
        group = groups.setdefault(lines.group_of(metric.name), [0, 0, 0])
        group[0] += 1
        group[1] += metric.count
        is_known = group[2] is not None and not metric.unknown
        group[2] = group[2] + sum(metric.all_nodes().values()) & point_digests.MASK if is_known else None
    each = remaining // max(1, len(entries))
    for entry in entries:
        metric = digests.metrics[entry[0]]
        nodes, unknown, level = metric.all_nodes(), set(metric.unknown), metric.level
        text = lines.nodes_text(nodes, unknown)
        while len(text) > each and len(nodes) > 1:
            nodes, unknown = point_digests.merged(nodes), {node >> 1 for node in unknown}
            level += 1
            text = lines.nodes_text(nodes, unknown)
        if len(text) <= each:
            entry[6], entry[8] = level, text
    group_entries = [
        [group, metrics, points, "" if digest is None else lines.short(digest)]
        for group, (metrics, points, digest) in sorted(groups.items())
    ]
    return {"metrics": entries, "groups": group_entries}


def _entry(metric: Metric) -> list[Any]:
    """Return a metric's entry without the node digests."""
    digest = "" if metric.unknown else lines.short(sum(metric.all_nodes().values()) & point_digests.MASK)
    steps = [metric.count, metric.first, metric.last, metric.began_ms, metric.ended_ms]
    return [metric.name, *steps, metric.level, digest, ""]


def wrap_finish(module: ModuleType) -> None:
    """Wrap `finish` of the client's run class (`pluto.op`), so that a summary is written after each call."""
    run: Any = module.Op
    finish = run.finish

    @functools.wraps(finish)
    def finished(op: Any, *arguments: Any, **options: Any) -> Any:
        result = finish(op, *arguments, **options)
        recording = recording_here()
        if isinstance(recording, Admitted):
            recording.finished()
        return result

    run.finish = finished


def begin(rank: int | None, parent: int | None) -> Admitted:
    """Write the first line, and return the recording of this process."""
    return Admitted(Lines(hooks.variable("HARNESS_NONCE"), rank, parent))


def _now() -> int:
    return int(time.time() * 1000)
