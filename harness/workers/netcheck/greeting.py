"""Provide a small server and client with which processes exchange their run ids and rank numbers.

The kinds of messages (messages.py) are:

- HELO: the sender's identity. The response is the server's identity.
- FILL: bytes that fill packets. The response is the number of bytes that arrived.
- REPT: a rank's report. The response is the verdict, or null.
- TELL: a verdict, or null. The response is the receiving rank's report.
- PING: an empty body. The response is empty too.
- For any other kind, a handler that was passed to the server returns the response.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .finding import Finding, failed
from .messages import HEADER, Stream, header, parse_header
from .reach import cause_of, connect

PATIENCE = 2.0
"""Seconds to wait for a response on an open connection."""
_HELLO = 1 << 16
"""Maximum length of a rank's identity in bytes."""
_LONGEST = 30.0
"""Seconds that a connection may remain open without a complete message. The server then closes it."""
PRIVILEGED_PORTS = 1024
"""Number of ports, beginning with 0, on which only privileged processes may listen by default."""


@dataclass(frozen=True)
class Hello:
    """The identity of a rank.

    `instance` is a random id that each process creates when it starts. `clock` is the rank's time in seconds
    since 1970.
    """

    run: str
    rank: int
    nodes: int
    host: str
    instance: str
    clock: float = 0.0
    bound: str = ""
    """The address on which gloo or NCCL would listen, or "" if unknown. `why` gives the reason."""
    why: str = ""
    published: str = ""
    """This host's name, if torchrun may pass it to all workers as MASTER_ADDR, otherwise ""."""


@dataclass(frozen=True)
class Greeted:
    """The identity of the rank that responded, or the cause if there was no valid response.

    `offset` is the responding rank's clock minus the local clock, in seconds, with an error of at most half
    of `rtt` (Cristian's method).
    """

    hello: Hello | None
    cause: str | None = None
    text: str = ""
    rtt: float = 0.0
    offset: float = 0.0


def greet(stream: Stream, own: Hello, seconds: float = PATIENCE) -> Greeted:
    """Send this rank's identity, and return the responding rank's identity. Keep the connection open."""
    began, at = time.monotonic(), time.time()
    try:
        stream.send(greeting(own), seconds)
        _, body = stream.receive(began + seconds)
        rtt = time.monotonic() - began
        there = Hello(**json.loads(body))
    except TimeoutError:
        return Greeted(None, "peer.silent", f"accepts the connection, but sends nothing for {seconds:.0f} s")
    except ConnectionError as error:
        return Greeted(None, "tcp.reset", f"closes the connection immediately ({error.strerror or error})")
    except OSError as error:
        return Greeted(None, cause_of(error), error.strerror or str(error))
    except (ValueError, TypeError, RecursionError) as error:
        return Greeted(None, "peer.not_netcheck", f"responds, but is not netcheck: {error}")
    return Greeted(there, rtt=rtt, offset=there.clock - at - rtt / 2)


def greeting(own: Hello) -> bytes:
    """Return the message that sends this rank's identity."""
    body = _hello(own)
    return header(b"HELO", len(body)) + body


@dataclass
class _Incoming:
    """A client's connection to the server, and the data received since the last complete message."""

    connection: socket.socket
    address: str
    since: float
    received: bytearray = field(default_factory=bytearray)
    filling: int = 0
    """Number of bytes of a FILL message that have not arrived yet. `length` is the size of its body in
    bytes."""
    length: int = 0


