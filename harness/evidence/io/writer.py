"""Write the bundle during a launch. Lines are redacted and written immediately, from any thread."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from harness.core.clock import CLOCK, Clock
from harness.core.errors import HarnessError
from harness.core.locks import LockHandle, acquire
from harness.evidence.io.column_files import PointWriter, in_columns
from harness.evidence.io.disk_reserve import Disk
from harness.evidence.io.files import Appender, LogFile, inside, on_disk
from harness.evidence.io.redaction import Redactor
from harness.evidence.io.runs_folder import mend_latest, name_latest
from harness.evidence.schema.acceptance import AcceptanceRecord
from harness.evidence.schema.bundle import (
    ContainerExit,
    DeviceHolder,
    DryRun,
    Manifest,
    Observation,
    RendezvousSnapshot,
    Retry,
    Stage,
    Verdict,
)
from harness.evidence.schema.ground_truth import TruthLine
from harness.evidence.schema.netcheck import NetcheckRecord
from harness.evidence.schema.point_rows import PointRows
from harness.evidence.schema.processes import ProcessLine
from harness.evidence.schema.tracker import (
    Attachment,
    DigestReport,
    Point,
    RunWriter,
    TrackerRun,
    TrackerSummary,
)


class ProgressListener(Protocol):
    """The interface for an object that receives a launch's evidence as it arrives.

    The methods can be called from any thread. They must return immediately and must not raise.
    """

    def manifest(self, manifest: Manifest) -> None:
        """Handle a manifest change, for example when a stage starts or ends, or when the job is launched."""

    def observed(self, kind: str, observation: Observation) -> None:
        """Handle one watch event."""

    def processed(self, event: ProcessLine) -> None:
        """Handle an event that a process in a rank's container recorded."""

    def logged(self, pod: str, text: str) -> None:
        """Handle complete, redacted lines from a pod's log, each in the form "<RFC 3339 time> <line>"."""


POINTS, COLUMNS = "tracker/points.jsonl", "tracker/points.columns"
SHOWN_CHARACTERS = 64 * 1024
"""Maximum number of characters of a log that are passed to a listener at once. Earlier text is dropped."""
TrackerKind = Literal["runs", "attachments", "points", "writers", "digests"]


