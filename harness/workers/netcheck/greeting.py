"""Provide a small server and client with which processes exchange their run ids and rank numbers.

A message has a 16-byte header (8 for MARK, 4 for the kind, 4 for the length) and a body. The kinds are:

- HELO: the sender's identity. The response is the server's identity.
- FILL: bytes that fill packets. The response is the number of bytes that arrived.
- REPT: a rank's report. The response is the verdict, or null.
- TELL: a verdict, or null. The response is the receiving rank's report.
- PING: an empty body. The response is empty too.
- For any other kind, a handler that was passed to the server returns the response.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .reach import cause_of

MARK = b"netchk1\n"
_HEADER = struct.Struct("!8s4sI")
_MOST = 64 * 1024 * 1024
PATIENCE = 2.0
"""Seconds to wait for a response on an open connection."""
_IDLE = 8
"""Maximum number of server threads that wait for a connection. Further threads end after their connection."""


@dataclass(frozen=True)
class Hello:
    """The identity of a rank.

    `instance` is a random id that is new at each start. `clock` is the rank's time in seconds since 1970.
    """

    run: str
    rank: int
    nodes: int
    host: str
    instance: str
    clock: float = 0.0
    bound: str = ""
    """The address on which gloo or NCCL would listen, or "" if unknown. `why` explains how it was chosen."""
    why: str = ""
    published: str = ""
    """This host's name, if torchrun may pass it to all workers as MASTER_ADDR, otherwise ""."""


@dataclass(frozen=True)
class Greeted:
    """The identity of the rank that responded, or the cause if no rank responded.

    `offset` is that rank's clock minus the local clock, in seconds, with an error of at most `rtt` / 2
    (Cristian's method).
    """

    hello: Hello | None
    cause: str | None = None
    text: str = ""
    rtt: float = 0.0
    offset: float = 0.0


def greet(connection: socket.socket, own: Hello, seconds: float = PATIENCE) -> Greeted:
    """Send this rank's identity, and return the responding rank's identity. Keep the connection open."""
    began, sent = time.monotonic(), time.time()
    try:
        _, body = call(connection, b"HELO", _hello(own), seconds)
        rtt = time.monotonic() - began
        hello = Hello(**json.loads(body))
    except TimeoutError:
        return Greeted(None, "peer.silent", f"accepts the connection, but sends nothing for {seconds:.0f} s")
    except ConnectionError as error:
        return Greeted(None, "tcp.reset", f"closes the connection immediately ({error.strerror or error})")
    except OSError as error:
        return Greeted(None, cause_of(error), error.strerror or str(error))
    except (ValueError, TypeError) as error:
        return Greeted(None, "peer.not_netcheck", f"responds, but is not netcheck: {error}")
    return Greeted(hello, rtt=rtt, offset=hello.clock - sent - rtt / 2)


def call(
    connection: socket.socket, kind: bytes, body: bytes | memoryview, seconds: float
) -> tuple[bytes, bytes]:
    """Send one message and return the response.

    Raises OSError if the connection fails, and ValueError if the response is not a valid message.
    """
    ends = time.monotonic() + seconds
    connection.settimeout(seconds)
    if len(body) > 1 << 16:  # Sending the header in a separate packet is cheaper than copying the body.
        connection.sendall(header(kind, len(body)))
        connection.sendall(body)
    else:
        connection.sendall(header(kind, len(body)) + body)
    return receive(connection, ends)


def header(kind: bytes, length: int) -> bytes:
    """Return the 16-byte header for a message with a body of `length` bytes."""
    return _HEADER.pack(MARK, kind, length)


def receive(connection: socket.socket, ends: float) -> tuple[bytes, bytes]:
    """Receive one message before the monotonic time `ends`, and return its kind and body.

    Raises the same errors as `call`.
    """
    kind, length = _begun(connection, ends)
    return kind, _exactly(connection, length, ends)


def _begun(connection: socket.socket, ends: float) -> tuple[bytes, int]:
    """Receive a message's header, and return its kind and the length of its body."""
    mark, kind, length = _HEADER.unpack(_exactly(connection, _HEADER.size, ends, MARK))
    if mark != MARK or length > _MOST:
        raise ValueError(f"it says {mark!r}")
    return kind, length


def _drained(connection: socket.socket, length: int, ends: float) -> None:
    """Receive exactly `length` bytes without storing them."""
    into = memoryview(bytearray(min(length, 1 << 16)))
    while length:
        connection.settimeout(max(0.01, ends - time.monotonic()))
        got = connection.recv_into(into[:length])
        if not got:
            raise ConnectionResetError("the connection ended")
        length -= got