class Server:
    """A server that responds to greetings until it is closed. A `with` block closes it.

    `hello` is this rank's identity. The other parameters are callbacks: `on_report` receives another rank's
    report, and returns the verdict or null as JSON. `report` returns this rank's report. `on_verdict`
    receives a verdict. `handlers` maps each other kind of message to a function that gets the connection and
    the body, and returns JSON-compatible data.
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
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and wait up to PATIENCE seconds until all responses have been sent."""
        self._closed = True
        ends = time.monotonic() + PATIENCE
        # Without the shutdown, a thread that is waiting for a connection keeps the port in use.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        self._listening.close()
        while self._answering and time.monotonic() < ends:
            time.sleep(0.01)

    def _run(self) -> None:
        """Accept connections and respond to HELO and FILL messages until the server is closed.

        If a message of any other kind arrives, its connection gets its own thread. So does every open
        connection when the server closes.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ)
            swept = time.monotonic()
            while not self._closed:
                for key, _ in selector.select(1.0):
                    if key.data is None:
                        self._accept(selector)
                    elif not self._read(key.data):
                        selector.unregister(key.fileobj)
                if time.monotonic() - swept > 1.0:
                    swept = time.monotonic()
                    for key in list(selector.get_map().values()):
                        if key.data is not None and swept - key.data.since > _LONGEST:
                            selector.unregister(key.fileobj)
                            key.data.connection.close()
            for key in selector.get_map().values():
                if key.data is not None:
                    self._in_thread(key.data)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        """Accept all connections that are waiting."""
        while not self._closed:
            try:
                connection, address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError:
                # accept() fails, for example, if the process has too many open files.
                time.sleep(0.05)
                return
            connection.setblocking(False)
            incoming = _Incoming(connection, address[0].replace("::ffff:", ""), time.monotonic())
            selector.register(connection, selectors.EVENT_READ, incoming)

    def _read(self, incoming: _Incoming) -> bool:
        """Read from a connection. Return whether the server's main thread continues to serve it."""
        try:
            data = incoming.connection.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            return self._received(incoming, data)
        except (BlockingIOError, InterruptedError):
            return True
        except (OSError, ValueError, TypeError, RuntimeError):
            # The client is gone or is not netcheck, or no thread can be started. No response is sent.
            incoming.connection.close()
            return False

    def _received(self, incoming: _Incoming, data: bytes) -> bool:
        """Respond to each complete HELO and FILL message. Return False if the message is of another kind."""
        filled = min(incoming.filling, len(data))
        incoming.filling -= filled
        if filled and not incoming.filling:
            self._respond(incoming, b"FILL", str(incoming.length).encode())
        received = incoming.received
        received += data[filled:]
        while not incoming.filling and (parsed := parse_header(received)) is not None:
            kind, length = parsed
            end = min(len(received), HEADER.size + length)
            if kind == b"FILL":
                incoming.filling, incoming.length = HEADER.size + length - end, length
                if not incoming.filling:
                    self._respond(incoming, kind, str(length).encode())
            elif kind != b"HELO":
                self._in_thread(incoming)
                return False
            elif length > _HELLO:
                raise ValueError(f"a greeting can have at most {_HELLO} bytes; found {length}")
            elif end < HEADER.size + length:
                return True
            else:
                identity = self._greeted(bytes(received[HEADER.size : end]), incoming.address)
                self._respond(incoming, kind, identity)
            del received[:end]
        return True

    def _respond(self, incoming: _Incoming, kind: bytes, answer: bytes) -> None:
        message = header(kind, len(answer)) + answer
        incoming.since = time.monotonic()
        if incoming.connection.send(message) < len(message):
            raise ConnectionResetError("the client does not read its responses")

    def _in_thread(self, incoming: _Incoming) -> None:
        """Serve a connection in a separate thread from now on."""
        threading.Thread(target=self._serve, args=(incoming,), daemon=True).start()

    def _serve(self, incoming: _Incoming) -> None:
        with incoming.connection as connection:
            try:
                stream, filling = Stream(connection, bytes(incoming.received)), incoming.filling
                while True:
                    ends = time.monotonic() + _LONGEST
                    kind, length = (b"FILL", incoming.length) if filling else stream.receive_header(ends)
                    if kind == b"FILL":
                        stream.drain(filling or length, ends)
                        filling, body = 0, str(length).encode()
                    else:
                        body = stream.receive_body(length, ends)
                    with self._busy():
                        answer = self._answer(connection, kind, body, incoming.address)
                        stream.send(header(kind, len(answer)) + answer, _LONGEST)
            except (OSError, ValueError, TypeError, KeyError, RecursionError):
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
            return self._greeted(body, address)
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
            response = json.dumps(self._handlers[kind](connection, body)).encode()
            connection.setblocking(True)  # The handler may have set a timeout on the connection.
            return response
        raise ValueError(f"no such message: {kind!r}")

    def _greeted(self, body: bytes, address: str) -> bytes:
        """Store the identity in a greeting, and return this rank's identity."""
        other = Hello(**json.loads(body))
        self.greetings[other.instance] = other, address
        return _hello(self.hello)


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


def cannot_listen(error: OSError, port: int, master_port: int) -> Finding:
    """Return the finding about a port on which this rank cannot listen.

    If the rank must not use privileged ports, the training cannot use a privileged MASTER_PORT either.
    """
    if error.errno == errno.EACCES and master_port < PRIVILEGED_PORTS:
        text = f"this rank is not allowed to listen on MASTER_PORT={master_port} (user id {os.getuid()})"
        return failed("variables.master_port", text)
    return failed("port.taken", f"port {port} of this host: {os.strerror(error.errno or 0)}")


def exchange(address: str, port: int, kind: bytes, data: Any, seconds: float = PATIENCE) -> Any:
    """Send one message to a rank. Return its response, decoded from JSON, or None if there is none.

    If `data` is bytes, it is already encoded as JSON.
    """
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    # Small segments get through even where full-size packets are dropped.
    reached = connect(address, port, 1.0, segment=536)
    if reached.connection is None:
        return None
    with reached.connection as connection:
        try:
            return json.loads(Stream(connection).call(kind, body, seconds)[1])
        except (OSError, ValueError):
            return None
