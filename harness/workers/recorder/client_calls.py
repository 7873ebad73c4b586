"""Record what a program passes to the Pluto client, with wrappers that do not change the client's behaviour.

A point is recorded before the client receives it, with the caller's metric name and the value that the client
will send. If the caller does not pass a step, the recorder computes the step that the client will assign
(pluto-ml 0.0.29, op.py). Files, tables, histograms and text are not points. After the client has returned
from the call, the recorder determines which values were queued (queued_values.py). This module uses only the
standard library, and supports Python 3.9 and later.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, ClassVar  # noqa: UP035 - Python 3.9

from ..ground_truth import client_rules, client_state
from ..ground_truth.point_recorder import Recorder
from . import hooks, logged_values, process_events, queued_values
from .queued_values import Account, Leaf, Queue, Queued


class Stream(Recorder):
    """Writes the frames of the recorder that wraps the client. Rows from one `log` call share a frame."""

    mark: ClassVar[dict[str, str]] = {"s": "outside"}
    _in_call = False
    _run = 0

    def __init__(self, nonce: str, rank: int, parent: int | None = None, **options: Any) -> None:
        """Write the start frame.

        `parent` is the rank's pid if this process is a child of a rank, otherwise None.
        """
        self.parent = parent
        super().__init__(nonce, rank, **options)
        self._names: set[str] = set()

    @property
    def fd(self) -> int:
        """The container's own stdout. It is reopened if the program has closed it."""
        return hooks.log_of_the_container()

    @fd.setter
    def fd(self, _: int) -> None:
        pass

    def _life(self) -> dict[str, Any]:
        # torchrun does not restart a rank's child processes, so its restart count does not apply to them.
        own = {} if self.parent is None else {"parent": self.parent, "restart": None, "max_restarts": None}
        return {**super()._life(), **own}

    def call(
        self, rows: list[tuple[str, int, float]], time_ms: int, run: int = 0, same_run: bool = True
    ) -> None:
        """Record the points from one `log` call.

        `run` is the index of the run object, in the order of the `init` calls. `same_run` is true if this run
        object logs to the same run as the first run object.
        """
        if run != self._run:
            self.flush()
            self._write({"k": "init", "number": run, "same_run": same_run})
            self._run = run
        self._in_call = True
        try:
            for metric, step, value in rows:
                if metric not in self._names:
                    self._record_name(metric)
                self._record(metric, step, value, time_ms)
        finally:
            self._in_call = False
        if rows and self._may_write_at_once():
            self.flush()

    def settings(self, mode: str, uploads: bool, queue: str, cpu_frequency: bool) -> None:
        """Record the client's settings: its mode, whether it uploads, and the path of its queue.

        `cpu_frequency` is false if the kernel reports no CPU frequency, in which case `wrap_system` provided
        one.
        """
        extra = {} if cpu_frequency else {"cpu_frequency": False}
        self._write({"k": "settings", "mode": mode[:100], "uploads": uploads, "queue": queue[:500], **extra})

    def _record_name(self, metric: str) -> None:
        if len(self._names) < MAX_NAMES:
            self._names.add(metric)
        if (name := client_rules.sent_name(metric)) != metric:
            self._warn(metric, "name", f"Pluto's client renames {metric!r} to {name!r}")

    def rounded(self, metric: str, step: int, value: Any, delivery: client_rules.Sent) -> None:
        """Record that the number in the run will differ from the logged one, and log a warning."""
        self._report_change(metric, step, value, delivery)

    def dropped(self, entry: list[Any]) -> None:
        """Record immediately that the client dropped a value for a new reason.

        Log a warning unless the value is None.
        """
        key, kind, reason, _, step, _ = entry
        if kind != "NoneType":
            self._warn(key, reason, f"{key!r} ({kind}) at step {step} was not logged: {reason}")
        self.flush()
        self._write({"k": "left", "left": [entry]})

    def account(self, entries: list[list[Any]], totals: dict[str, Any]) -> None:
        """Record the outcome of every value that was passed to the client."""
        self._write_in_parts(entries, lambda part: {"k": "left", "left": part})
        self._write({"k": "account", **totals})

    def _may_write_at_once(self) -> bool:
        return not self._in_call and super()._may_write_at_once()


