"""How long the ranks of a job have written nothing, while all its pods are ready.

Kubernetes cannot tell a job that trains from one whose ranks wait for each other: its containers run in both
cases. Their logs can. They are asked seldom: one request for a job each QUIET while its first pod writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.conditions import parsed

QUIET = timedelta(minutes=5)
"""A job whose ranks write nothing for so long says so. Training programs log a line a minute or more."""
ASK = timedelta(minutes=1)
"""How often the logs of such a job are asked."""
LastLine = Callable[[str, str], datetime | None]
"""(namespace, pod) → when the trainer wrote its last line; None where it has not, or where nobody may ask."""


@dataclass(frozen=True)
class _Known:
    newest: datetime
    """When a rank last wrote, or started."""
    ask: datetime


class Silence:
    """What was last known of the logs of each job. All of it may be lost."""

    def __init__(self, last_line: LastLine) -> None:
        self._last_line = last_line
        self._known: dict[str, _Known] = {}

    def since(self, uid: str, pods: Sequence[Object], now: datetime) -> tuple[datetime | None, datetime]:
        """Return since when no rank of these pods has written, or None; and when to look again.

        `uid`: of their job. What is known of it is not older than QUIET, unless nobody wrote.
        """
        started = [begun for pod in pods if (begun := _started(pod)) is not None]
        if len(started) < len(pods) or not pods:
            return None, now + QUIET
        known = self._known.get(uid)
        newest = max([*started, *([known.newest] if known else [])])
        if now - newest >= QUIET and (known is None or known.ask <= now):
            newest = self._newest(pods, newest, now)
            known = self._known[uid] = _Known(newest, now + ASK)
        if now - newest < QUIET or known is None:
            return None, newest + QUIET
        return newest, known.ask

    def _newest(self, pods: Sequence[Object], newest: datetime, now: datetime) -> datetime:
        for pod in pods:
            wrote = self._last_line(pod["metadata"]["namespace"], pod["metadata"]["name"])
            newest = max(newest, wrote or newest)
            if now - newest < QUIET:
                break
        return newest

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)


def _started(pod: Object) -> datetime | None:
    """Return when the trainer of a pod started; None where it does not run."""
    for each in (pod.get("status") or {}).get("containerStatuses") or []:
        if each["name"] == names.TRAINER:
            began = ((each.get("state") or {}).get("running") or {}).get("startedAt")
            return parsed(began) if began else None
    return None


def sentence(since: datetime, ready: str) -> str:
    """Return what a job says whose ranks have written nothing since then. `ready`: "3/3 ready"."""
    return (
        f"no rank has written to its log since {since:%Y-%m-%dT%H:%M:%SZ}, with {ready}: they may wait for "
        "each other or for a node that is lost; `kubectl torchrun logs` shows what they wrote last"
    )
