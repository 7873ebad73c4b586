"""Log a run's values to Pluto, MLflow, both or neither, as the environment variables specify.

Every point arrives exactly once, no matter which process is killed. Before a checkpoint, the ranks wait until
the trackers have acknowledged all points (`settle`), because a resumed run does not log them again. If a
tracker is down, the unacknowledged points are written to disk next to the checkpoints, and the next attempt
sends them. Points that a killed attempt logged after its last checkpoint are logged again: Pluto replaces a
step's values, and values that MLflow already has are not sent.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import checkpoint
from .mlflow_client import Mlflow
from .pluto_client import Pluto
from .sender import Client, Point, Sender


class Trackers:
    """Logs one rank's values to the configured trackers."""

    def __init__(
        self,
        run: str,
        rank: int,
        world: int,
        config: dict[str, Any],
        folder: Path,
        step: int,
        share: Callable[[Any], Any],
        say: Callable[[str], None] = print,
        seconds: float = 60.0,
    ) -> None:
        """Start logging at step `step`. Every rank must create one instance.

        `folder` is the run's folder on the shared disk. `share` returns rank 0's value on every rank.
        `seconds` limits the total time of consecutive waits for a tracker that does not respond.
        """
        self._folder, self._rank, self._say = folder / checkpoint.TRACKERS, rank, say
        identity = share(_identity(self._folder, run, say) if rank == 0 else None)
        self._number, self._has_warned = 0, False
        # Create the recorder before the Pluto client is imported, because the recorder uses the process's
        # original stdout.
        self._truth: Any = None
        if os.environ.get("HARNESS_NONCE"):
            import ground_truth

            self._truth = ground_truth.Recorder.from_env(rank)
        self._old: list[Path] = []
        clients = [
            make(run, rank, config, identity) for make in _client_classes(say if rank == 0 else _ignore)
        ]
        self._senders = [
            Sender(each, self._saved_points(each, step, world), say, seconds) for each in clients
        ]

    def log(self, step: int, values: dict[str, float]) -> None:
        """Log a step's values without waiting for a tracker. A metric has one value per step."""
        now = int(time.time() * 1000)
        if self._truth:
            for name, value in values.items():
                self._truth.record(name, step, value, now)
        for sender in self._senders:
            sender.put(self._point(step, now, values))

    def settle(self, *, last: bool = False) -> int:
        """Wait until all points are acknowledged, or written to disk for the next attempt.

        Return the number of unacknowledged values over all trackers. Pass `last=True` after the last step.
        """
        unsent = 0
        for sender in self._senders:
            acknowledged = sender.wait(again=last)
            points = [] if acknowledged else sender.unsent()
            self._save_points(sender.client, points)
            waiting = sum(len(point.values) for point in points)
            unsent += waiting
            if waiting and (last or not self._has_warned):
                then = "they are lost unless the training is run again" if last else "the training goes on"
                self._say(
                    f"{sender.client.name} has not acknowledged {waiting} values in {sender.seconds:.0f} s "
                    f"({sender.trouble()[:200] or 'no answer'}): they are kept in {self._folder}, and {then}"
                )
        self._has_warned = unsent > 0
        return unsent

    def finish(self, ok: bool, artifacts: Mapping[str, str] | None = None) -> int:
        """Finish the run if `ok` is true. Otherwise, close it without waiting, for the next attempt.

        MLflow stores `artifacts` (contents keyed by file name) as the run's files. Return the number of
        unacknowledged values. If the number is not 0, the job has failed.
        """
        unsent = self.settle(last=True) if ok else 0
        for sender in self._senders:
            if ok and not unsent and artifacts and self._rank == 0 and isinstance(sender.client, Mlflow):
                try:
                    sender.client.artifacts(artifacts, self._folder.parents[1].absolute())
                except Exception as error:
                    self._say(f"MLflow has not stored the run's files: {error}")
            try:
                sender.close(ok and not unsent)
            except Exception as error:
                self._say(f"{sender.client.name}: the run's status was not set: {error}")
            if self._truth and isinstance(sender.client, Pluto):
                self._truth.client(sender.client.state())
        if self._truth and ok:
            self._truth.end()
        return unsent

    def _point(self, step: int, time_ms: int, values: dict[str, float]) -> Point:
        self._number += 1
        return Point(self._number, step, time_ms, values)

    # -- points for the next attempt ---------------------------------------------------------------------
    def _save_points(self, client: Client, points: list[Point]) -> None:
        """Write points to this rank's file on disk. If there are no points, remove the file."""
        path = self._path(client, self._rank)
        if points:
            partial = path.with_suffix(".partial")
            rows = [[point.step, point.time_ms, point.values] for point in points]
            partial.write_text(json.dumps(rows))
            checkpoint.flush(partial)
            partial.replace(path)
            checkpoint.flush(self._folder)
        else:
            path.unlink(missing_ok=True)
        # Remove the files of ranks that no longer exist. Their points are now in this rank's own file, or
        # have been acknowledged.
        for old in [old for old in self._old if old.name.startswith(client.name.lower())]:
            old.unlink(missing_ok=True)
            self._old.remove(old)

    def _saved_points(self, client: Client, step: int, world: int) -> list[Point]:
        """Return the points before `step` that earlier attempts could not send.

        Later points are logged again. If an earlier attempt had more ranks, the missing ranks' files are
        divided among the current ranks.
        """
        rows = []
        for path in sorted(self._folder.glob(f"{client.name.lower()}-rank-*.json")):
            rank = int(path.stem.rpartition("-")[2])
            if rank % world == self._rank:
                rows += [row for row in json.loads(path.read_text()) if row[0] < step]
                if rank != self._rank:
                    self._old.append(path)
        if rows:
            self._say(f"{client.name}: sending {len(rows)} steps that an earlier attempt could not send")
        return [self._point(*row) for row in sorted(rows, key=lambda row: row[0])]

    def _path(self, client: Client, rank: int) -> Path:
        return self._folder / f"{client.name.lower()}-rank-{rank}.json"


def _client_classes(say: Callable[[str], None]) -> list[type[Pluto] | type[Mlflow]]:
    """Return the client classes for the trackers that the environment variables configure."""
    clients: list[type[Pluto] | type[Mlflow]] = []
    if os.environ.get("PLUTO_API_KEY"):
        clients.append(Pluto)
    elif os.environ.get("PLUTO_RUN_ID"):
        say("PLUTO_RUN_ID is set, but PLUTO_API_KEY is not, so nothing is logged to Pluto")
    if os.environ.get("MLFLOW_TRACKING_URI"):
        clients.append(Mlflow)
    return clients


def _identity(folder: Path, run: str, say: Callable[[str], None]) -> str:
    """Return this run's id in the trackers, which is the same in every attempt. Only rank 0 calls this.

    A run that was copied under another name gets its own id. Otherwise, the original and the copy would log
    to the same run in the trackers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    identity, name = _read(folder / checkpoint.IDENTITY), _read(folder / checkpoint.RUN_NAME)
    if identity and name and name != run:
        say(f"the run {run} was copied from {name}, so it gets its own run in the trackers")
        identity = ""
    if not identity:
        identity = secrets.token_hex(8)
        _write(folder / checkpoint.IDENTITY, identity)
    if name != run:
        _write(folder / checkpoint.RUN_NAME, run)
    return identity


def _read(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""


def _write(path: Path, text: str) -> None:
    """Write a file atomically, and flush it to disk."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    checkpoint.flush(partial)
    partial.replace(path)
    checkpoint.flush(path.parent)


def _ignore(text: str) -> None:
    """Print nothing. Ranks other than rank 0 use this function, because rank 0 prints the same text."""
