"""Read every container's complete log live, even if its pod is deleted because another rank failed.

A thread follows each log, with the kubelet's timestamps, once the container is running or has ended. If the
connection breaks, the thread rereads the log and skips the lines that it has already read. If a log cannot be
read to the end, `on_gap` is called. A line without a timestamp is an error message from the kubelet and not
part of the log. If the container has been removed or containerd is restarting, the kubelet responds with
status 200 and the text "unable to retrieve container logs".

The kubelet sends a followed log line by line, which is several times slower than reading without `follow`.
Therefore, if a thread is still reading some time after the container has ended, it reads the remaining lines
without `follow`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.core.deadlines import Deadline
from harness.core.kubernetes import Kube
from harness.evidence.schema.bundle import Observation
from harness.observe.duplicate_lines import KnownLines

RETRY_SECONDS, LONGEST_RETRY = 0.3, 2.0
"""The initial and the maximum delay between retries, in seconds.

Each delay is 1.5 times the previous one, to limit the load on the API server. At three retries per second,
256 pods without logs caused 22 000 requests.
"""
MAX_RETRIES = 20
"""The maximum number of consecutive retries, which take about half a minute.

A kubelet that is restarting on a busy machine is unavailable for many seconds.
"""
BEHIND_SECONDS = 3.0
"""The number of seconds after the end of a container within which its log should be read. A thread that takes
longer counts as behind."""
READ_BYTES = 1 << 18
LATE_SECONDS = 8.0
"""The number of seconds for which `finish` waits for logs before it probes the kubelets whose logs are still
being read."""
PROBE_SECONDS = 35.0
"""The timeout of a probe, in seconds. The API server waits 30 s for a kubelet that does not accept its
connection."""


@dataclass(frozen=True)
class Life:
    """One lifetime (instance) of a container.

    A container has several lifetimes if the kubelet restarts it, or if its pod is recreated with the same
    name.
    """

    pod: str
    container: str
    uid: str
    number: int
    """The number of times that the kubelet had already restarted the container."""


class _Unread(Exception):
    """Raised if the kubelet responds with an error message instead of the log."""


class LogFollower:
    """Follows the logs of all containers in the pods passed to `observe`."""

    def __init__(self, kube: Kube, write: Callable[[Life, str], None], on_gap: Callable[[str], None]) -> None:
        """Create a follower.

        `write(life, text)` is called with complete lines, each in the form "<RFC 3339 time> <line>".
        """
        self.kube = kube
        self._write = write
        self._on_gap = on_gap
        self._threads: dict[Life, threading.Thread] = {}
        self._ended: dict[Life, float] = {}
        self._leaving: set[Life] = set()
        self._whole: set[Life] = set()
        """The container lifetimes whose logs were read to the end of the command's output."""
        self._stop = threading.Event()
        self._whys: dict[Life, str] = {}
        """The reason why the last attempt to read each container lifetime's log failed."""
        self._namespace = ""

    def observe(self, kind: str, observation: Observation) -> None:
        """Process a watch event, and start following the log of each container that has started."""
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
            has_started = "running" in state or "terminated" in state
            if has_started and life not in self._threads and observation.type != "DELETED":
                self._namespace = metadata["namespace"]
                thread = threading.Thread(target=self._run, args=(metadata["namespace"], life), daemon=True)
                self._threads[life] = thread
                thread.start()

    def command_ended(self, life: Life) -> None:
        """Record that the log was read to the end of the command's output. Later errors do not count as gaps.

        A container that is kept alive after its command only waits to be deleted. The kubelet may remove the
        container and its log before the stream has ended, which interrupts the stream.
        """
        self._whole.add(life)

    def finish(self, seconds: float, unreachable: Collection[str] = ()) -> None:
        """Wait until all logs have been read to the end. A log that takes longer than `seconds` is a gap.

        This method does not wait for the logs of pods in `unreachable`.
        """
        deadline, late_deadline = Deadline.after(seconds), Deadline.after(min(seconds, LATE_SECONDS))
        threads = list(self._threads.items())
        for life, thread in threads:
            thread.join(0 if life.pod in unreachable else late_deadline.remaining)
        for life, thread in threads:  # A stream blocked by a firewall looks like one without new lines.
            if thread.is_alive() and life.pod not in unreachable and not deadline.passed:
                threading.Thread(target=self.probe, args=(life,), daemon=True).start()
        for life, thread in threads:
            no_node = life.pod in unreachable
            thread.join(0 if no_node else deadline.remaining)
            if thread.is_alive():
                still_reading = (
                    f"the log was still being read after {seconds:.0f} s{self._whys.get(life, '')}"
                )
                reason = "its node is lost" if no_node else still_reading
                self._gap(life, reason)
        self._stop.set()

    def probe(self, life: Life) -> None:
        """Request the last line of a log over a new connection. Store the reason if the request fails."""
        path = f"/api/v1/namespaces/{self._namespace}/pods/{life.pod}/log"
        try:
            query = {"container": life.container, "tailLines": "1"}
            self.kube.fetch(path, query, seconds=PROBE_SECONDS).close()
        except ApiException as error:
            self._whys[life] = _reason(error)
        except (HTTPError, OSError) as error:
            self._whys[life] = f": {type(error).__name__}"

    def _run(self, namespace: str, life: Life) -> None:
        """Follow a log. Unexpected errors are reported as gaps, so that the log does not appear complete."""
        try:
            self._follow(namespace, life)
        except Exception as error:
            self._on_gap(
                f"{life.pod}-{life.container}: the log could not be read: {type(error).__name__}: {error}"
            )

    def _follow(self, namespace: str, life: Life) -> None:
        known_lines, follow, whole, failures, reason = KnownLines(), True, False, 0, ""
        while failures < MAX_RETRIES:
            failures += 1
            try:
                is_behind = self._read(namespace, life, known_lines, follow)
                failures = 0
                if is_behind:
                    follow = False
                    continue
                whole = True
            except ApiException as error:
                reason = self._whys[life] = _reason(error)
                if error.status == 404 and life in self._leaving:
                    if not whole:  # If `whole` is true, the log was followed until the container ended.
                        self._gap(life, "the pod was deleted before its log was read")
                    return
                if error.status == 404 or (error.status or 0) >= 500:
                    # The kubelet cannot be reached, or it was restarted and has not loaded its pods yet.
                    # Such a kubelet may also have ended the previous stream before the end of the log.
                    if self._stop.wait(_pause(failures)):
                        return
                    continue
            except _Unread:
                pass
            except (HTTPError, OSError) as error:
                whole, reason = False, f": {type(error).__name__}"
            if whole and (life in self._ended or self._stop.is_set()):
                if known_lines.tail:
                    self._write(life, known_lines.tail.decode(errors="replace") + "\n")
                return
            if self._stop.wait(_pause(failures)):
                return
        self._gap(life, f"the log could not be read to the end{reason}")

    def _gap(self, life: Life, reason: str) -> None:
        if life not in self._whole:
            self._on_gap(f"{life.pod}-{life.container}: {reason}")

    def _behind(self, life: Life) -> bool:
        """Return whether lines are still arriving long after the container has ended.

        Returns False for a pod that is being deleted, because its log might not be readable again.
        """
        ended_at = self._ended.get(life)
        return (
            ended_at is not None
            and time.monotonic() - ended_at > BEHIND_SECONDS
            and life not in self._leaving
        )

    def _read(self, namespace: str, life: Life, known_lines: KnownLines, follow: bool) -> bool:
        """Read the log once from its first line, and write the lines that had not been read yet.

        Return whether reading was stopped because lines were still arriving long after the container ended.
        """
        path = f"/api/v1/namespaces/{namespace}/pods/{life.pod}/log"
        query = {"container": life.container, "timestamps": "true", **({"follow": "true"} if follow else {})}
        response = self.kube.fetch(path, query)
        pending: list[bytes] = []
        """The beginning of a line whose end has not been read yet."""
        known_lines.again()
        try:
            for chunk in response.stream(READ_BYTES):
                end = chunk.rfind(b"\n") + 1
                if end:
                    fresh = known_lines.fresh(b"".join((*pending, chunk[:end])))
                    pending.clear()
                    if fresh:
                        self._write(life, fresh.decode(errors="replace"))
                if end < len(chunk):
                    pending.append(chunk[end:])
                if follow and self._behind(life):
                    return True
            unterminated = b"".join(pending)
            tail = unterminated if unterminated and known_lines.new(unterminated, whole=False) else b""
        finally:
            response.release_conn()
        if known_lines.strange:
            raise _Unread
        known_lines.tail = tail
        return False


def _reason(error: ApiException) -> str:
    """Return the HTTP status and message of an API server error."""
    return f": HTTP {error.status}: {' '.join(str(error.body or error.reason).split())[:300]}"


def _pause(failures: int) -> float:
    """Return the number of seconds until the next attempt, given the number of consecutive failures."""
    return float(min(LONGEST_RETRY, RETRY_SECONDS * 1.5 ** max(0, failures - 1)))
