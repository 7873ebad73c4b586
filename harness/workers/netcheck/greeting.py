"""Ask who answers, and be asked: a small server and client that say run id and rank.

A message is 16 bytes (a mark of 8, a kind of 4, a length of 4) and a body.

- HELO: who one is; the answer, too.
- FILL: bytes that fill packets; the answer says how many came.
- REPT: what a rank has seen so far; the answer is the verdict, or null.
- TELL: a verdict, or null; the answer is what the asked rank has seen so far.
- PING: nothing; the answer is nothing.
- Others have a handler of the server's owner, which gives the answer.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .reach import cause_of

MARK = b"netchk1\n"
_HEADER = struct.Struct("!8s4sI")
_MOST = 64 * 1024 * 1024
PATIENCE = 2.0
"""Seconds for an answer on a connection that is there."""


@dataclass(frozen=True)
class Hello:
    """Who one is. `instance` is new at each start. `clock` is the time there, in seconds since 1970."""

    run: str
    rank: int
    nodes: int
    host: str
    instance: str
    clock: float = 0.0


@dataclass(frozen=True)
class Greeted:
    """Who answered, or the cause why nobody did.

    `offset`: the clock there minus the clock here, in seconds, within ± `rtt` / 2 (Cristian's method).
    """

    hello: Hello | None
    cause: str | None = None
    text: str = ""
    rtt: float = 0.0
    offset: float = 0.0


def greet(connection: socket.socket, own: Hello, seconds: float = PATIENCE) -> Greeted:
    """Say who one is, and return who answers. The connection stays open."""
    began, sent = time.monotonic(), time.time()
    try:
        _, body = call(connection, b"HELO", _hello(own), seconds)
        rtt = time.monotonic() - began
        hello = Hello(**json.loads(body))
    except TimeoutError:
        return Greeted(None, "peer.silent", f"takes the connection and says nothing for {seconds:.0f} s")
    except ConnectionError as error:
        return Greeted(None, "tcp.reset", f"closes the connection at once ({error.strerror or error})")
    except OSError as error:
        return Greeted(None, cause_of(error), error.strerror or str(error))
    except (ValueError, TypeError) as error:
        return Greeted(None, "peer.not_netcheck", f"answers, but is no netcheck: {error}")
    return Greeted(hello, rtt=rtt, offset=hello.clock - sent - rtt / 2)


def call(connection: socket.socket, kind: bytes, body: bytes, seconds: float) -> tuple[bytes, bytes]:
    """Send one message and return the answer. Raises OSError, and ValueError when it is no such message."""
    ends = time.monotonic() + seconds
    connection.settimeout(seconds)
    connection.sendall(header(kind, len(body)) + body)
    return receive(connection, ends)


def header(kind: bytes, length: int) -> bytes:
    """Return the first 16 bytes of a message whose body has `length` bytes."""
    return _HEADER.pack(MARK, kind, length)


def receive(connection: socket.socket, ends: float) -> tuple[bytes, bytes]:
    """Return the kind and body of one message, until `ends` by the monotonic clock. Raises as `call`."""
    mark, kind, length = _HEADER.unpack(_exactly(connection, _HEADER.size, ends, MARK))
    if mark != MARK or length > _MOST:
        raise ValueError(f"it says {mark!r}")
    return kind, _exactly(connection, length, ends)


class Server:
    """Answers greetings until it is closed. `hello` is who it is; a `with` block closes it.

    `reported` takes what another rank has seen, and returns the verdict or None. `report` returns what this
    rank has seen; `told` takes a verdict. `handlers` answer the messages of other kinds, with what JSON
    knows; they are given the connection and the body.
    """

    def __init__(
        self,
        port: int,
        hello: Hello,
        *,
        reported: Callable[[dict[str, Any]], Any] = lambda _: None,
        report: Callable[[], Any] = lambda: None,
        told: Callable[[dict[str, Any]], None] = lambda _: None,
        handlers: Mapping[bytes, Callable[[socket.socket, bytes], Any]] | None = None,
    ) -> None:
        """Listen on all addresses of both IP families. Raises OSError when the port is taken."""
        self.hello = hello
        self.heard: dict[str, tuple[Hello, str]] = {}
        """Who greeted, by instance, and from which address."""
        self._reported, self._report, self._told = reported, report, told
        self._handlers = handlers or {}
        self._lock, self._answering = threading.Lock(), 0
        self._listening = _listen(port)
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening. Who is being answered gets the answer, if it takes no more than a few seconds."""
        # Without it a thread that waits in accept() keeps the port.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        ends = time.monotonic() + PATIENCE
        while self._answering and time.monotonic() < ends:
            time.sleep(0.01)

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection, address[0]), daemon=True).start()

    def _serve(self, connection: socket.socket, address: str) -> None:
        with connection:
            try:
                while True:
                    kind, body = receive(connection, time.monotonic() + 30)
                    with self._busy():
                        answer = self._answer(connection, kind, body, address.replace("::ffff:", ""))
                        connection.sendall(header(kind, len(answer)) + answer)
            except (OSError, ValueError, TypeError, KeyError):
                return  # gone, or no netcheck: nothing is owed to it

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
            self.heard[other.instance] = other, address
            return _hello(self.hello)
        if kind == b"FILL":
            return json.dumps(len(body)).encode()
        if kind == b"REPT":
            return json.dumps(self._reported(json.loads(body))).encode()
        if kind == b"TELL":
            verdict = json.loads(body)
            if verdict is not None:
                self._told(verdict)
            return json.dumps(self._report()).encode()
        if kind == b"PING":
            return b""
        if kind in self._handlers:
            return json.dumps(self._handlers[kind](connection, body)).encode()
        raise ValueError(f"no such message: {kind!r}")


def _hello(hello: Hello) -> bytes:
    return json.dumps(asdict(replace(hello, clock=time.time()))).encode()


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
        except OSError as error:
            if "in use" in str(error):
                raise
    return socket.create_server(("", port), backlog=512)


def _exactly(connection: socket.socket, length: int, ends: float, mark: bytes = b"") -> bytes:
    """Return so many bytes. Raises ValueError as soon as they cannot begin with `mark`."""
    got = bytearray()
    while len(got) < length:
        connection.settimeout(max(0.01, ends - time.monotonic()))
        part = connection.recv(min(length - len(got), 1 << 20))
        if not part:
            raise ConnectionResetError("the connection ended")
        got += part
        if not mark.startswith(bytes(got[: len(mark)])):
            raise ValueError(f"it says {bytes(got[:16])!r}")
    return bytes(got)
