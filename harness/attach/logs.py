"""Read an attached job's logs once, for the current and the previous instance of each container."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.attach.api_reader import Reader
from harness.attach.recorder_lines import NONCE_VARIABLE
from harness.core.kubernetes import Object
from harness.core.kubernetes_retries import reason_of
from harness.evidence.io.writer import BundleWriter
from harness.evidence.kubernetes.objects import container_of, items, mapping

AT_ONCE = 16
"""Maximum number of logs that are read concurrently."""
WHOLE_LOGS = 64
"""Maximum number of pods in a job whose logs are all read in full. In larger jobs, only the logs to which a
recorder writes are read in full, because the lines of a rank's earlier process may be anywhere in the log."""
MAX_BYTES = 2 << 30
"""Maximum total size, in bytes, of the logs that are read in full. From all other logs, only the last lines
are read."""
MAX_LOG_BYTES = 128 << 20
"""Maximum number of bytes read from one log. From a longer log, only the last lines are read."""
TAIL_LINES = 2000
"""Number of lines to read from the end of a log that is not read in full. The log of a container without
ranks is never read in full."""
_UNAVAILABLE = "unable to retrieve container logs"
"""Start of the message that the kubelet returns, with status 200, for a log that no longer exists."""


@dataclass(frozen=True)
class _Log:
    pod: str
    container: str
    previous: bool
    """Whether to read the log of the container's previous instance as well."""
    tail: int | None


def read(
    reader: Reader,
    pods: Iterable[Object],
    container: str,
    writer: BundleWriter,
    feed: Callable[[str, str, str], None],
    *,
    previous_alone: bool = False,
) -> list[str]:
    """Write the logs of all containers that have started. Return the gaps, as "<pod>-<container>: reason".

    `feed(pod, uid, text)` is called with each log of the container named `container`. With `previous_alone`,
    only the logs of previous instances are read, because the current logs are followed.
    """
    pods = list(pods)
    is_limited = len(pods) > WHOLE_LOGS
    uids = {str(pod["metadata"]["name"]): str(pod["metadata"].get("uid")) for pod in pods}
    requested = [
        log
        for pod in pods
        for log in _logs(pod, container, TAIL_LINES if is_limited and not recorded(pod, container) else None)
    ]
    requested = [log for log in requested if log.previous or not previous_alone]
    remaining = MAX_BYTES

    def one(log: _Log) -> list[str]:
        nonlocal remaining
        text, gaps = _read(
            reader, log if remaining > 0 or log.tail else replace(log, tail=TAIL_LINES), previous_alone
        )
        remaining -= len(text)  # The total is approximate, because several threads read concurrently.
        if text:
            with writer.log_file(log.pod, log.container) as file:
                file.write(text)
            if log.container == container:
                feed(log.pod, uids[log.pod], text)
        return gaps

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [gap for gaps in pool.map(one, requested) for gap in gaps]


def recorded(pod: Object, container: str) -> bool:
    """Return whether a recorder writes to the log of this container."""
    own = container_of(mapping(pod, "spec"), container)
    return any(each.get("name") == NONCE_VARIABLE for each in items(own, "env"))


def _logs(pod: Object, container: str, tail: int | None) -> Iterator[_Log]:
    name = str(pod["metadata"]["name"])
    for status in [
        *items(pod, "status", "containerStatuses"),
        *items(pod, "status", "initContainerStatuses"),
    ]:
        state, own = mapping(status, "state"), status.get("name") == container
        last_state = mapping(status, "lastState", "terminated")
        if not (state.keys() & {"running", "terminated"} or last_state):
            continue
        # While a container waits to be restarted, its current log is still the log of the previous instance.
        previous = bool(last_state) and "waiting" not in state
        yield _Log(name, str(status.get("name")), previous, tail if own else TAIL_LINES)


def _read(reader: Reader, log: _Log, previous_alone: bool) -> tuple[str, list[str]]:
    """Return the log and its gaps. If requested, the log of the previous instance comes first."""
    texts, gaps = list[str](), list[str]()
    for previous in [*([True] * log.previous), *([False] * (not previous_alone))]:
        log_name = f"{log.pod}-{log.container}" + (" (previous)" if previous else "")
        tail = log.tail
        try:
            content = reader.log(log.pod, log.container, previous=previous, tail=tail, limit=MAX_LOG_BYTES)
            if len(content) >= MAX_LOG_BYTES and not tail:
                tail = TAIL_LINES
                content = reader.log(
                    log.pod, log.container, previous=previous, tail=tail, limit=MAX_LOG_BYTES
                )
        except (ApiException, HTTPError) as error:
            gaps.append(f"{log_name}: {reason_of(error)}")
            continue
        text = content.decode(errors="replace")
        if text.startswith(_UNAVAILABLE) or "\n" + _UNAVAILABLE in text[-300:]:
            gaps.append(f"{log_name}: {text[text.index(_UNAVAILABLE) :].strip()[:200]}")
            continue
        if tail and (text.count("\n") >= tail or len(content) >= MAX_LOG_BYTES):
            gaps.append(f"{log_name}: only the last {tail} lines were read")
        texts.append(text if not text or text.endswith("\n") else f"{text}\n")
    return "".join(texts), gaps