class Call:
    """One call to `log`: the data and step for the client, and the values that the caller passed."""

    def __init__(self, data: Any, step: Any, unsent_reason: str) -> None:
        self.data, self.step, self.unsent_reason = data, step, unsent_reason
        self.passed: list[Leaf] | None = None
        """The values in `data`, or None if all are plain numbers, which can be counted without a list."""
        self.queued: Queued | None = None


MAX_NAMES = 100_000


class Recording:
    """Records the points of one process. Thread-safe. A forked child creates its own instance."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.queue: str | None = None
        """The path of the client's queue, which is an SQLite database."""
        self.counting = threading.RLock()
        """A lock that is held during calls to `log` without a step."""
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._account = Account(stream.dropped)
        self._steps: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        """Maps each run object to the step of the last `log` call."""
        self._runs: weakref.WeakKeyDictionary[Any, tuple[int, bool, Queue | None]] = (
            weakref.WeakKeyDictionary()
        )
        """Maps each run object to (its index, whether it logs to the same run as the first, its queue)."""
        self._first_run: list[Any] = []
        self._failed = False
        self._ended = False

    @property
    def here(self) -> bool:
        """Return whether the current process created this object. Returns False in a forked child, which
        inherited it."""
        return self._pid == os.getpid()

    def run_entry(self, op: Any) -> tuple[int, bool, Queue | None]:
        """Return a run object's entry in `_runs`. If there is none, add it and wrap the run's queue."""
        with self._lock:
            if op in self._runs:
                return self._runs[op]
            run, queue, manager = getattr(op.settings, "_op_id", None), None, op._sync_manager
            if not self._first_run:
                self._first_run.append(run)
            number = len(self._runs)
            if manager is not None:
                self.queue = str(manager.db_path)
                try:
                    queue = self._queue_of(op, manager)
                except Exception as error:
                    self._account.unseen = f"this client's queue is not known ({error!r})"[:300]
            self._runs[op] = number, run == self._first_run[0], queue
            return self._runs[op]

    def _queue_of(self, op: Any, manager: Any) -> Queue:
        return Queue(manager.store, functools.partial(self.queued_directly, op))

    def record_call(self, op: Any, data: Any, step: Any, timestamp: Any) -> Call:
        """Record one call to `log`, and return the call to pass to the client.

        Each tensor in the returned data is replaced by the number that the client would read. Each tensor is
        read only here, because every read waits for the device.
        """
        number, same_run, queue = self.run_entry(op)
        manager, mode = op._sync_manager, op.settings.mode
        with self._lock:
            if step is None:
                step = (client_rules.whole(self._steps.get(op, op._step)) or 0) + 1
            self._steps[op] = step
        call = Call(
            data, step, "" if manager is not None else _unsent_reason(mode, finished=queue is not None)
        )
        whole_step = client_rules.whole(step)
        rows: list[tuple[str, int, float]] = []
        if type(data) is dict and manager is not None and logged_values.all_exact(data):
            rows = (
                [(name, whole_step, value) for name, value in data.items()] if whole_step is not None else []
            )
        else:
            call.passed = []
            read: dict[int, Any] = {}
            entries = logged_values.entries_of(data)
            for name, value in entries or ():
                call.passed += queued_values.leaves(
                    name, value, functools.partial(logged_values.number_of, read)
                )
                if not isinstance(name, str) or whole_step is None or mode == "noop":
                    continue
                delivery = client_rules.sent(logged_values.with_numbers(value, read))
                rows += [(name, whole_step, point) for point in delivery.values]
                if delivery.why and delivery.kept and not isinstance(value, list):
                    self.stream.rounded(name, whole_step, value, delivery)
            if entries is None:
                call.passed += queued_values.leaves("", data, logged_values.no_number)
            elif manager is not None and (read or type(data) is not dict):
                call.data = logged_values.ClientData(
                    [(name, logged_values.with_numbers(value, read)) for name, value in entries]
                )
        with self._lock:
            if self._ended and (rows or call.passed):
                raise RuntimeError("points were logged after the process's own code had ended")
            self.stream.call(rows, logged_values.milliseconds(timestamp), number, same_run)
        call.queued = queue.begin() if queue is not None else None
        return call

    def close(self, op: Any, call: Call, error_raised: Exception | None) -> None:
        """Record the outcome of each value in a `log` call, after the client has returned from the call.

        Never raises.
        """
        try:
            queue = self._runs[op][2]
            if queue is not None:
                queue.stop()
            with self._lock:
                if call.passed is None:
                    if call.queued is not None and self._account.same(call.data, call.queued, call.step):
                        return
                    call.passed = [Leaf(name, name, value, value) for name, value in call.data.items()]
                self._account.close_call(
                    call.passed, call.queued, call.step, call.unsent_reason, error_raised
                )
        except Exception as error:
            self.failed(error)

    def queued_directly(self, op: Any, metrics: Mapping[str, Any], step: Any, time_ms: Any) -> None:
        """Record the values that the client queues without a call of `run.log`. Never raises."""
        if not self.here:
            return
        try:
            number, same_run, _ = self._runs[op]
            whole_step = client_rules.whole(step or 0)
            rows = [
                (name, whole_step, value)
                for name, value in metrics.items()
                if isinstance(value, (int, float)) and not isinstance(value, bool) and whole_step is not None
            ]
            with self._lock:
                self._account.queued_without_log(len(rows))
                self.stream.call(rows, int(time_ms), number, same_run)
        except Exception as error:
            self.failed(error)

    def record_settings(self, op: Any) -> None:
        """Record whether the run object's client uploads, and where its queue is."""
        mode, uploads = str(op.settings.mode), bool(op.settings.sync_process_enabled)
        queue = "" if op._sync_manager is None else str(op._sync_manager.db_path)
        frequencies = getattr(op.settings._sys, "cpu_freq", None)
        with self._lock:
            self.stream.settings(mode, uploads, queue, cpu_frequency=frequencies is not _NO_FREQUENCY)

    def failed(self, error: Exception) -> None:
        """Report once, in the log and in the evidence, that rows may be missing. Never raises."""
        if self._failed:
            return
        self._failed = True
        text = f"{type(error).__name__}: {error}"
        hooks.say(f"failed, so the verdict will be UNKNOWN at best: {text}")
        try:
            with self._lock:
                self.stream.fault(text)
        except Exception as another:
            hooks.say(f"could not record this failure in the evidence: {another!r}")

    def end(self) -> None:
        """Finish recording. Omit the end frame after an uncaught exception, because points may be missing."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            if crashed():
                self.stream.flush()
                return
            self.stream.guarded(self._record_client_state)
            self.stream.guarded(lambda: self.stream.account(*self._account.frames()))
            self.stream.end()

    def pause(self) -> None:
        """Record the outcome of all values so far, because a process pool may kill this child at any time."""
        with self._lock:
            if not self._ended:
                self.stream.guarded(self.stream.flush)
                self.stream.guarded(self._record_client_state)
                self.stream.guarded(lambda: self.stream.account(*self._account.frames()))

    def _record_client_state(self) -> None:
        if self.queue is not None:
            self.stream.client(client_state.read(str(Path(self.queue).parent)))


_recording: Recording | None = None
_NO_FREQUENCY = [{"current": 0, "min": 0, "max": 0}]
"""The CPU frequency that the Pluto client itself falls back to if psutil raises an exception."""


def wrap_system(module: ModuleType) -> None:
    """Allow the Pluto client to start on a kernel that reports no CPU frequency (`pluto.sys`).

    On such a kernel, psutil returns an empty list, and version 0.0.29 of the client fails in `init` because
    it computes the list's minimum. The client is changed only if HARNESS_CPU_FREQUENCY is set, as on clusters
    that the harness creates.
    """
    system: Any = module.System
    original = system.__init__

    @functools.wraps(original)
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **options)
        if self.cpu_freq == [] and hooks.variable("HARNESS_CPU_FREQUENCY"):
            self.cpu_freq = _NO_FREQUENCY

    system.__init__ = init


def wrap(module: ModuleType) -> None:
    """Wrap the run class in the client's module `pluto.op`. Raises AttributeError if the class is missing."""
    run: Any = module.Op
    run.__init__, run.log = _around_init(run.__init__), _around_log(run.log)
    if hooks.admitted():
        from . import digest_recording

        digest_recording.wrap_finish(module)


