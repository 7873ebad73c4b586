"""Run the agent on one node.

For each trial, it starts this node's processes when the coordinator requests them. Each trial has its own
processes. If they hang or crash, the agent kills them and keeps running.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from typing import Any

from .json_lines import Line

CONNECT_PAUSE = 0.5


def connect(host: str, port: int, deadline: float) -> Line | None:
    """Return a connection to the coordinator, or None if none is established within `deadline` seconds."""
    give_up_at = time.monotonic() + deadline
    while time.monotonic() < give_up_at:
        try:
            return Line(socket.create_connection((host, port), timeout=5))
        except OSError:  # The coordinator may not have a DNS record yet, or may not be listening yet.
            time.sleep(CONNECT_PAUSE)
    return None


def serve(line: Line, node: int, nodes: int) -> dict[str, Any] | None:
    """Run trials until the coordinator ends the search.

    Return the coordinator's final message. If the connection closes before this message, return None.
    """
    name = os.environ.get("NODE_NAME") or socket.gethostname()
    line.send({"node": node, "nodes": nodes, "name": name, "address": line.own})
    for message in line.read():
        if message.get("end"):
            return message
        threading.Thread(target=_serve_trial, args=(line, message), daemon=True).start()
    return None


def _serve_trial(line: Line, message: dict[str, Any]) -> None:
    try:
        result = Trial(line, message).run()
    except Exception as error:
        # Report the failure, because the coordinator must know that the test did not take place.
        result = {"state": "unknown", "text": f"the agent failed: {error!r}"}
    line.send({"trial": message.get("trial"), **result})


class Trial:
    """This node's part of one trial. It starts the node's processes and collects their results."""

    def __init__(self, line: Line, message: dict[str, Any]) -> None:
        self._line, self._message = line, message
        self._deadline = time.monotonic() + message["deadline"]

    def run(self) -> dict[str, Any]:
        """Run the trial.

        Return its state (ok, wrong, hung or died) and its measurements, if there are any.
        """
        local = self._message["local"]
        host, port = self._message.get("host"), self._message.get("port")
        processes: list[_Process] = []
        try:
            if port is None:
                processes.append(_Process(self._command(0, "", 0)))
                host = self._line.own
                port = processes[0].port(self._deadline)
                if port is None:
                    return processes[0].result(self._deadline, self._message["deadline"])
                self._line.send({"trial": self._message["trial"], "port": port})
            for number in range(len(processes), local):
                processes.append(_Process(self._command(number, str(host), int(port))))
            return _worst(
                [process.result(self._deadline, self._message["deadline"]) for process in processes]
            )
        finally:
            for process in processes:
                process.kill()

    def _command(self, number: int, host: str, port: int) -> list[str]:
        local = self._message["local"]
        values = {
            "rank": self._message["place"] * local + number,
            "ranks": self._message["count"] * local,
            "local": number,
            "host": host,
            "port": port,
            "device": self._message["device"],
            "bytes": self._message["bytes"],
            "iterations": self._message["iterations"],
            "timeout": 2 * self._message["deadline"],
        }
        package = __package__ or "acceptance"
        return [
            sys.executable,
            "-m",
            f"{package}.trial",
            *(f"--{key}={value}" for key, value in values.items()),
        ]


class _Process:
    """One process in a trial, and the JSON messages that it has printed."""

    def __init__(self, command: list[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill
        # The process gets its own session, so that killpg also kills its children.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self._messages: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._has_ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def port(self, deadline: float) -> int | None:
        """Return the store's port, or None if the process does not print the port by the time `deadline`."""
        port: int | None = self._wait("port", deadline)
        return port

    def result(self, deadline: float, seconds: float) -> dict[str, Any]:
        """Wait for the process's result, and return it.

        The process must join its process group by the monotonic time `deadline`. It must then report within
        `seconds` seconds.
        """
        join_message = self._wait("joined", deadline)
        wrong_count = self._wait("wrong", time.monotonic() + seconds) if join_message is not None else None
        if wrong_count is None:
            if not self._has_ended:
                failure = (
                    "exchanged no data" if join_message is not None else "did not join its process group"
                )
                return {"state": "hung", "text": f"{failure} in {seconds:.0f} s"}
            return {"state": "died", "text": f"exit code {self._process.wait()}: {self._last_error()}"}
        figures = next(message for message in self._messages if "wrong" in message)
        if wrong_count:
            return {**figures, "state": "wrong", "text": f"{wrong_count} elements were wrong"}
        return {**figures, "state": "ok", "text": ""}

    def kill(self) -> None:
        """Kill the process and its children.

        A process that has reported its result first gets 2 s to exit by itself. Rank 0 needs this time,
        because it hosts the store for the other ranks.
        """
        if self._wait("wrong", 0) is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=2)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout
        for text in self._process.stdout:
            try:
                message = json.loads(text)
            except ValueError:
                continue
            if isinstance(message, dict):
                with self._changed:
                    self._messages.append(message)
                    self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def _wait(self, key: str, deadline: float) -> Any:
        def find() -> Any:
            return next((message[key] for message in self._messages if key in message), None)

        with self._changed:
            self._changed.wait_for(
                lambda: find() is not None or self._has_ended, max(0.0, deadline - time.monotonic())
            )
            return find()

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it printed no error"


def _worst(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the worst result of this node's processes. If all results are ok, return the slowest one."""
    order = ("wrong", "died", "hung", "ok")
    return min(results, key=lambda result: (order.index(result["state"]), result.get("busbw", 0.0)))