class Server:
    """A server that responds to greetings until it is closed. A `with` block closes it.

    `hello` is this rank's identity. `on_report` is called with another rank's report, and returns the verdict
    or null as JSON. `report` returns this rank's report. `on_verdict` is called with a verdict. `handlers`
    respond to other kinds of messages. They are called with the connection and body, and return
    JSON-compatible data.
    """

    def __init__(
        self,
        port: int,
        hello: Hello,
        *,
        on_report: Callable[[dict[str, Any]], bytes] = lambda _: b"null",
        report: Callable[[], Any] = lambda: None,
        on_verdict: Callable[[dict[str, Any]], None] = lambda _: None,
        handlers: Mapping[bytes, Callable[[socket.socket, bytes], Any]] | None = None,
    ) -> None:
        """Listen on all addresses of both IP families. Raises OSError if the port is in use."""
        self.hello = hello
        self.greetings: dict[str, tuple[Hello, str]] = {}
        """Maps each instance to (the identity in its greeting, its IP address)."""
        self._on_report, self._report, self._on_verdict = on_report, report, on_verdict
        self._handlers = handlers or {}
        self._lock, self._answering = threading.Lock(), 0
        self._listening = _listen(port)
        self.port: int = self._listening.getsockname()[1]
        self._idle = 0
        """Number of the server's threads that are waiting for a connection."""
        self._more()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and wait a few seconds for pending responses."""
        # Without the shutdown, a thread that is waiting in accept() keeps the port in use.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        ends = time.monotonic() + PATIENCE
        while self._answering and time.monotonic() < ends:
            time.sleep(0.01)

    def _more(self) -> None:
        """Start another thread that waits for a connection."""
        with self._lock:
            self._idle += 1
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        """Serve connections until the server is closed, or until enough other threads wait for them."""
        while True:
            try:
                connection, address = self._listening.accept()
            except OSError:
                return
            with self._lock:
                self._idle -= 1
            if not self._idle:
                self._more()
            self._serve(connection, address[0])
            with self._lock:
                if self._idle >= _IDLE:
                    return
                self._idle += 1

    def _serve(self, connection: socket.socket, address: str) -> None:
        with connection:
            try:
                while True:
                    ends = time.monotonic() + 30
                    kind, length = _begun(connection, ends)
                    body = b"" if kind == b"FILL" else _exactly(connection, length, ends)
                    if kind == b"FILL":
                        _drained(connection, length, ends)
                        body = str(length).encode()
                    with self._busy():
                        answer = self._answer(connection, kind, body, address.replace("::ffff:", ""))
                        connection.sendall(header(kind, len(answer)) + answer)
            except (OSError, ValueError, TypeError, KeyError):
                return  # The client is gone or is not netcheck, so no response is sent.

    @contextlib.contextmanager
    def _busy(self) -> Iterator[None]:
        with self._lock:
            self._answering += 1
        try:
            yield
        finally:
            with self._lock:
                self._answering -= 1

    def _answer(self, connection: socket.socket, kind: bytes, body: bytes, address: str) -> bytes:
        if kind == b"HELO":
            other = Hello(**json.loads(body))
            self.greetings[other.instance] = other, address
            return _hello(self.hello)
        if kind == b"FILL":
            return body
        if kind == b"REPT":
            return self._on_report(json.loads(body))
        if kind == b"TELL":
            verdict = json.loads(body)
            if verdict is not None:
                self._on_verdict(verdict)
            return json.dumps(self._report()).encode()
        if kind == b"PING":
            return b""
        if kind in self._handlers:
            return json.dumps(self._handlers[kind](connection, body)).encode()
        raise ValueError(f"no such message: {kind!r}")


def _hello(hello: Hello) -> bytes:
    return json.dumps({**vars(hello), "clock": time.time()}).encode()


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
        except OSError as error:
            if "in use" in str(error):
                raise
    return socket.create_server(("", port), backlog=512)


def _exactly(connection: socket.socket, length: int, ends: float, mark: bytes = b"") -> bytes:
    """Return exactly `length` bytes. Raises ValueError as soon as the first bytes differ from `mark`."""
    if not length:
        return b""
    connection.settimeout(max(0.01, ends - time.monotonic()))
    first = connection.recv(min(length, 1 << 20))
    if len(first) == length and first.startswith(mark):
        return first
    if not first:
        raise ConnectionResetError("the connection ended")
    got = bytearray(first)
    if not mark.startswith(bytes(got[: len(mark)])):
        raise ValueError(f"it says {bytes(got[:16])!r}")
    while len(got) < length:
        connection.settimeout(max(0.01, ends - time.monotonic()))
        part = connection.recv(min(length - len(got), 1 << 20))
        if not part:
            raise ConnectionResetError("the connection ended")
        got += part
        if not mark.startswith(bytes(got[: len(mark)])):
            raise ValueError(f"it says {bytes(got[:16])!r}")
    return bytes(got)