def at_exit(is_rank: bool) -> None:
    """Finish recording this process. If a rank created no run, record that it logged nothing."""
    if is_rank and not crashed() and _recording is None:
        begin()
    if _recording is not None and _recording.here:
        _recording.end()


def crashed() -> bool:
    """Return whether an uncaught exception is ending this process."""
    return (getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)) is not None


def begin() -> None:
    """Start recording if this process is a rank or a child process of a rank."""
    global _recording  # noqa: PLW0603
    if _recording is not None and _recording.here:
        return
    rank = hooks.rank_here()
    if hooks.admitted():
        _begin_admitted(rank)
        return
    if rank is None:
        return
    parent = hooks.recorded_by(os.environ, rank)
    limit = int(hooks.variable("HARNESS_TRUTH_ROWS") or "200000")
    stream = Stream(hooks.variable("HARNESS_NONCE"), rank, parent, row_limit=limit)
    stream.code()
    if parent is None:
        os.environ[hooks.RECORDED_BY] = f"{os.getpid()}:{rank}"
    else:
        process_events.start()
    _recording = Recording(stream)


def _begin_admitted(rank: int | None) -> None:
    """Start recording in a pod to which an admission policy added the recorder.

    `rank` is None if the process has no known rank.
    """
    global _recording  # noqa: PLW0603
    from . import digest_recording

    parent = hooks.recorded_by(os.environ, rank) if rank is not None else None
    if rank is not None and parent is None:
        os.environ[hooks.RECORDED_BY] = f"{os.getpid()}:{rank}"
    _recording = digest_recording.begin(rank, parent)


