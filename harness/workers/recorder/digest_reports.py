"""Send digests of complete blocks of steps to the tracker, if it has a route for them.

The size of the summary in a pod's log is limited. In the summary of a long training job, several blocks
therefore share one digest. The harness's own tracker also stores a digest for each block
(harness/tracker/storage/digest_reports.py). A report is JSON:

    {"process": <attempt>, "rank": 0, "number": 0, "line": 3, "chain": <chain of that line>, "entries":
     [[metric, block, points, digest, time of the metric's first point, time of its last point], ...]}

`line` and `chain` identify the last line in the log when the report was created (digest_lines.py). Later
lines contain the number of reports that the tracker has acknowledged, and the head, which is a digest of all
these reports. A change that is made only to the log or only to the reports can therefore be detected. If a
block receives more points after its report, it is reported again, and the last report counts.

Reports are sent from a thread, using the client's URL and key. They delay the program only when a run
finishes, by at most END_SECONDS seconds. A failure stops the reports, but never raises an exception. This
module uses only the standard library, and supports Python 3.9 and later.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections import deque
from typing import Any

from .digest_lines import HEAD_BYTES
from .point_digests import Entry

ROUTE = "/api/audit/digests"
SECONDS = 5.0
"""Timeout in seconds for a request to the tracker."""
END_SECONDS = 1.0
"""Maximum time in seconds that a process waits at the end of a run for its reports to be acknowledged."""
MAX_PENDING = 20_000
"""Maximum number of entries waiting to be sent. Further entries are dropped."""
MAX_ENTRIES, MAX_BYTES = 1000, 200_000
"""Maximum number of entries in a report, and the approximate maximum size of their JSON in bytes."""
MAX_FAILURES = 5
"""Number of consecutive failures after which no more reports are sent."""
MAX_RESPONSE = 10_000


def head_after(head: bytes, report: bytes) -> bytes:
    """Return the head after one more report, which is a digest of all reports so far.

    `head` is the head before this report.
    """
    return hashlib.sha256(head + hashlib.sha256(report).digest()).digest()


def first_head(nonce: str, attempt: str, run: str) -> bytes:
    """Return the head of a process that has not sent any reports yet."""
    return hashlib.sha256(f"{nonce}\n{attempt}\n{run}".encode()).digest()


def head_text(head: bytes) -> str:
    """Return a head as it appears in a @rec2 line: URL-safe base64 of its first HEAD_BYTES bytes."""
    return base64.urlsafe_b64encode(head[:HEAD_BYTES]).decode().rstrip("=")


class UnexpectedError(Exception):
    """Raised if a response is not from the tracker. The message contains no data from the request."""


class Reports:
    """Sends one process's reports about one run. Thread-safe."""

    def __init__(self, nonce: str, rank: int | None, attempt: str, op: Any) -> None:
        """Take the tracker's URL, the API key and the run from `op`, the client's run object."""
        settings = op.settings
        self.run = str(settings._op_id)
        self.dropped = self.failures = 0
        self.stopped = ""
        """The reason why no more reports are sent, or "" if reports are still sent."""
        self.acknowledged = 0, ""
        """The number of reports that the tracker has acknowledged, and the digest of them (the head)."""
        self._rank, self._attempt = rank, attempt
        self._url = f"{str(settings.url_api).rstrip('/')}{ROUTE}"
        self._headers = {
            "Authorization": f"Bearer {settings._auth}",
            "Content-Type": "application/json",
            "X-Run-Id": self.run,
            "X-Run-Name": str(settings._op_name).encode("ascii", "replace").decode(),
            "X-Project-Name": str(settings.project).encode("ascii", "replace").decode(),
        }
        self._insecure = bool(getattr(settings, "insecure_disable_ssl", False))
        self._proxy = str(getattr(settings, "http_proxy", "") or getattr(settings, "https_proxy", "") or "")
        self._head = first_head(nonce, attempt, self.run)
        self._pending: deque[Entry] = deque()
        self._line: tuple[int, str] = (0, "")
        self._report: bytes | None = None
        """The report that is being sent or retried, or None."""
        self._in_report = 0
        """The number of entries in `_report`."""
        self._changed = threading.Condition()
        self._requested = self._attempted = 0
        """`_requested` counts the calls to `add`. `_attempted` counts the calls after which the thread has
        tried to send all entries."""
        self._thread: threading.Thread | None = None
        self._has_route = False
        self._consecutive = 0

    def add(self, entries: list[Entry], dropped: int, line: int, chain: str) -> None:
        """Queue entries. `line` and `chain` identify the last line in the log. Never raises."""
        with self._changed:
            self.dropped += dropped
            if self.stopped:
                self.dropped += len(entries)
                return
            room = MAX_PENDING - len(self._pending)
            self._pending.extend(entries[:room])
            self.dropped += len(entries[room:])
            self._line = line, chain
            self._requested += 1
            if self._thread is None and self._pending:
                try:
                    self._thread = threading.Thread(target=self._send_all, name="recorder", daemon=True)
                    self._thread.start()
                except Exception as error:
                    # The interpreter is shutting down, or there are too many threads.
                    self._stop(f"no thread: {type(error).__name__}")
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait at most END_SECONDS seconds until the entries are acknowledged, or a request has failed."""
        with self._changed:
            target = self._requested
            if self._thread is not None:
                self._changed.wait_for(lambda: self.stopped or self._attempted >= target, END_SECONDS)

    def state(self, changed: int) -> dict[str, Any]:
        """Return the data about the reports for the summary. `changed` is the number of unreported blocks."""
        with self._changed:
            number, head = self.acknowledged
            names = {"run": self.run[:100], "reports": number, "head": head, "why": self.stopped[:200]}
            waiting = changed + len(self._pending) + self._in_report
            return {**names, "unsent": waiting, "dropped": self.dropped, "failures": self.failures}

    def _send_all(self) -> None:
        try:
            self._open()
            while not self.stopped:
                self._send_waiting()
        except Exception as error:
            with self._changed:
                self._stop(_reason(error))

    def _send_waiting(self) -> None:
        """Wait for entries and send them. After a failure, wait for the next call to `add`."""
        with self._changed:
            target = self._requested
        while self._report is not None or self._pending:
            try:
                self._send_next()
                self._consecutive = 0
            except Exception as error:
                with self._changed:
                    self.failures += 1
                    self._consecutive += 1
                    if not _is_temporary(error) or self._consecutive >= MAX_FAILURES:
                        self._stop(_reason(error))
                break
        with self._changed:
            self._attempted = max(self._attempted, target)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.stopped or self._requested > target)

    def _send_next(self) -> None:
        """Send the next report. Before the first report, check that the tracker accepts reports."""
        if not self._has_route:
            self._expect(self._post(self._body([])), 0)
            self._has_route = True
        if self._report is None:
            self._report = self._next()
        report = self._report
        number = self.acknowledged[0] + 1
        self._expect(self._post(report), number)
        with self._changed:
            self._head = head_after(self._head, report)
            self.acknowledged = number, head_text(self._head)
            self._report, self._in_report = None, 0

    @staticmethod
    def _expect(count: int, number: int) -> None:
        if count != number:
            raise UnexpectedError(f"the tracker has {count} reports of this process instead of {number}")

    def _next(self) -> bytes:
        """Remove pending entries, and return them as the next report.

        The report has at most MAX_ENTRIES entries, and at most about MAX_BYTES bytes.
        """
        entries: list[Entry] = []
        size = 0
        with self._changed:
            while self._pending and len(entries) < MAX_ENTRIES and size < MAX_BYTES:
                entries.append(self._pending.popleft())
                size += len(entries[-1][0].encode(errors="replace")) * 6 + 120
            self._in_report = len(entries)
        return self._body(entries)

    def _body(self, entries: list[Entry]) -> bytes:
        line, chain = self._line
        names = {"process": self._attempt, "rank": self._rank, "number": self.acknowledged[0]}
        return json.dumps({**names, "line": line, "chain": chain, "entries": entries}).encode()

    def _stop(self, reason: str) -> None:
        """Stop sending reports. The caller must hold the lock."""
        self.stopped = reason
        self.dropped += len(self._pending) + self._in_report
        self._pending.clear()
        self._report, self._in_report = None, 0
        self._changed.notify_all()

    def _open(self) -> None:
        """Create the urllib opener that sends the requests.

        Redirects are not followed, because the request contains a key.
        """
        import ssl
        import urllib.request

        if not self._url.startswith(("http://", "https://")):
            raise UnexpectedError("the tracker's URL does not begin with http:// or https://")

        class NoRedirect(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_: Any, **__: Any) -> None:
                return None

        context = ssl.create_default_context()
        if self._insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        handlers: list[Any] = [NoRedirect(), urllib.request.HTTPSHandler(context=context)]
        if self._proxy:
            handlers.append(urllib.request.ProxyHandler({"http": self._proxy, "https": self._proxy}))
        self._opener = urllib.request.build_opener(*handlers)

    def _post(self, body: bytes) -> int:
        """Send a report, and return how many of this process's reports the tracker has stored."""
        import urllib.error
        import urllib.request

        request = urllib.request.Request(self._url, body, self._headers, method="POST")  # noqa: S310 - checked in `_open`
        try:
            with self._opener.open(request, timeout=SECONDS) as response:
                answer = json.loads(response.read(MAX_RESPONSE))
        except urllib.error.HTTPError as error:
            error.close()
            raise
        count = answer["reports"] if isinstance(answer, dict) and "reports" in answer else None
        if not isinstance(count, int) or isinstance(count, bool):
            raise UnexpectedError("the response is not from the tracker")
        return count


def _is_temporary(error: Exception) -> bool:
    """Return whether a request that failed with this error can be retried."""
    status = getattr(error, "code", None)
    if status is None:
        return isinstance(error, OSError)
    return status in (408, 429) or (status >= 500 and status != 507)


def _reason(error: Exception) -> str:
    """Return the reason why a request failed.

    Most exceptions are reported without their text, because errors about invalid headers or URLs contain the
    key.
    """
    status = getattr(error, "code", None)
    if isinstance(status, int):
        return f"HTTP {status}"
    is_safe = isinstance(error, (OSError, UnexpectedError))
    return f"{type(error).__name__}: {str(error)[:150]}" if is_safe else type(error).__name__
