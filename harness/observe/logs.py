"""Logs of every container, live and complete, also of a pod that is deleted because another rank failed.

A follower starts when the container first runs (or has ended) and reads with the kubelet's timestamps. A
connection that breaks is resumed from the last timestamp, without repeating lines. A log that cannot be read
to its end is passed to `on_gap`. A line without a timestamp is the kubelet's own. The kubelet answers with
200 and "unable to retrieve container logs" for a container that it removed, or while containerd restarts.

The kubelet sends a followed log line by line, several times slower than a log that is only read. So a
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

RETRY_SECONDS, LONGEST_RETRY = 0.3, 2.0
"""Seconds until the first retry, each next one half as long again. Pods without logs must not keep the API
server busy: 256 that were asked three times a second cost it 22 000 requests.
"""
MAX_RETRIES = 20
"""Retries in a row, half a minute: a kubelet that restarts on a busy machine is away for many seconds."""
BEHIND_SECONDS = 3.0
"""Seconds after the end of a container within which a follower is done, unless it is behind."""
READ_BYTES = 1 << 18
_STAMPED = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_NEXT_UNSTAMPED = re.compile(rb"\n(?!\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


@dataclass(frozen=True)
class Life:
    """One life of a container.

    A pod may be made again under its name, and a kubelet may restart its container.
    """

    pod: str
    container: str
    uid: str
    number: int
    """How often the kubelet had restarted it before."""


class _Unread(Exception):
    """The kubelet answered with a message of its own instead of the log."""


class LogFollower:
    """Follows each container of each pod that is passed to `observe`."""

    def __init__(self, kube: Kube, write: Callable[[Life, str], None], on_gap: Callable[[str], None]) -> None:
        """Create a follower.

        `write(life, text)` gets whole lines, each "<RFC 3339 time> <line>".
        """
        self.kube = kube
        self._write = write
        self._on_gap = on_gap
        self._threads: dict[Life, threading.Thread] = {}
        self._ended: dict[Life, float] = {}
        self._leaving: set[Life] = set()
        self._stop = threading.Event()

    def observe(self, kind: str, observation: Observation) -> None:
        """Take a watch delivery, and start a follower for each container of a pod that has started."""
        if kind != "pod":
            return
        pod = observation.object
        statuses = pod.get("status", {}).get("containerStatuses") or []
        for status in statuses + (pod["status"].get("initContainerStatuses") or []):
            metadata, state = pod["metadata"], status.get("state") or {}
            number = int(status.get("restartCount") or 0)
            life = Life(metadata["name"], status["name"], metadata["uid"], number)
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
        """Wait until every log was read to its end. What is still being read after `seconds` is a gap.

        Pods that are `lost` are not waited for.
        """
        deadline = Deadline.after(seconds)
        for life, thread in list(self._threads.items()):
            pod, container = life.pod, life.container
            thread.join(0 if pod in lost else deadline.left)
            if thread.is_alive():
                why = "its node is lost" if pod in lost else f"still being read after {seconds:.0f} s"
                self._on_gap(f"{pod}-{container}: {why}")
        self._stop.set()

    def _follow(self, namespace: str, life: Life) -> None:
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
                if error.status == 404 and life in self._leaving:
                    if not whole:  # otherwise it was followed to the end of its container
                        self._on_gap(f"{pod}-{container}: the pod was gone before its log was read")
                    return
                if error.status == 404 or (error.status or 0) >= 500:
                    # The kubelet is not reached, or it restarts and knows no pod yet: the stream before may
                    # have ended with it, and not with the log.
                    if self._stop.wait(_pause(failures)):
                        return
                    continue
            except _Unread:
                pass
            except (HTTPError, OSError):
                whole = False
            if whole and (life in self._ended or self._stop.is_set()):
                if known.tail:
                    self._write(life, known.tail.decode(errors="replace") + "\n")
                return
            if self._stop.wait(_pause(failures)):
                return
        self._on_gap(f"{pod}-{container}: could not be read to its end")

    def _behind(self, life: Life) -> bool:
        """Return whether lines still come long after the end.

        A pod that is being deleted may not be asked again.
        """
        ended = self._ended.get(life)
        return ended is not None and time.monotonic() - ended > BEHIND_SECONDS and life not in self._leaving

    def _read(self, namespace: str, life: Life, known: _Known, follow: bool) -> bool:
        """Read the log once from its first line, and write lines that are not known.

        Returns whether it stopped following.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{life.pod}/log"
        asked = {"container": life.container, "timestamps": "true", **({"follow": "true"} if follow else {})}
        response = self.kube.fetch(path, asked)
        pending: list[bytes] = []
        """The beginning of a line whose end has not come."""
        known.again()
        try:
            for chunk in response.stream(READ_BYTES):
                end = chunk.rfind(b"\n") + 1
                if end:
                    fresh = known.fresh(b"".join((*pending, chunk[:end])))
                    pending.clear()
                    if fresh:
                        self._write(life, fresh.decode(errors="replace"))
                if end < len(chunk):
                    pending.append(chunk[end:])
                if follow and self._behind(life):
                    return True
            rest = b"".join(pending)
            tail = rest if rest and known.new(rest, whole=False) else b""
        finally:
            response.release_conn()
        if known.strange:
            raise _Unread
        known.tail = tail
        return False


def _pause(failures: int) -> float:
    """Return seconds until the next try after so many failures in a row."""
    return float(min(LONGEST_RETRY, RETRY_SECONDS * 1.5 ** max(0, failures - 1)))


class _Known:
    """How far a log has been written: the newest timestamp, and how many lines had it."""

    def __init__(self) -> None:
        self._last, self._lines = b"", 0
        self._skipping, self._skipped = False, 0
        self.tail = b""
        """The last bytes, without the end of their line. They are written when nothing more can come."""
        self.strange = False
        """Whether there was a line that does not belong to the log."""

    def again(self) -> None:
        """Start again: the log is read from its first line."""
        self.strange = False
        self._skipping, self._skipped = bool(self._last), 0

    def fresh(self, lines: bytes) -> bytes:
        """Return those of these whole lines that were not read before. They count as read from now on.

        Python has no time for a look at each line of a rank that writes 10 MB/s: where every line is one of
        the log and none was read before, only the last ones are looked at.
        """
        end = len(lines) - 1
        if self._skipping or not _STAMPED.match(lines) or _NEXT_UNSTAMPED.search(lines, 0, end):
            kept = [line for line in lines[:end].split(b"\n") if self.new(line)]
            return b"\n".join((*kept, b"")) if kept else b""
        stamp, same = b"", 0
        while end > 0:
            begin = lines.rfind(b"\n", 0, end) + 1
            own = lines[begin:end].split(b" ", 1)[0]
            if same and own != stamp:
                break
            stamp, same, end = own, same + 1, begin - 1
        begun_before = end <= 0 and stamp == self._last
        self._last, self._lines = stamp, same + (self._lines if begun_before else 0)
        return lines

    def new(self, line: bytes, whole: bool = True) -> bool:
        """Return whether this line was not read before. A whole line counts as read from now on."""
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