def recording_here() -> Recording | None:
    """Return the recording of this process, or None. A forked child starts a new one. Never raises."""
    if _recording is not None and not _recording.here:
        try:
            begin()
        except Exception as error:
            hooks.say(f"could not start in a child process of the rank: {error!r}")
    return _recording if _recording is not None and _recording.here else None


def _around_init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(op: Any, *arguments: Any, **options: Any) -> None:
        try:
            begin()
        except Exception as error:
            hooks.say(f"could not start: {error!r}")
        original(op, *arguments, **options)
        recording = _recording
        if recording is not None and recording.here:
            try:
                recording.run_entry(op)
                recording.record_settings(op)
            except Exception as error:
                recording.failed(error)

    return init


def _around_log(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def log(op: Any, data: Any, step: Any = None, *rest: Any, **options: Any) -> Any:
        recording = recording_here()
        if recording is not None:
            # Until the client queues the point, it stores the step in the run object, where another thread
            # could change it. The lock prevents this for steps that the client assigns. If the caller passed
            # the step, the recorder must only detect such a change, not prevent it.
            with recording.counting if step is None else nullcontext():
                try:
                    timestamp = options.get("timestamp", rest[1] if len(rest) > 1 else None)
                    call = recording.record_call(op, data, step, timestamp)
                except Exception as error:
                    recording.failed(error)
                    return original(op, data, step, *rest, **options)
                client_error: Exception | None = None
                try:
                    return original(op, call.data, call.step, *rest, **options)
                except Exception as error:
                    client_error = error
                    raise
                finally:
                    recording.close(op, call, client_error)
        return original(op, data, step, *rest, **options)

    return log


def _unsent_reason(mode: str, finished: bool) -> str:
    """Return the reason why a run without an upload process sends nothing."""
    if finished:
        return "run.log() was called after run.finish(), so the client sends nothing"
    if mode == "noop":
        return "the mode of the run is noop, so the client sends nothing"
    return "sync_process_enabled is False, so the client sends nothing"
