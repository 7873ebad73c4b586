"""Show a running launch on a terminal: its stages and their durations, a table of ranks, and what the launch
is waiting for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.live import Live as Screen
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from harness.cli.options import progress
from harness.core import terminal_text
from harness.core.progress import Progress
from harness.evidence import worlds
from harness.evidence.io.harness_log_lines import is_own
from harness.evidence.io.writer import ProgressListener
from harness.evidence.kubernetes.objects import COMPLETION_INDEX
from harness.evidence.kubernetes.workload_pods import group_index
from harness.evidence.schema.bundle import Manifest, Observation
from harness.evidence.schema.processes import ProcessLine
from harness.report.terminal.console import Console
from harness.workers.ground_truth import truth_frames

PER_SECOND = 5
LOSS = "loss"
MAX_LINE = 4000
"""The maximum number of characters that are read from the end of a log line."""


@dataclass
class _Pod:
    """The latest state of the pod that has a given node index."""

    name: str = ""
    uid: str = ""
    node: str = ""
    phase: str = ""
    last: str = ""


@dataclass
class _Rank:
    """A rank's progress, read from its ground-truth frames."""

    step: int = -1
    loss: float | None = None
    rows: int = 0


@dataclass
class Live:
    """A live view that is both a progress function and an evidence listener: `with Live(console) as live:
    run(…, live, live)`. Progress lines stay on the screen. The live part is shown below them, and disappears
    when the block ends.
    """

    console: Console
    _start: float = field(default_factory=time.monotonic)
    _stage_since: float = 0.0
    _manifest: Manifest | None = None
    _pods: dict[int, _Pod] = field(default_factory=dict)
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _events: list[ProcessLine] = field(default_factory=list)
    _recorded: dict[str, list[int]] | None = None
    """Maps the UID or name of each pod to its ranks, computed from the recorded processes. None means that
    the mapping must be computed again."""
    _awaited: str = ""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._spinner = Spinner("dots")
        self._screen = Screen(
            get_renderable=self.render, console=self.console, refresh_per_second=PER_SECOND, transient=True
        )

    def __enter__(self) -> Live:
        self._screen.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._screen.stop()

    def __call__(self, text: str) -> None:
        with self._lock:
            self._awaited = text
        self.console.print(Text(f"[{time.monotonic() - self._start:6.1f}s] {text}", style="dim"))

    # -- methods that the evidence writer calls --------------------------------------------------------
    def manifest(self, manifest: Manifest) -> None:
        with self._lock:
            if self._manifest is None or self._manifest.in_stage != manifest.in_stage:
                self._stage_since = time.monotonic()
            self._manifest = manifest

    def observed(self, kind: str, observation: Observation) -> None:
        if kind != "pod":
            return
        metadata, status = observation.object["metadata"], observation.object.get("status") or {}
        index = self._index(observation.object)
        if index is None:
            return
        with self._lock:
            pod = self._pods.setdefault(index, _Pod())
            pod.name, pod.uid = metadata["name"], metadata["uid"]
            pod.node = observation.object["spec"].get("nodeName", "")
            pod.phase = _phase(status) if observation.type != "DELETED" else "deleted"

    def _index(self, pod: dict[str, Any]) -> int | None:
        """Return a pod's node index, or None if the pod does not run ranks."""
        launch = self._manifest.launch if self._manifest else None
        if launch is not None and launch.attached:
            return group_index(launch.pods, pod)
        text = str((pod["metadata"].get("annotations") or {}).get(COMPLETION_INDEX))
        return int(text) if text.isdecimal() else None

    def processed(self, event: ProcessLine) -> None:
        with self._lock:
            self._events.append(event)
            self._recorded = None

    def logged(self, pod: str, text: str) -> None:
        with self._lock:
            own_pod = next((p for p in self._pods.values() if p.name == pod), None)
            for line in text.split("\n"):
                if is_own(line):
                    self._frame(line)
                elif own_pod is not None:
                    rows = terminal_text.rows(line.partition(" ")[2][-MAX_LINE:])
                    texts = [row.text.strip() for row in rows if row.text.strip()]
                    own_pod.last = texts[-1] if texts else own_pod.last

    def _frame(self, line: str) -> None:
        if self._manifest is None:
            return
        try:
            for frame in truth_frames.decode(self._manifest.nonce, [line]):
                if frame["k"] != "rows":
                    continue
                rank = self._ranks.setdefault(int(frame["r"]), _Rank())
                for metric, step, value, _ in frame["rows"]:
                    rank.rows += 1
                    rank.step = max(rank.step, int(step))
                    if LOSS in metric:
                        rank.loss = truth_frames.decode_value(value)
        except (ValueError, KeyError, TypeError):  # Malformed frames are not shown. The judges report them.
            return

    # -- methods that render the view ------------------------------------------------------------------
    def render(self) -> RenderableType:
        """Return the current state of the launch as a rich renderable."""
        with self._lock:
            if self._manifest is None:
                return self._spinner
            parts: list[RenderableType] = [Text(), self._stages()]
            if self._pods:
                parts.append(self._table())
            return Group(*parts)

    def _stages(self) -> RenderableType:
        assert self._manifest is not None
        finished = Columns(
            Text.assemble(
                ("✓ ", "green") if stage.ok else ("✗ ", "red"), (f"{stage.name} {stage.seconds:.1f}s", "dim")
            )
            for stage in self._manifest.stages
        )
        now = time.monotonic()
        stage_name = self._manifest.in_stage or "between stages"
        self._spinner.update(
            text=Text.assemble(
                (f"{stage_name} {now - self._stage_since:.0f}s", "bold"),
                f"  of {now - self._start:.0f}s  ",
                (self._awaited, "dim"),
            )
        )
        return Group(finished, self._spinner)

    def _numbers(self, index: int) -> list[int]:
        """Return the ranks on a node, from the node's process records or, if there are none, from the order
        of the nodes. If the rank expected on this node is in another node's records, -1 (unknown) takes its
        place."""
        if self._recorded is None:
            pods = worlds.pods(enumerate(self._events, 1))
            self._recorded = {
                key: sorted(life.rank for life in pod.lives if life.by) for key, pod in pods.items()
            }
        pod = self._pods[index]
        if ranks := self._recorded.get(pod.uid) or self._recorded.get(pod.name):
            return ranks
        expected = self._manifest.expected if self._manifest else None
        per_node = max(1, expected.ranks // expected.num_nodes) if expected else 1
        numbered = {rank for ranks in self._recorded.values() for rank in ranks}
        ordered = range(index * per_node, (index + 1) * per_node)
        return [-1 if rank in numbered else rank for rank in ordered]

    def _table(self) -> Table:
        assert self._manifest is not None
        table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
        for name in ("rank", "node", "pod", "step", "loss", "rows"):
            table.add_column(name, no_wrap=True, justify="right" if name in ("step", "rows") else "left")
        table.add_column("last line", no_wrap=True, overflow="ellipsis", ratio=1)
        for index in sorted(self._pods):
            pod = self._pods[index]
            for local, number in enumerate(self._numbers(index)):
                rank = self._ranks.get(number, _Rank())
                table.add_row(
                    str(number) if number >= 0 else "?",
                    pod.node,
                    Text(pod.phase, style=_STYLE.get(pod.phase, "yellow")),
                    str(rank.step) if rank.step >= 0 else "",
                    "" if rank.loss is None else f"{rank.loss:.4g}",
                    str(rank.rows or ""),
                    Text(pod.last if local == 0 else "", style="dim"),
                )
        return table


@contextmanager
def watching(quiet: bool) -> Iterator[tuple[Progress, ProgressListener | None]]:
    """Yield a progress function and an evidence listener.

    On a terminal, both are a live view. Otherwise, there is no listener. Progress is then printed line by
    line, or not at all if `quiet` is true.
    """
    console = Console(stderr=True)
    if not quiet and console.is_terminal and not console.is_dumb_terminal:
        with Live(console) as live:
            yield live, live
    else:
        yield progress(quiet), None


_STYLE = {"Running": "cyan", "Succeeded": "green", "Failed": "red", "deleted": "red"}


def _phase(status: dict[str, object]) -> str:
    """Given a pod's status, return the reason why one of the pod's containers is waiting, or else the pod's
    phase."""
    statuses = status.get("containerStatuses")
    for container in statuses if isinstance(statuses, list) else []:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return str(waiting["reason"])
    return str(status.get("phase", ""))
