"""Run a search's trials through the agents on all nodes. All groups in a round run at the same time."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .group_outcomes import Group
from .group_verdict import Result
from .json_lines import Line

GRACE = 15.0
"""Seconds that agents have after a trial's deadline to kill hung processes and respond."""


@dataclass(frozen=True)
class Settings:
    """The parameters that are the same in all trials of a search."""

    device: str
    local: int
    """Number of processes per node, one for each GPU."""
    bytes: int
    iterations: int
    deadline: float
    """Timeout in seconds within which a trial's processes must join. Their data exchange then has the same
    timeout."""

    def message(self) -> dict[str, Any]:
        """Return the settings as a message for an agent."""
        return dict(self.__dict__)


class Coordinator:
    """Accepts connections from the agents, and runs trials through them."""

    def __init__(self, nodes: int, port: int, settings: Settings) -> None:
        self._nodes, self._settings = nodes, settings
        self._server = socket.create_server(("", port), backlog=max(128, nodes))
        self._lines: dict[int, Line] = {}
        self._inbox: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self._joined = threading.Condition()
        self._lost_nodes: set[int] = set()
        self._trials = 0
        self.names: dict[int, str] = {}
        """Maps each node rank to its Kubernetes node name, or to the agent's host name if NODE_NAME is not
        set."""
        self.addresses: dict[int, str] = {}
        self.doubled: set[int] = set()
        """Node ranks that two agents claim, so that their results cannot be distinguished."""
        self.results: list[Result] = []
        self.rounds = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Return the port on which the coordinator is listening."""
        port: int = self._server.getsockname()[1]
        return port

    def gather(self, deadline: float) -> list[int]:
        """Wait for all agents. Return the node ranks that connected within `deadline` seconds."""
        with self._joined:
            self._joined.wait_for(lambda: len(self._lines) == self._nodes, deadline)
            return sorted(self._lines)

    def measure(self, groups: Sequence[Group]) -> list[Result]:
        """Test the groups at the same time, and return the results.

        This takes at most twice the settings' `deadline` plus GRACE seconds.
        """
        trials = {self._trials + place: tuple(group) for place, group in enumerate(groups)}
        self._trials += len(trials)
        responses: dict[int, dict[int, dict[str, Any]]] = {trial: {} for trial in trials}
        # `pending` contains (trial, node) for each node that has not responded yet. In each group, the first
        # node sends its port, and the other nodes start after that.
        pending = {
            (trial, group[0]) for trial, group in trials.items() if self._start(trial, group, 0, None, None)
        }
        deadline = time.monotonic() + 2 * self._settings.deadline + GRACE
        while pending:
            try:
                node, message = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if message.get("gone"):
                self._lost_nodes.add(node)
                pending = {(trial, other) for trial, other in pending if other != node}
                continue
            trial = message.get("trial", -1)
            if trial not in trials or node not in trials[trial]:
                continue  # Ignore a late response from an earlier round.
            if "port" in message:
                for place, other in enumerate(trials[trial][1:], 1):
                    if self._start(trial, trials[trial], place, self.addresses[node], message["port"]):
                        pending.add((trial, other))
            else:
                responses[trial][node] = message
                pending.discard((trial, node))
        results = [Result(group, responses[trial], self.rounds) for trial, group in trials.items()]
        self.rounds += 1
        self.results += results
        return results

    def end(self, verdict: str, accused: Mapping[int, str]) -> None:
        """Send the verdict to every agent, and stop listening."""
        for node, line in self._lines.items():
            line.send({"end": True, "verdict": verdict, "accused": accused.get(node)})
        self._server.close()

    def _start(self, trial: int, group: Group, place: int, host: str | None, port: int | None) -> bool:
        line = self._lines.get(group[place])
        message = {"trial": trial, "place": place, "count": len(group), "host": host, "port": port}
        if line is None or group[place] in self._lost_nodes:
            return False
        return line.send({**message, **self._settings.message()})

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._listen, args=(Line(connection),), daemon=True).start()

    def _listen(self, line: Line) -> None:
        """Register the agent at the other end of a connection, and put its messages into the inbox.

        If the agent's first message does not identify a node, or if the node already has an agent, close the
        connection instead.
        """
        messages = line.read()
        hello = next(messages, {})
        node = hello.get("node")
        if not isinstance(node, int) or not 0 <= node < self._nodes or hello.get("nodes") != self._nodes:
            line.close()
            return
        with self._joined:
            if node in self._lines:
                self.doubled.add(node)
                line.close()
                return
            self._lines[node] = line
            self.names[node] = str(hello.get("name"))
            self.addresses[node] = str(hello.get("address"))
            self._joined.notify_all()
        for message in messages:
            self._inbox.put((node, message))
        self._inbox.put((node, {"gone": True}))
