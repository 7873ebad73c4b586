"""Allow only one writer per run, with a lock file that contains its owner and a heartbeat.

The file is in the run's folder. Rank 0 holds the lock. A thread changes the heartbeat in the file every
second. Another launch watches the file. If the heartbeat changes, the launch is refused. If the heartbeat
does not change for STALE_SECONDS seconds, the launch takes over the lock. The nodes' clocks therefore need
not agree. An owner that was only slow detects before its next checkpoint that it has lost the lock, and
exits. The heartbeat is written in place, because NFS clients see a modified file sooner than a renamed one.

A later attempt of the same launch takes over the lock immediately. So does an attempt on the owner's machine
if the owner's process has ended.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from .checkpoint import Unusable

LOCK = ".lock"
BEAT_SECONDS, STALE_SECONDS, POLL_SECONDS = 1.0, 30.0, 0.2
_WIDTH = 1024
"""Size of the lock file in bytes. Each heartbeat overwrites the whole file in one call."""


@dataclass(frozen=True)
class Owner:
    """The writer of a run, as stored in the lock file."""

    run: str
    """The name of the run. A lock that was copied along with a run has the original run's name."""
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    process: str = field(default_factory=lambda: process(os.getpid()))
    launch: str = field(default_factory=lambda: os.environ.get("HARNESS_NONCE", ""))
    since: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    """The start time of this attempt, according to the owner's clock. It is used only in messages."""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """A random identifier of the owner's attempt."""
    beat: int = 0

    def __str__(self) -> str:
        """Return a description of the owner for messages."""
        launch = f" of launch {self.launch}" if self.launch else ""
        return f"process {self.pid} on {self.host}{launch}, since {self.since}"

    @property
    def ended(self) -> bool:
        """Return whether the owner's process ran on this machine, in this PID namespace, and has ended."""
        own_parts, owner_parts = process(os.getpid()).split("/"), self.process.split("/")
        return len(own_parts) > 1 and own_parts[:2] == owner_parts[:2] and process(self.pid) != self.process


def process(pid: int) -> str:
    """Return a process's identity (boot, PID namespace, PID and start time), or "" if it has ended.

    Also returns "" on a system without /proc, where no process counts as ended.
    """
    with suppress(OSError, IndexError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        state, *stat_fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if state not in "ZX":
            return f"{boot}/{os.readlink('/proc/self/ns/pid')}/{pid}/{stat_fields[18]}"
    return ""


class RunLock:
    """The lock on a run. Only one rank uses it."""

    def __init__(self, run: Path, say: Callable[[str], None]) -> None:
        """Prepare the lock for the run's folder, which must exist."""
        self._path, self._say = run / LOCK, say
        self._own = Owner(run.name)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="run-lock")

    def acquire(self) -> None:
        """Take the lock, and start the heartbeat.

        Raises Unusable if another launch holds the lock.
        """
        while not self._create():
            if (owner := self._stale()) is not None:
                self._take_over(owner)
                break
        self._thread.start()

    def lost(self) -> str:
        """Return a description of a later attempt that now holds the lock, or "" if there is none.

        Raises Unusable if another launch holds the lock.
        """
        owner = self._read()
        if owner is None or owner.token == self._own.token:
            return ""
        if owner.launch and owner.launch == self._own.launch:
            return f"{owner}"
        raise Unusable(f"{self._path.parent} was taken over by {owner}, so this training exits")

    def release(self) -> None:
        """Stop the heartbeat, and remove the lock if it still belongs to this attempt."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        owner = self._read()
        if owner is not None and owner.token == self._own.token:
            self._path.unlink(missing_ok=True)

    # -- the file ----------------------------------------------------------------------------------------
    def _create(self) -> bool:
        """Create the file unless it exists. Return whether it was created."""
        try:
            file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            if self._path.is_dir():
                raise Unusable(
                    f"{self._path}: expected the file that locks the run, found a folder. Remove or rename it"
                ) from None
            return False
        try:
            os.pwrite(file, self._record(), 0)
        finally:
            os.close(file)
        return True

    def _take_over(self, owner: Owner | str) -> None:
        """Replace a stale owner's file. Raises Unusable if another launch did so at the same time."""
        partial = self._path.with_name(f"{LOCK}-{self._own.token}")
        partial.write_bytes(self._record())
        partial.replace(self._path)
        if not isinstance(owner, Owner):
            self._say(f"the lock of {self._path.parent} is taken over, because {owner}")
        elif owner.launch != self._own.launch or not owner.launch:
            self._say(
                f"the lock of {self._path.parent} is taken over from {owner}, which has stopped writing"
            )
        if (winner := self._read()) is not None and winner.token != self._own.token:
            raise Unusable(_in_use(self._path.parent, winner))

    def _record(self) -> bytes:
        return json.dumps(asdict(self._own)).encode().ljust(_WIDTH - 1) + b"\n"

    def _read(self) -> Owner | None:
        """Return the owner in the file, or None if the file is missing, empty or currently being written."""
        try:
            document = json.loads(self._path.read_text())
            return Owner(**{each.name: document[each.name] for each in fields(Owner)})
        except (OSError, ValueError, TypeError, LookupError):
            return None

    # -- the other writer --------------------------------------------------------------------------------
    def _stale(self) -> Owner | str | None:
        """Return the owner whose lock can be taken over, or None if there is no lock file.

        If the file names no owner, returns a text for the log instead. Raises Unusable if the owner's
        heartbeat changes, because the lock is then in use.
        """
        first, polls, has_reported = self._read(), 0, False
        while polls * POLL_SECONDS < STALE_SECONDS:
            owner = self._read()
            if owner is not None:
                if owner.run != self._own.run:
                    return owner  # The lock file was copied from another run.
                if owner.ended or (owner.launch and owner.launch == self._own.launch):
                    return owner
                if first is not None and owner.token == first.token and owner.beat != first.beat:
                    raise Unusable(_in_use(self._path.parent, owner))
                if first is None or owner.token != first.token:
                    first, polls = owner, 0
            elif not os.path.lexists(self._path):
                return None
            if polls * POLL_SECONDS > 2 * BEAT_SECONDS and not has_reported:
                self._say(
                    f"{self._path.parent} is locked by {first or 'an unknown writer'}; waiting up to "
                    f"{STALE_SECONDS:.0f} s for a heartbeat"
                )
                has_reported = True
            time.sleep(POLL_SECONDS)
            polls += 1
        return first or f"the lock file names no owner and has not changed for {STALE_SECONDS:.0f} s"

    def _beat(self) -> None:
        """Update the heartbeat until the lock is released or belongs to another writer."""
        while not self._stop.wait(BEAT_SECONDS):
            self._own = replace(self._own, beat=self._own.beat + 1)
            try:
                file = os.open(self._path, os.O_RDWR)
            except FileNotFoundError:
                with suppress(OSError, Unusable):
                    # A user has removed the file. The first launch that creates a new file gets the lock.
                    self._create()
                continue
            except OSError:
                continue  # On a network volume, the error may be temporary.
            try:
                text = os.pread(file, _WIDTH, 0)
                with suppress(ValueError):
                    if json.loads(text).get("token") != self._own.token:
                        return
                os.pwrite(file, self._record(), 0)
            except OSError:
                pass
            finally:
                os.close(file)


def _in_use(run: Path, owner: Owner) -> str:
    """Return the error message for a run to which another launch writes."""
    return f"{run} is in use by {owner}: wait for that training to end, or use another run name"
