"""Record what a program hands to Pluto's client, around the client's own calls. The client does what it did.

A point is recorded before the client has it, as the caller gave it: its own name, the value that the client
would send, and the step that the client uses where the caller gives none (pluto-ml 0.0.29, op.py). Files,
tables, histograms and text are no points. Standard library only, Python 3.9 and later.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, ClassVar  # noqa: UP035 - Python 3.9

from . import client_state, outside, truth_frames
from .ground_truth import STDOUT, Recorder


class Stream(Recorder):
    """The frames of the recorder around the client. Rows of one call share a frame."""

    mark: ClassVar[dict[str, str]] = {"s": "outside"}
    _in_call = False

    def call(self, rows: list[tuple[str, int, float]], time_ms: int) -> None:
        """Record the points of one call."""
        self._in_call = True
        try:
            for metric, step, value in rows:
                self.record(metric, step, value, time_ms)
        finally:
            self._in_call = False
        if rows and self._may_write_at_once():
            self.flush()

    def fault(self, text: str) -> None:
        """Record that rows may be missing, and why."""
        self._write({"k": "fault", "text": text[:500]})

    def _may_write_at_once(self) -> bool:
        return not self._in_call and super()._may_write_at_once()


class Outside:
    """What one process records. For several threads; a forked child does not record."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.queue: str | None = None
        """The client's own queue, a database."""
        self.counting = threading.RLock()
        """Held during a call of `log` that gives no step."""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._steps: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        """By run: the step of its last call."""
        self._failed = False
        self._ended = False

    @property
    def here(self) -> bool:
        """Return whether this is the process that records, and not a child that was forked from it."""
        return self._pid == os.getpid()

    def take(self, op: Any, data: Any, step: Any, timestamp: Any) -> tuple[Any, Any]:
        """Record one call of `log`. Return its data and step as the client is to get them.

        The data are the caller's own, but for tensors: their value is read once, here, and the client gets
        the number that it would have read. A second reading would make the device wait twice.
        """
        if not isinstance(data, Mapping) or op.settings.mode == "noop":
            return data, step
        manager = op._sync_manager
        with self._lock:
            if step is None:
                step = self._steps.get(op, op._step) + 1
            self._steps[op] = step
        if manager is not None:
            self.queue = str(manager.db_path)
        rows: list[tuple[str, int, float]] = []
        read: dict[str, Any] = {}
        for name, value in data.items():
            if not isinstance(name, str):
                continue  # The client refuses it.
            handed, points = _read(value)
            if handed is not value and manager is not None:
                read[name] = handed
            rows += [(name, int(step), point) for point in points]
        with self._lock:
            if self._ended and rows:
                raise RuntimeError("points were logged after the end of the process's own code")
            self.stream.call(rows, _milliseconds(timestamp))
        return ({**data, **read} if read else data), step

    def failed(self, error: Exception) -> None:
        """Tell the log and the evidence, once, that rows may be missing. Never raises."""
        if self._failed:
            return
        self._failed = True
        text = f"{type(error).__name__}: {error}"
        outside.say(f"failed, so the verdict will be UNKNOWN at best: {text}")
        try:
            with self._lock:
                self.stream.fault(text)
        except Exception as another:
            outside.say(f"could not even record that: {another!r}")

    def end(self) -> None:
        """End the record, but for a program that an exception ended: it may have had more to log."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            if crashed():
                self.stream.flush()
                return
            if self.queue is not None:
                self.stream.client(client_state.read(str(Path(self.queue).parent)))
            self.stream.end()


_recording: Outside | None = None
_child_told: int | None = None
"""The process that told that it is a child of the rank and logs too."""


def wrap(module: ModuleType) -> None:
    """Wrap the class of a run in the client's module `pluto.op`. Raises AttributeError if it is not there."""
    run: Any = module.Op
    run.__init__, run.log = _around_init(run.__init__), _around_log(run.log)


def at_exit(is_rank: bool) -> None:
    """End the record of this process. One that surely is a rank also tells that it logged nothing."""
    if is_rank and not crashed() and _recording is None:
        begin()
    if _recording is not None and _recording.here:
        _recording.end()


