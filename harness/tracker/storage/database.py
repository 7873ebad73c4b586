"""The SQLite database. One thread commits writes in groups. A request gets its response after the commit.

A transaction includes all writes that are waiting when it begins, so one fsync serves many ranks. If a write
fails, only that write is rolled back. After the response, a write survives SIGKILL and, with
synchronous=FULL, a power failure.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from harness.tracker.storage import run_timeouts
from harness.tracker.storage.blobs import Blobs
from harness.tracker.storage.file_permissions import make_private
from harness.tracker.storage.migrations import migrate
from harness.tracker.storage.schema import TABLES, VERSION
from harness.tracker.storage.writer import PointWriter, Sent

T = TypeVar("T")
Work = tuple[Callable[[sqlite3.Connection], Any] | Sent, "asyncio.Future[Any]"]
Outcome = tuple["asyncio.Future[Any]", Any, "BaseException | None"]
GROUP = 256
"""The number of writes at which a transaction is full. Further writes wait for the next transaction."""
QUEUE = 4096
"""The maximum number of writes in the queue. Further writes are rejected, and their senders retry later."""
QUERY_SECONDS = 60.0
"""The maximum duration of a query, in seconds."""


class Full(Exception):
    """Raised if the queue of writes already contains QUEUE writes."""


class Slow(Exception):
    """Raised if a query takes longer than QUERY_SECONDS seconds."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the database, and return a connection that uses WAL, synchronous=FULL and explicit
    transactions."""
    db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    mode = db.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise sqlite3.OperationalError(f"SQLite cannot use a write-ahead log at {path} (mode {mode})")
    db.execute("PRAGMA synchronous=FULL")
    return db


def _prepare(db: sqlite3.Connection) -> None:
    version = migrate(db, db.execute("PRAGMA user_version").fetchone()[0])
    if version == VERSION:
        return
    if version or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise sqlite3.DatabaseError(f"the database has schema {version}; this program needs schema {VERSION}")
    db.executescript(f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version={VERSION}; COMMIT;")


class Store:
    """The database. `write` and `read` call a function with a connection and return its result."""

    def __init__(
        self,
        path: Path,
        readers: int = 4,
        scanners: int = 2,
        stale_seconds: float = run_timeouts.HEARTBEAT_SECONDS,
    ) -> None:
        self._started_at, self._stale_seconds = datetime.now(UTC), stale_seconds
        self.path = path
        make_private(path)
        self._db = connect(path)
        _prepare(self._db)
        self.blobs = Blobs(path.with_name(path.name + ".files"))
        self._queue: SimpleQueue[list[Work] | None] = SimpleQueue()
        self._unqueued: list[Work] = []
        self._waiting = 0
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._readers = ThreadPoolExecutor(readers, thread_name_prefix="read")
        self._scanners = ThreadPoolExecutor(scanners, thread_name_prefix="scan")
        self._point_writer = PointWriter()
        self._writer = threading.Thread(target=self._write_groups, name="write", daemon=True)
        self._writer.start()

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` inside a transaction. Return its result after the commit.

        Raises Full, and any exception that `work` raises.
        """
        return cast("T", await self._queued(work))

    async def write_points(self, request: Sent) -> None:
        """Store a request's points, and return after the commit. Raises Full."""
        await self._queued(request)

    async def _queued(self, work: Callable[[sqlite3.Connection], Any] | Sent) -> Any:
        """Queue a write, and wait for its result.

        Writes from one iteration of the event loop are passed to the writer thread together, so that the
        thread wakes up once and commits them in one transaction.
        """
        if self._waiting >= QUEUE:
            raise Full
        self._waiting += 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._unqueued.append((work, future))
        if len(self._unqueued) == 1:
            loop.call_soon(self._enqueue_group)
        return await future

    def _enqueue_group(self) -> None:
        self._queue.put(self._unqueued)
        self._unqueued = []

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` in a thread, with a connection that reads a consistent snapshot.

        Raises Slow after QUERY_SECONDS seconds.
        """
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, work)

    async def scan(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` like `read`, but in separate threads, for queries that can read a million points."""
        return await asyncio.get_running_loop().run_in_executor(self._scanners, self._read, work)

    @property
    def alive(self) -> bool:
        return self._writer.is_alive()

    def close(self) -> None:
        """Commit waiting writes, checkpoint the write-ahead log, and close the database."""
        self._queue.put(None)
        self._writer.join()
        self._readers.shutdown()
        self._scanners.shutdown()
        for db in self._opened:
            db.close()
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = connect(self.path)
            run_timeouts.make_view(db, self._started_at, self._stale_seconds)
            db.execute("PRAGMA query_only=ON")
            self._opened.append(db)
        deadline = time.monotonic() + QUERY_SECONDS
        db.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
        db.execute("BEGIN")
        try:
            return work(db)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise Slow from None
            raise
        finally:
            db.set_progress_handler(None, 0)
            db.execute("COMMIT")

    def _write_groups(self) -> None:
        open_ = True
        while open_:
            group, open_ = self._next_group()
            if group:
                self._write_group(group)

    def _next_group(self) -> tuple[list[Work], bool]:
        group: list[Work] = []
        works = self._queue.get()
        while works is not None:
            group += works
            if len(group) >= GROUP:
                return group, True
            try:
                works = self._queue.get_nowait()
            except Empty:
                return group, True
        return group, False

    def _write_group(self, group: list[Work]) -> None:
        outcomes: list[Outcome] = []
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for points, same_kind in groupby(group, lambda work: isinstance(work[0], Sent)):
                works = list(same_kind)
                outcomes.extend(self._write_points(works) if points else map(self._execute, works))
            self._db.execute("COMMIT")
        except Exception as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._point_writer.forget()
            outcomes = [(future, None, error) for _, future in group]
        for loop, some_outcomes in groupby(outcomes, lambda outcome: outcome[0].get_loop()):
            with suppress(RuntimeError):  # The event loop has closed, so no task waits for the results.
                loop.call_soon_threadsafe(self._set_results, list(some_outcomes))

    def _set_results(self, outcomes: list[Outcome]) -> None:
        """Set the results of several writes.

        The event loop calls this method once for all results, because one call per result would take longer.
        """
        for future, result, failure in outcomes:
            self._waiting -= 1
            if future.done():
                continue
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)

    def _write_points(self, works: list[Work]) -> list[Outcome]:
        """Store the points of several requests together. If that fails, store each request separately."""
        points = [work for work, _ in works if isinstance(work, Sent)]
        _, _, failure = self._execute((lambda db: self._point_writer.write(db, points), works[0][1]))
        if failure is None:
            return [(future, None, None) for _, future in works]
        self._point_writer.forget()
        if len(works) == 1:
            return [(works[0][1], None, failure)]
        return [outcome for one in works for outcome in self._write_points([one])]

    def _execute(self, item: Work) -> Outcome:
        """Execute one write within a savepoint. If the write fails, roll back only this write."""
        work, future = item
        assert not isinstance(work, Sent)
        self._db.execute("SAVEPOINT one")
        try:
            result, failure = work(self._db), None
        except Exception as error:
            self._db.execute("ROLLBACK TO one")
            result, failure = None, error
        self._db.execute("RELEASE one")
        return future, result, failure
