"""Determine how long a job's ranks have been silent although all pods are running.

Kubernetes cannot distinguish a job that is training from a job whose ranks are waiting for each other. In
both cases, the containers are running, and only the logs differ. As long as a job's first pod writes log
lines, only the log of this pod is read, once in each QUIET interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.condition_type import parsed

QUIET = timedelta(minutes=5)
"""The time after which the job's message reports that no rank has logged a line.

Training scripts usually log about once a minute.
"""
READ_INTERVAL = timedelta(minutes=1)
"""The interval at which a silent job's logs are read."""
LastLine = Callable[[str, str], datetime | None]
"""A function that takes a namespace and a pod's name, and returns the time of the trainer's last log line. It
returns None if the log is empty or could not be read.
"""


@dataclass(frozen=True)
class _Activity:
    newest: datetime
    """The latest time at which a rank is known to have logged a line or started."""
    next_read: datetime


class Silence:
    """A cache of the last log activity of each job. If the cache is lost, the logs are read again."""

    def __init__(self, last_line: LastLine) -> None:
        self._last_line = last_line
        self._activities: dict[str, _Activity] = {}

    def since(self, uid: str, pods: Sequence[Object], now: datetime) -> tuple[datetime | None, datetime]:
        """Return the time of the last log activity of any rank, and the time of the next check.

        The first time is None if a rank has started or logged within QUIET, or if a trainer is not running.
        `pods` contains the job's pods, and `uid` is the job's UID.
        """
        start_times = [started_at for pod in pods if (started_at := _trainer_started_at(pod)) is not None]
        if len(start_times) < len(pods) or not pods:
            return None, now + QUIET
        activity = self._activities.get(uid)
        newest = max([*start_times, *([activity.newest] if activity else [])])
        if now - newest >= QUIET and (activity is None or activity.next_read <= now):
            newest = self._newest(pods, newest, now)
            activity = self._activities[uid] = _Activity(newest, now + READ_INTERVAL)
        if now - newest < QUIET or activity is None:
            return None, newest + QUIET
        return newest, activity.next_read

    def _newest(self, pods: Sequence[Object], newest: datetime, now: datetime) -> datetime:
        for pod in pods:
            logged_at = self._last_line(pod["metadata"]["namespace"], pod["metadata"]["name"])
            newest = max(newest, logged_at or newest)
            if now - newest < QUIET:
                break
        return newest

    def forget(self, uid: str) -> None:
        self._activities.pop(uid, None)


def _trainer_started_at(pod: Object) -> datetime | None:
    """Return the start time of a pod's trainer, or None if the trainer is not running."""
    for each in (pod.get("status") or {}).get("containerStatuses") or []:
        if each["name"] == names.TRAINER:
            started_at = ((each.get("state") or {}).get("running") or {}).get("startedAt")
            return parsed(started_at) if started_at else None
    return None


def sentence(since: datetime, ready: str) -> str:
    """Return the message about a job whose ranks have not logged since `since`.

    `ready` is the number of ready pods, such as "3/3 ready".
    """
    return (
        f"no rank has written to its log since {since:%Y-%m-%dT%H:%M:%SZ} ({ready}): "
        "the ranks may be waiting "
        "for each other or for a lost node; `kubectl torchrun logs` shows their last output"
    )
