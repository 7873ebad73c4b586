"""A container's log is kept completely, whatever the API server sends before its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from loopback import Server, body

from harness.core.deadlines import Budget, Deadline
from harness.core.kubernetes_retries import pause
from harness.evidence.io.redaction import Redactor
from harness.evidence.io.writer import BundleWriter
from harness.evidence.schema.bundle import Launch, Observation
from harness.observe import logs
from harness.observe.control_plane import ControlPlane
from harness.observe.logs import Life, LogFollower
from harness.observe.observer import LaunchObserver

GONE = b"unable to retrieve container logs for containerd://8c7f"
ONE, TWO = b"2026-11-22T01:57:31.1Z one\n", b"2026-11-22T01:57:31.2Z two\n"


def cut(text: bytes) -> bytes:
    """Return an answer that is sent in chunks, as the kubelet's is, and breaks after this text."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    return head + b"%x\r\n%s\r\n" % (len(text), text)


def refused(status: bytes) -> bytes:
    """Return an answer with another status than 200."""
    return b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Follow:
    """A follower of one container, which runs until `ends()` is called."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.text, self.gaps = "", list[str]()
        self._follower = LogFollower(server.kube(folder), self._write, self.gaps.append)
        self._tell({"running": {}})

    def _write(self, life: Life, text: str) -> None:
        assert (life.pod, life.container) == ("p", "c")
        if "cannot be written" in text:
            raise ValueError(text)
        self.text += text
        if "exited with 0" in text:
            self._follower.command_ended(life)

    def _tell(self, state: dict[str, Any], uid: str = "1", restarts: int = 0, **metadata: str) -> None:
        pod = {
            "metadata": {"name": "p", "namespace": "n", "uid": uid, **metadata},
            "status": {"containerStatuses": [{"name": "c", "state": state, "restartCount": restarts}]},
        }
        self._follower.observe("pod", Observation(received_at="t", type="MODIFIED", object=pod))

    def ends(self) -> None:
        self._tell({"terminated": {"exitCode": 0}})

    def stalled(self) -> None:
        """Ask why the stream is silent, and give it no more time."""
        self._follower.probe(Life("p", "c", "1", 0))
        self._follower.finish(0)

    def deleted(self) -> None:
        self._tell({"terminated": {"exitCode": 0}}, deletionTimestamp="t")

    def again(self, uid: str = "1", restarts: int = 0) -> None:
        """Let the container live once more and end: in a new pod of its name, or restarted by the kubelet."""
        self._tell({"running": {}}, uid, restarts)
        self._tell({"terminated": {"exitCode": 0}}, uid, restarts)

    def finish(self) -> tuple[list[str], list[str]]:
        """Return the lines without their times, and the gaps."""
        self._follower.finish(30)
        return [line.partition(" ")[2] for line in self.text.splitlines()], self.gaps


Start = Callable[..., Follow]


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start followers. `answers` are for one request after the other, and the last one for all that follow.

    The container ends with the request `ends`; with `deleted`, because its pod is deleted.
    """
    monkeypatch.setattr(logs, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(logs, "LONGEST_RETRY", 0.01)
    servers = []

    def start(*answers: bytes | str, ends: int = 1, deleted: bool = False) -> Follow:
        begun = Future[Follow]()

        def answer(asked: int) -> bytes | str:
            if asked >= ends:
                log = begun.result()
                (log.deleted if deleted else log.ends)()
            return answers[min(asked, len(answers)) - 1]

        servers.append(Server(answer))
        begun.set_result(Follow(servers[-1], tmp_path))
        return begun.result()

    yield start
    for server in servers:
        server.close()


def test_a_log_is_read_to_its_end(follow: Start) -> None:
    assert follow(body(ONE + TWO)).finish() == (["one", "two"], [])


def test_lines_are_not_repeated_after_a_connection_broke(follow: Start) -> None:
    """Contract: no line is repeated or lost, and of a line that was cut off only the whole one is kept."""
    broken = cut(ONE + TWO[:-3])
    assert follow(broken, "reset", body(ONE + TWO), ends=3).finish() == (["one", "two"], [])


def test_a_last_line_may_have_no_end(follow: Start) -> None:
    """Contract: it is kept once, also when the next read brings more of it."""
    assert follow(body(ONE + TWO[:-1])).finish() == (["one", "two"], [])
    assert follow(body(ONE + TWO[:-3]), body(ONE + TWO[:-1]), ends=3).finish() == (["one", "two"], [])
    assert follow(body(ONE + TWO[:-3]), body(ONE + TWO), ends=3).finish() == (["one", "two"], [])


def test_end_may_be_told_long_after_last_line(follow: Start) -> None:
    """A busy kubelet reports the state of a container seconds after its log has ended."""
    assert follow(body(ONE + TWO), ends=logs.MAX_RETRIES * 2).finish() == (["one", "two"], [])


def test_what_kubelet_says_is_no_line_of_log(follow: Start) -> None:
    """A container that ended is removed with its pod, and its log was read before that."""
    assert follow(body(ONE + TWO), body(GONE), ends=2).finish() == (["one", "two"], [])
    assert follow(body(ONE + TWO[:-1]), body(GONE), ends=2).finish() == (["one", "two"], [])
    assert follow(body(ONE + GONE), body(ONE + TWO), ends=2).finish() == (["one", "two"], [])
    assert follow(body(ONE + GONE + b"\n" + TWO), body(ONE + TWO), ends=2).finish() == (["one", "two"], [])


def test_a_log_resumes_after_a_kubelet_read_error(follow: Start) -> None:
    """The kubelet cannot read the log while containerd restarts. Later lines are not taken for known ones."""
    assert follow(body(ONE), body(GONE), body(ONE + TWO), ends=3).finish() == (["one", "two"], [])


def test_a_kubelet_restart_does_not_end_the_log(follow: Start) -> None:
    """Contract: it ends as the log would. Nobody reaches the kubelet for a while; then the rest comes."""
    for status in (b"500 Internal Server Error", b"404 Not Found"):  # at first it knows none of its pods
        assert follow(body(ONE), refused(status), body(ONE + TWO), ends=2).finish() == (["one", "two"], [])


@pytest.mark.parametrize("answer", [body(GONE), "reset"])
def test_a_log_that_cannot_be_read_is_a_gap(follow: Start, answer: bytes | str) -> None:
    why = ": ProtocolError" if answer == "reset" else ""
    assert follow(answer).finish() == ([], [f"p-c: the log could not be read to the end{why}"])


def test_a_kubelet_that_is_not_reached_is_named(follow: Start) -> None:
    """Contract: the gap repeats what the API server says of the kubelet."""
    rows, gaps = follow(refused(b"502 Bad Gateway")).finish()
    assert rows == []
    assert gaps[0].startswith("p-c: the log could not be read to the end: HTTP 502: ")


def test_a_follower_that_fails_leaves_a_gap(follow: Start) -> None:
    """Contract: a log whose lines could not be kept never looks whole."""
    (gap,) = follow(body(b"2026-11-22T01:57:31.2Z cannot be written\n")).finish()[1]
    assert gap.startswith("p-c: the log could not be read: ValueError: ")


@pytest.mark.parametrize("broken", [cut(ONE), body(ONE + GONE)], ids=["reset", "removed"])
def test_deleted_pod_whose_log_broke_off_is_gap(follow: Start, broken: bytes) -> None:
    """Contract: nobody knows what the container wrote after the last line that was read."""
    log = follow(broken, refused(b"404 Not Found"), deleted=True)
    assert log.finish() == (["one"], ["p-c: the pod was deleted before its log was read"])


@pytest.mark.parametrize("after", [cut, lambda text: body(text + GONE)], ids=["reset", "removed"])
def test_log_with_end_of_its_command_is_whole(follow: Start, after: Callable[[bytes], bytes]) -> None:
    """Contract: a held container only waits then, to be deleted. How its stream breaks off says nothing."""
    content = ONE + b"2026-11-22T01:57:31.2Z exited with 0\n"
    assert follow(after(content), refused(b"404 Not Found"), deleted=True).finish()[1] == []
    assert follow(after(content), refused(b"500 Internal Server Error")).finish()[1] == []


@pytest.mark.parametrize("life", [{"uid": "2"}, {"restarts": 1}])
def test_each_life_of_a_container_is_followed(follow: Start, life: dict[str, Any]) -> None:
    """Contract: a pod made again under its name is read too, and so is a container that was restarted."""
    log = follow(body(b"2026-11-21T05:00:01Z a line\n"))
    log.again(**life)
    assert log.finish() == (["a line", "a line"], [])


def test_a_stalled_stream_reports_an_unreachable_kubelet(tmp_path: Path) -> None:
    """Contract: a stream without new lines looks alike, so a connection of its own asks why none come."""
    body = b'{"message":"Get https://10.0.0.2:10250/containerLogs: dial tcp 10.0.0.2:10250: i/o timeout"}'
    head = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    server = Server(lambda number: "frozen" if number == 1 else head % len(body) + body)
    following = Follow(server, tmp_path)
    asked_once = Deadline.after(20)
    while not server.asked and not asked_once.passed:
        pause(asked_once)
    following.stalled()
    (gap,) = following.gaps
    assert "dial tcp 10.0.0.2:10250: i/o timeout" in gap
    server.close()


def test_last_line_that_resembles_secret_is_written(tmp_path: Path) -> None:
    """Contract: a word that might be the beginning of a secret is held back only until the log ends."""
    writer = BundleWriter.create(tmp_path / "runs", "aaaa", Redactor(["s3cretvalue"]))
    launch = Launch(launcher="apply", namespace="ns", kind="JobSet")
    kube = Server(lambda _: "reset").kube(tmp_path)
    observer = LaunchObserver(kube, launch, [], writer, Budget(60), ControlPlane(lambda: None))
    observer._log(Life("worker", "main", "u", 0), "2026-11-22T01:57:31.1Z digest a7s3cr\n")
    observer.stop()
    assert (writer.path / "logs/worker-main.log").read_text() == "2026-11-22T01:57:31.1Z digest a7s3cr\n"