def crashed() -> bool:
    """Return whether an exception that nobody caught ends this process."""
    return (getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)) is not None


def begin() -> None:
    """Start to record, if this process is a rank and not a child of the process that records for it."""
    global _recording  # noqa: PLW0603
    if _recording is not None and _recording.here:
        return
    rank = outside.rank_of(os.environ)
    if rank is None or outside.records_elsewhere(os.environ):
        return
    limit = int(os.environ.get("HARNESS_TRUTH_ROWS", "200000"))
    stream = Stream(os.environ["HARNESS_NONCE"], rank, row_limit=limit, fd=_log_of_the_container())
    stream.code()
    os.environ[outside.RECORDED_BY] = f"{os.getpid()}:{rank}:{stream.attempt}"
    _recording = Outside(stream)


def _tell_of_a_child(op: Any) -> None:
    """Record, once in this process, that a child of the rank logs what nobody records. Never raises.

    The frame belongs to the rank's attempt. Its number is below 0: the child does not know the next one.
    """
    global _child_told  # noqa: PLW0603
    try:
        if _child_told == os.getpid() or op.settings.mode == "noop":
            return
        _child_told = os.getpid()
        _, rank, attempt = os.environ[outside.RECORDED_BY].split(":", 2)
        text = f"does not record process {os.getpid()}, a child of rank {rank}, which logs to Pluto too"
        outside.say(text)
        head = {"k": "fault", "r": int(rank), "a": attempt, "q": -os.getpid(), **Stream.mark}
        line = truth_frames.encode(os.environ["HARNESS_NONCE"], {**head, "text": text})
        os.write(_log_of_the_container(), (line + "\n").encode())
    except Exception as error:
        outside.say(f"could not tell of a child of the rank: {error!r}")


def _around_init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(op: Any, *arguments: Any, **options: Any) -> None:
        try:
            begin()
        except Exception as error:
            outside.say(f"could not start: {error!r}")
        original(op, *arguments, **options)

    return init


def _around_log(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def log(op: Any, data: Any, step: Any = None, *rest: Any, **options: Any) -> Any:
        recording = _recording
        if recording is not None and recording.here:
            # The client keeps the step in its run until it queues the point, so that a call of another
            # thread could change a step that nobody chose. Where the caller chose it, that must be seen.
            with recording.counting if step is None else nullcontext():
                try:
                    timestamp = options.get("timestamp", rest[1] if len(rest) > 1 else None)
                    data, step = recording.take(op, data, step, timestamp)
                except Exception as error:
                    recording.failed(error)
                return original(op, data, step, *rest, **options)
        if outside.records_elsewhere(os.environ):
            _tell_of_a_child(op)
        return original(op, data, step, *rest, **options)

    return log


def _read(value: Any) -> tuple[Any, list[float]]:
    """Return a value as the client is to get it, and the points in it. A list holds several for one step."""
    if isinstance(value, list):
        read = [_read(one) for one in value]
        same = all(handed is one for (handed, _), one in zip(read, value))  # noqa: B905 - Python 3.9
        return value if same else [handed for handed, _ in read], [
            point for _, found in read for point in found
        ]
    if isinstance(value, bool):
        return value, []
    if isinstance(value, (int, float)):
        return value, [value]
    try:
        number = value.item()
    except Exception:  # No tensor, or one of several numbers: the client too leaves it out.
        return value, []
    if isinstance(number, bool):  # The client sends it, but would leave out a plain bool.
        return value, [number]
    return (number, [number]) if isinstance(number, (int, float)) else (value, [])


def _milliseconds(timestamp: Any) -> int:
    """Return the time that the client gives the points: the caller's, if it is a time, or now."""
    given = isinstance(timestamp, (int, float)) and not isinstance(timestamp, bool)
    seconds = timestamp if given and 0 < timestamp < float("inf") else time.time()
    return int(seconds * 1000)


def _log_of_the_container() -> int:
    """Return the container's own stdout, also when the program's is redirected into a file or a pipe."""
    path = os.environ.get("HARNESS_LOG", "")
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND) if path else STDOUT
    except OSError:
        return STDOUT