class BundleWriter:
    """Writes the files of a bundle. All code that writes to a bundle uses this class.

    If the disk is full, methods set `full` and raise HarnessError with the cause run.evidence_disk_full.
    After that, no records are written, because records with a gap prove nothing. The manifest and the verdict
    are still written.
    """

    def __init__(
        self, path: Path, nonce: str, redactor: Redactor, lock: LockHandle | None = None, clock: Clock = CLOCK
    ) -> None:
        """Open a bundle for writing. `release` releases `lock`."""
        self.path = path
        self._bundle_lock = lock
        self._clock = clock
        self._disk = Disk(path)
        self.redactor = redactor
        self.listener: ProgressListener | None = None
        self._lock = threading.RLock()
        self._files: dict[str, Appender] = {}
        self._logs: dict[tuple[str, str], LogFile] = {}
        self.points = PointWriter(
            partial(self._append, POINTS), COLUMNS, lambda data: self._file(COLUMNS).append(data)
        )
        self._stages: list[Stage] = []
        self._open: list[str] = []
        """The names of all stages that have begun but not ended, in any thread."""
        self._current = Manifest(nonce=nonce, started_at=clock.now())

    @classmethod
    def create(cls, runs_dir: Path, nonce: str, redactor: Redactor, clock: Clock = CLOCK) -> BundleWriter:
        """Create and lock runs_dir/<UTC time>-<nonce>/, and point runs_dir/latest to it.

        `release` releases the lock.
        """
        path = runs_dir / f"{clock.stamp()}-{nonce}"
        with on_disk(path):
            path.mkdir(parents=True)
        writer = cls(path, nonce, redactor, acquire(path), clock)
        try:
            writer._disk.reserve()
            writer.manifest(writer.current)
            if writer.full is not None:
                raise writer.full
            with on_disk(path):
                name_latest(path)
        except HarnessError:
            writer.release()
            shutil.rmtree(path, ignore_errors=True)
            raise
        return writer

    @property
    def full(self) -> HarnessError | None:
        return self._disk.full

    @property
    def current(self) -> Manifest:
        """Return the last written manifest. To change it, pass a modified copy to `manifest()`."""
        with self._lock:
            return self._current

    def manifest(self, manifest: Manifest) -> None:
        """Replace manifest.json atomically.

        Stages recorded by `stage()` are kept even if they are missing from `manifest`.
        """
        with self._lock:
            stages = manifest.stages + [s for s in self._stages if s not in manifest.stages]
            self._current = manifest.model_copy(update={"stages": stages})
            self._disk.last_words(self.path / "manifest.json", self._json(self._current, indent=2))
            if self.listener is not None:
                self.listener.manifest(self._current)

    def update(self, **changes: Any) -> Manifest:
        """Change the given manifest fields and return the new manifest. Thread-safe."""
        with self._lock:
            self.manifest(self._current.model_copy(update=changes))
            return self._current

    def retry(self, operation: str, reason: str) -> None:
        """Record in the manifest that `operation` was retried, and why."""
        with self._lock:
            self.update(
                retries=[*self._current.retries, Retry(at=self._clock.now(), what=operation, reason=reason)]
            )

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Return a context manager that records the duration of its block as a stage.

        An error in the block is recorded with its cause and re-raised.
        """
        self._open.append(name)
        with timed(name, self._clock, lambda: self.update(in_stage=name), self._ended):
            yield

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Return a context manager that measures one attempt at an operation that the caller retries.

        Only a successful attempt is recorded as a stage.
        """

        def ended(stage: Stage, failed: BaseException | None) -> None:
            if failed is None:
                with self._lock:
                    self._stages.append(stage)
                    self.update()

        with timed(name, self._clock, lambda: None, ended):
            yield

    def _ended(self, stage: Stage, failed: BaseException | None) -> None:
        changes: dict[str, Any] = {}
        if isinstance(failed, KeyboardInterrupt) and not self.current.interrupted:
            changes["interrupted"] = str(failed) or "SIGINT"
        with self._lock:
            self._stages.append(stage)
            self._open.remove(stage.name)
            self.update(in_stage=self._open[-1] if self._open else None, **changes)

    def observe(self, kind: str, observation: Observation) -> None:
        """Append one watch event to the file for its kind.

        `kind` is lower-case and singular, for example "pod". Kubernetes Events are appended to events.jsonl.
        """
        self._append("events.jsonl" if kind == "event" else f"objects/{kind}.jsonl", observation)
        if self.listener is not None:
            self.listener.observed(kind, observation)

    def inspection(self, inspection: RendezvousSnapshot) -> None:
        """Append a snapshot of the processes and connections in a container."""
        self._append("inspections.jsonl", inspection)

    def netcheck(self, record: NetcheckRecord) -> None:
        """Append a diagnosis printed by netcheck in a pod."""
        self._append("netcheck.jsonl", record)

    def acceptance(self, record: AcceptanceRecord) -> None:
        """Append an acceptance test result from a pod, or the pod's final report."""
        self._append("acceptance.jsonl", record)

    def dry_run(self, record: DryRun) -> None:
        """Append the result of a dry run for an object that a controller should have created."""
        self._append("dry-runs.jsonl", record)

    def device_holder(self, record: DeviceHolder) -> None:
        """Append a record of a pod that uses devices for which one of the launch's pods is waiting."""
        self._append("device-holders.jsonl", record)

    def exited(self, exit_: ContainerExit) -> None:
        """Append the exit code of a container's command."""
        self._append("exits.jsonl", exit_)

    def process(self, event: ProcessLine) -> None:
        """Append an event that a process in a rank's container recorded."""
        self._append("processes.jsonl", event)
        if self.listener is not None:
            self.listener.processed(event)

    def log_file(self, pod: str, container: str) -> LogFile:
        """Open a container's log for writing. `close()` also writes the last line if it is incomplete."""
        return LogFile(
            Appender(inside(self.path, f"logs/{pod}-{container}.log"), self._disk.taking), self.redactor
        )

    def log(self, pod: str, container: str, text: str) -> None:
        """Append text to a container's log, which stays open until `close_logs()` is called."""
        with self._lock:
            if (pod, container) not in self._logs:
                self._logs[pod, container] = self.log_file(pod, container)
            file = self._logs[pod, container]
        if (written := file.write(text)) and self.listener is not None:
            self.listener.logged(pod, written[-SHOWN_CHARACTERS:])

    def close_logs(self) -> None:
        """Write the ends of the logs, and close their files. A later `log()` reopens its file.

        Before this call, the end of a log is held back if it might be the beginning of a secret.
        """
        with self._lock:
            files = [*self._logs.values()]
            self._logs.clear()
        for file in files:
            with contextlib.suppress(HarnessError):
                file.close()

    def truth(self, rank: int, line: TruthLine, suffix: str = "") -> None:
        """Append a line to truth/RANK.jsonl, or to truth/RANK.outside.jsonl if `suffix` is ".outside".

        The second file contains the ground truth from the recorder that wraps the Pluto client.
        """
        self._append(f"truth/{rank}{suffix}.jsonl", line)

    def truths(self, rank: int, lines: Iterable[TruthLine], suffix: str = "") -> None:
        """Append a rank's ground truth to the bundle. Long sequences of points go to a column file."""
        path = f"truth/{rank}{suffix}.columns"
        for line in in_columns(lines, path, lambda data: self._file(path).append(data)):
            self._append(f"truth/{rank}{suffix}.jsonl", line)

    def tracker(
        self, kind: TrackerKind, record: TrackerRun | Attachment | Point | RunWriter | DigestReport
    ) -> None:
        """Append a record from the tracker.

        Points may remain buffered until `tracker_summary()` is called.
        """
        if isinstance(record, Point):
            self.points.add(record)
        else:
            self._append(f"tracker/{kind}.jsonl", record)

    def point_rows(self, rows: PointRows) -> None:
        """Append many points from the tracker.

        The points may remain buffered until `tracker_summary()` is called.
        """
        self.points.extend(rows)

    def tracker_summary(self, summary: TrackerSummary) -> None:
        """Write the number of records of each kind that the tracker has.

        Call this method last, because readers use these numbers to detect truncated files in tracker/.
        """
        self.points.flush()
        self._replace("tracker/summary.json", self._json(summary, indent=2))

    def text(self, relative_path: str, text: str) -> None:
        """Redact a string and write it to a file in the bundle."""
        self._replace(relative_path, self.redactor.text(text))

    def clean(self, relative_path: str) -> None:
        """Redact, in place, files that another program wrote to a directory in the bundle."""
        for path in inside(self.path, relative_path).rglob("*"):
            if path.is_file() and not path.is_symlink():
                text = path.read_text(errors="surrogateescape")
                clean = self.redactor.text(text)
                if clean != text:
                    path.write_text(clean, errors="surrogateescape")

    def verdict(self, verdict: Verdict) -> None:
        """Write verdict.json. Raises HarnessError if the file does not fit into the reserved space."""
        path = self.path / "verdict.json"
        self._disk.last_words(path, self._json(verdict, indent=2))
        if self.full is not None and not path.is_file():
            raise self.full
        self._disk.free()

    def discard(self) -> None:
        """Remove the bundle of a run that did not launch anything.

        `latest` then points to the newest remaining bundle.
        """
        self.release()
        shutil.rmtree(self.path, ignore_errors=True)
        mend_latest(self.path.parent)

    def release(self) -> None:
        """Close all files and release the lock, so that other processes can remove the bundle."""
        self.close()
        if self._bundle_lock is not None:
            self._bundle_lock.release()

    def close(self) -> None:
        """Close all files. A later write reopens its file."""
        # Points are still buffered only if tracker/summary.json was not written.
        # Without this file, the points are not evidence.
        with contextlib.suppress(HarnessError):
            self.points.flush()
        self.close_logs()
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _file(self, relative_path: str) -> Appender:
        with self._lock:
            if relative_path not in self._files:
                self._files[relative_path] = Appender(inside(self.path, relative_path), self._disk.taking)
            return self._files[relative_path]

    def _json(self, record: BaseModel, indent: int | None = None) -> str:
        encoded = record.model_dump_json(indent=indent)
        redacted = self.redactor.encoded(encoded)
        if redacted is not None:
            return redacted
        return json.dumps(self.redactor.value(record.model_dump(mode="json")), indent=indent)

    def _append(self, relative_path: str, record: BaseModel) -> None:
        self._file(relative_path).append((self._json(record) + "\n").encode())

    def _replace(self, relative_path: str, text: str) -> None:
        path = inside(self.path, relative_path)
        with self._disk.taking():
            self._disk.replace(path, text)


@contextlib.contextmanager
def timed(
    name: str,
    clock: Clock,
    on_start: Callable[[], object],
    on_end: Callable[[Stage, BaseException | None], None],
) -> Iterator[None]:
    """Call `on_start()` before the block and `on_end(stage, error)` after it.

    `error` is None if the block did not raise.
    """
    started_at, start, exception = clock.now(), clock.monotonic(), None
    try:
        # `on_start` is called inside `try`, so that `on_end` is called even if a signal interrupts it.
        on_start()
        yield
    except BaseException as error:
        exception = error
        raise
    finally:
        stage = Stage(
            name=name,
            started_at=started_at,
            seconds=round(clock.monotonic() - start, 3),
            ok=exception is None,
            error=None if exception is None else (str(exception) or type(exception).__name__),
            cause=exception.cause if isinstance(exception, HarnessError) else None,
        )
        on_end(stage, exception)
