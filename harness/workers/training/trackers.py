"""The curves of one run, in the trackers that are set: Pluto, MLflow, both or none.

Every point arrives once, whatever is killed. Before a checkpoint the ranks wait until the trackers have
acknowledged everything (`settle`), because a resumed run will not log it again. Where a tracker is down, what
it has not acknowledged is written beside the checkpoint, and the next attempt sends it. What a killed attempt
logged after its last checkpoint is logged again: Pluto replaces the values of a step, and what MLflow has is
not sent twice.
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
    """Logs one rank's values."""

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
        """Begin to log at `step`. Every rank calls it.

        `folder`: of the run, on the disk that all ranks share. `share` returns rank 0's value on every rank.
        `seconds`: the limit for all waits in a row for a tracker that does not answer.
        """
        self._folder, self._rank, self._say = folder / checkpoint.TRACKERS, rank, say
        identity = share(_identity(self._folder) if rank == 0 else None)
        self._number, self._told = 0, False
        # Before Pluto's client is imported: it takes the process's own stdout.
        self._truth: Any = None
        if os.environ.get("HARNESS_NONCE"):
            import ground_truth

            self._truth = ground_truth.Recorder.from_env(rank)
        self._old: list[Path] = []
        clients = [make(run, rank, config, identity) for make in _wanted(say if rank == 0 else _silent)]
        self._senders = [Sender(each, self._kept(each, step, world), say, seconds) for each in clients]

    def log(self, step: int, values: dict[str, float]) -> None:
        """Log values of a step. It waits for nothing. A metric has one value a step."""
        now = int(time.time() * 1000)
        if self._truth:
            for name, value in values.items():
                self._truth.record(name, step, value, now)
        for sender in self._senders:
            sender.put(self._point(step, now, values))

    def settle(self, *, last: bool = False) -> int:
        """Wait until everything is acknowledged, or is on the disk for the next attempt.

        Return the number of values that no tracker has acknowledged yet. `last`: after the last step.
        """
        unsent = 0
        for sender in self._senders:
            done = sender.wait(again=last)
            points = [] if done else sender.unsent()
            self._keep(sender.client, points)
            waiting = sum(len(point.values) for point in points)
            unsent += waiting
            if waiting and (last or not self._told):
                after = "they are lost unless it is run again" if last else "the training goes on"
                self._say(
                    f"{sender.client.name} has not acknowledged {waiting} values in {sender.seconds:.0f} s "
                    f"({sender.trouble()[:200] or 'no answer'}): they are kept in {self._folder}, and {after}"
                )
        self._told = unsent > 0
        return unsent

    def finish(self, ok: bool, artifacts: Mapping[str, str] | None = None) -> int:
        """End the run where `ok`; otherwise let go of it at once: the next attempt goes on with it.

        `artifacts`: texts that MLflow keeps as files of the run, by name. Return the number of values that no
        tracker has acknowledged: with any, the training has not ended well.
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

    # -- what waits for the next attempt -----------------------------------------------------------------
    def _keep(self, client: Client, points: list[Point]) -> None:
        """Write points to the disk; with none, remove what was written."""
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
        # Now they are in this rank's own file, or acknowledged.
        for old in [old for old in self._old if old.name.startswith(client.name.lower())]:
            old.unlink(missing_ok=True)
            self._old.remove(old)

    def _kept(self, client: Client, step: int, world: int) -> list[Point]:
        """Return what earlier attempts left, of before `step`: the rest will be logged again.

        A rank takes also what ranks left that are no more, where there were more of them.
        """
        found = []
        for path in sorted(self._folder.glob(f"{client.name.lower()}-rank-*.json")):
            rank = int(path.stem.rpartition("-")[2])
            if rank % world == self._rank:
                found += [row for row in json.loads(path.read_text()) if row[0] < step]
                if rank != self._rank:
                    self._old.append(path)
        if found:
            self._say(
                f"{client.name}: {len(found)} steps that an earlier attempt could not send are sent now"
            )
        return [self._point(*row) for row in sorted(found, key=lambda row: row[0])]

    def _path(self, client: Client, rank: int) -> Path:
        return self._folder / f"{client.name.lower()}-rank-{rank}.json"


def _wanted(say: Callable[[str], None]) -> list[type[Pluto] | type[Mlflow]]:
    """Return the trackers that the environment names."""
    found: list[type[Pluto] | type[Mlflow]] = []
    if os.environ.get("PLUTO_API_KEY"):
        found.append(Pluto)
    elif os.environ.get("PLUTO_RUN_ID"):
        say("PLUTO_RUN_ID is set and PLUTO_API_KEY is not: nothing is logged to Pluto")
    if os.environ.get("MLFLOW_TRACKING_URI"):
        found.append(Mlflow)
    return found


def _identity(folder: Path) -> str:
    """Return what names this run in the trackers, the same in every attempt. For rank 0 alone."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / checkpoint.IDENTITY
    if not path.is_file():
        partial = path.with_suffix(".partial")
        partial.write_text(secrets.token_hex(8))
        checkpoint.flush(partial)
        partial.replace(path)
        checkpoint.flush(folder)
    return path.read_text()


def _silent(text: str) -> None:
    """Say nothing: rank 0 does."""
