"""Logs of every container, live and complete, also of a pod that another rank's failure deletes.

A follower starts when the container first runs (or has ended) and reads with the kubelet's timestamps. A
connection that breaks is taken up again from the last timestamp, without repeating lines; a log that cannot
be read to its end is told to `on_gap`. A line without a timestamp is the kubelet's own: it answers with 200
and "unable to retrieve container logs" for a container that it removed, or while containerd starts again.

The kubelet sends a log that is followed line by line, several times slower than one that is only read. So a
follower that is behind when its container has ended (a flood of lines) reads the rest without following.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.core.deadlines import Deadline
from harness.core.kubernetes import Kube
from harness.evidence.schema import Observation

RETRY_SECONDS = 0.3
MAX_RETRIES = 20
"""In a row."""
BEHIND_SECONDS = 3.0
"""After the end of a container a follower is done within this, unless it is behind."""
_STAMPED = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


@dataclass(frozen=True)
class _Life:
    """One life of a container: a pod may be made again under its name, and a kubelet may start it again."""

    pod: str
    container: str
    uid: str
    number: int
    """How often the kubelet had started it again before."""


class _Unread(Exception):
    """The kubelet said something in place of the log."""


class LogFollower:
    """Follows each container of each pod it is told of by `observe`."""

    def __init__(
        self, kube: Kube, write: Callable[[str, str, str], None], on_gap: Callable[[str], None]
    ) -> None:
        """`write(pod, container, text)` gets whole lines, each "<RFC 3339 time> <line>"."""
        self.kube = kube
        self._write = write
        self._on_gap = on_gap
        self._threads: dict[_Life, threading.Thread] = {}
        self._ended: dict[_Life, float] = {}
        self._leaving: set[_Life] = set()
        self._stop = threading.Event()

    def observe(self, kind: str, observation: Observation) -> None:
        """A watch delivery: starts a follower for each container of a pod that has started."""
        if kind != "pod":
            return
        pod = observation.object
        statuses = pod.get("status", {}).get("containerStatuses") or []
        for status in statuses + (pod["status"].get("initContainerStatuses") or []):
            metadata, state = pod["metadata"], status.get("state") or {}
            number = int(status.get("restartCount") or 0)
            life = _Life(metadata["name"], status["name"], metadata["uid"], number)
            for earlier in self._threads:
                if earlier in (replace(life, number=before) for before in range(number)):
                    self._ended.setdefault(earlier, time.monotonic())
            if "terminated" in state or observation.type == "DELETED":
                self._ended.setdefault(life, time.monotonic())
            if metadata.get("deletionTimestamp") or observation.type == "DELETED":
                self._leaving.add(life)
            started = "running" in state or "terminated" in state
            if started and life not in self._threads and observation.type != "DELETED":
                thread = threading.Thread(
                    target=self._follow, args=(metadata["namespace"], life), daemon=True
                )
                self._threads[life] = thread
                thread.start()

    def finish(self, seconds: float, lost: Collection[str] = ()) -> None:
        """Wait until every log was read to its end; what is still being read then is a gap. Pods that are
        `lost` are not waited for."""
        deadline = Deadline.after(seconds)
        for life, thread in list(self._threads.items()):
            pod, container = life.pod, life.container
            thread.join(0 if pod in lost else deadline.left)
            if thread.is_alive():
                why = "its node is lost" if pod in lost else f"still being read after {seconds:.0f} s"
                self._on_gap(f"{pod}-{container}: {why}")
        self._stop.set()

    def _follow(self, namespace: str, life: _Life) -> None:
        pod, container = life.pod, life.container
        known, follow, whole, failures = _Known(), True, False, 0
        while failures < MAX_RETRIES:
            failures += 1
            try:
                behind = self._read(namespace, life, known, follow)
                failures = 0
                if behind:
                    follow = False
                    continue
                whole = True
            except ApiException as error:
                if error.status == 404:
                    if not whole:  # else it was followed to where its container ended
                        self._on_gap(f"{pod}-{container}: the pod was gone before its log was read")
                    return
            except _Unread:
                pass
            except (HTTPError, OSError):
                whole = False
            if whole and (life in self._ended or self._stop.is_set()):
                if known.tail:
                    self._write(pod, container, known.tail.decode(errors="replace") + "\n")
                return
            if self._stop.wait(RETRY_SECONDS):
                return
        self._on_gap(f"{pod}-{container}: could not be read to its end")

    def _behind(self, life: _Life) -> bool:
        """Whether lines still come long after the end. A pod that is being deleted may not be asked again."""
        ended = self._ended.get(life)
        return ended is not None and time.monotonic() - ended > BEHIND_SECONDS and life not in self._leaving

    def _read(self, namespace: str, life: _Life, known: _Known, follow: bool) -> bool:
        """Read once, from the first line; write those that are not known. Whether it gave up following."""
        response = self.kube.core.read_namespaced_pod_log(
            name=life.pod,
            namespace=namespace,
            container=life.container,
            follow=follow,
            timestamps=True,
            _preload_content=False,
        )
        rest = b""
        known.again()
        try:
            for chunk in response.stream(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                fresh = [line.decode(errors="replace") for line in lines if known.new(line)]
                if fresh:
                    self._write(life.pod, life.container, "\n".join(fresh) + "\n")
                if follow and self._behind(life):
                    return True
            tail = rest if rest and known.new(rest, whole=False) else b""
        finally:
            response.release_conn()
        if known.strange:
            raise _Unread
        known.tail = tail
        return False


class _Known:
    """How far a log has been written: the newest timestamp, and how many lines carried it."""

    def __init__(self) -> None:
        self._last, self._lines = b"", 0
        self._skipping, self._skipped = False, 0
        self.tail = b""
        """What came last and did not end its line: written when nothing more can come."""
        self.strange = False
        """Whether there was a line that is none of the log."""

    def again(self) -> None:
        """The log is read from its first line."""
        self.strange = False
        self._skipping, self._skipped = bool(self._last), 0

    def new(self, line: bytes, whole: bool = True) -> bool:
        """Whether this line was not read before. If it is whole, now it was."""
        if not _STAMPED.match(line):
            self.strange = True
            return False
        stamp = line.split(b" ", 1)[0]
        if self._skipping:
            self._skipped += stamp == self._last
            if stamp < self._last or (stamp == self._last and self._skipped <= self._lines):
                return False
            self._skipping = False
        if not whole:
            return True
        self._lines = self._lines + 1 if stamp == self._last else 1
        self._last = stamp
        return True
