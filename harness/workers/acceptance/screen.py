"""Find the bad nodes of a cluster: run at the same time in a pod of each node.

    python -m acceptance.screen --nodes N --node-rank K --master HOST [--local GPUS]

The pod of node rank 0 coordinates. It has groups of nodes tested, several at a time, as the search asks
(search.py); up to 16 nodes, each pair. A trial is a process group of its own, so a hang or a crash ends that
trial alone. The report is REPORT_DIR/screen/ddp_tests_result.json of that pod.

Exit code of rank 0: 0 all passed, 1 a node, a link or a boundary failed, 2 something is unknown. Of another
pod: 1 where its own node is accused, 2 where it heard no verdict, else 0.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import agent, circle
from .check import Check, Verdict
from .conclusion import Conclusion
from .coordinator import Coordinator, Settings
from .emit import Emitter
from .outcome import CPU_SHARE, FIGURES, SHARE, Result, judge, reference
from .search import ALL_PAIRS, search
from .tested import Group, Outcome

PORT = 29555
"""Beside torchrun's 29500."""


class Screening:
    """Answers a search with trials."""

    def __init__(self, coordinator: Coordinator, limit: float | None, share: float) -> None:
        self._coordinator, self._limit, self._share = coordinator, limit, share
        self._ready: dict[Group, Result] = {}
        """Results of pairs that were tested before the search asks for them."""
        self._good: set[int] = set()
        self.judged: dict[Group, tuple[Outcome, str]] = {}
        self.pairs: dict[Group, Result] = {}

    def run(self, nodes: Sequence[int], repeats: int, bound: int | None) -> Conclusion:
        """Search among the nodes. Up to 16 of them, all pairs come first: the median needs their figures."""
        if len(nodes) <= ALL_PAIRS:
            for places in circle.rounds(len(nodes)):
                for result in self._coordinator.measure([(nodes[a], nodes[b]) for a, b in places]):
                    self._ready[result.group] = self.pairs[result.group] = result
        searching = search(nodes, bound=bound, repeats=repeats)
        try:
            groups = next(searching)
            while True:
                groups = searching.send(self._answer(groups))
        except StopIteration as end:
            conclusion: Conclusion = end.value
        return conclusion

    def outcome(self, result: Result) -> tuple[Outcome, str]:
        """Judge a result against the limit, and against all groups of its size so far."""
        usual = reference(self._coordinator.results, len(result.group))
        return judge(result, usual, limit=self._limit, share=self._share)

    def _answer(self, groups: list[Group]) -> list[Outcome]:
        held = {group: self._ready.pop(group) for group in groups if group in self._ready}
        asked = [group for group in groups if group not in held]
        if asked:
            made = self._coordinator.measure([*asked, *self._controls(asked)])
            held |= {result.group: result for result in made if result.group in asked}
        outcomes: list[Outcome] = []
        for group in groups:
            outcome, reason = self.judged[group] = self.outcome(held[group])
            if outcome == "good":
                self._good |= {*group}
            print(f"[DDP] {outcome} {_named(group)}: {reason}", flush=True)
            outcomes.append(outcome)
        return outcomes

    def _controls(self, asked: Sequence[Group]) -> list[Group]:
        """Return groups of nodes that passed and rest in this round: who is slow shows beside them alone."""
        resting = sorted(self._good - {node for group in asked for node in group})
        controls: list[Group] = []
        for size in sorted({len(group) for group in asked}):
            missing = FIGURES - len({r.group for r in self._coordinator.results if len(r.group) == size})
            missing -= sum(len(group) == size for group in asked)
            while missing > 0 and len(resting) >= size:
                controls.append(tuple(resting[:size]))
                resting, missing = resting[size:], missing - 1
        return controls


def checks(
    found: Conclusion, screening: Screening, nodes: Sequence[int], coordinator: Coordinator
) -> list[Check]:
    """Return what the search proved as checks."""
    names = coordinator.names
    said: list[Check] = []

    def say(name: str, verdict: Verdict, text: str, cause: str | None, about: Sequence[int]) -> None:
        said.append(
            Check(id=f"screen.{name}", tag="DDP", verdict=verdict, text=text, cause=cause, ranks=tuple(about))
        )

    for one in found.accused:
        why = [screening.judged.get(tuple(sorted((one.node, other))), ("", ""))[1] for other in one.witnesses]
        seen = "; ".join(dict.fromkeys(filter(None, why)))
        say("node", "FAIL", f"{names[one.node]} {one.reason} ({seen})", "node.bad", [one.node])
    for link in found.links:
        between = f"{names[link.a]} and {names[link.b]}"
        say("link", "FAIL", f"what is between {between} {link.reason}", "link.bad", [link.a, link.b])
    for edge in found.boundaries:
        text = (
            f"{_named(edge.one)} pass, and {_named(edge.other)} pass, and not with each other: {edge.reason}"
        )
        say("boundary", "FAIL", text, "link.boundary", edge.other)
    for open_ in found.unknown:
        say("unknown", "UNKNOWN", f"{_named(open_.nodes)}: {open_.reason}", None, open_.nodes)
    if found.healthy:
        text = f"{len(nodes)} nodes pass, in groups and all together"
        say("search", "PASS", f"{text}: {found.tests} tests in {found.rounds} rounds", None, ())
    return said


def bandwidth(coordinator: Coordinator, limit: float | None, share: float) -> Check:
    """Say what the groups were compared with. Figures that nothing was compared with are no pass."""
    figures = [result for result in coordinator.results if result.busbw is not None]
    text = "no group gave a figure"
    if figures:
        slowest = min(figures, key=lambda result: result.busbw or 0.0)
        text = f"the slowest of {len(figures)} groups, {_named(slowest.group)}, gave {slowest.busbw:.3f} GB/s"
    compared = limit is not None or any(reference(figures, len(result.group)) for result in figures)
    if compared and limit is None:
        text += f"; a group is slow below {share:.2f} of the median of its size"
    elif figures and not compared:
        text += f"; there is no limit (--limit), and fewer than {FIGURES} groups of a size to compare"
    return Check(
        id="screen.bandwidth",
        tag="DDP",
        verdict="PASS" if figures and compared else "UNKNOWN",
        text=text,
        measured=min((result.busbw or 0.0 for result in figures), default=None),
        unit="GB/s",
        limit=limit,
        limit_kind=None if limit is None else "limit",
        limit_source=None if limit is None else "--limit",
    )


def rows(screening: Screening) -> list[dict[str, Any]]:
    """Return the pairs in the shape of PairRow."""
    verdicts: dict[Outcome, Verdict] = {"good": "PASS", "bad": "FAIL", "unknown": "UNKNOWN"}
    made = []
    for (a, b), result in sorted(screening.pairs.items()):
        outcome, reason = screening.outcome(result)
        made.append(
            {
                "a": a,
                "b": b,
                "busbw": result.busbw,
                "verdict": verdicts[outcome],
                "text": reason,
                "round": result.number,
            }
        )
    return made


def coordinate(options: argparse.Namespace, emitter: Emitter) -> int:
    """Search from the pod of node rank 0, and write the report."""
    settings = Settings(
        options.device, options.local, options.bytes, options.iterations, options.trial_deadline
    )
    coordinator = Coordinator(options.nodes, options.port, settings)
    own = threading.Thread(target=_join, args=(options,), daemon=True)
    own.start()
    nodes = coordinator.gather(options.deadline)
    missing = [node for node in range(options.nodes) if node not in nodes]
    text = f"{len(nodes)} of {options.nodes} agents came"
    text += f"; none from {_named(missing)} in {options.deadline:.0f} s" if missing else ""
    emitter.say(
        Check(
            id="screen.nodes",
            tag="DDP",
            verdict="UNKNOWN" if missing or coordinator.doubled else "PASS",
            text=text
            + (f"; twice from {_named(sorted(coordinator.doubled))}" if coordinator.doubled else ""),
            ranks=tuple(missing) or tuple(sorted(coordinator.doubled)),
        )
    )
    screening = Screening(coordinator, options.limit, options.share)
    found = screening.run(nodes, options.repeats, options.bound)
    for check in checks(found, screening, nodes, coordinator):
        emitter.say(check)
    emitter.say(bandwidth(coordinator, options.limit, options.share))
    code = emitter.finish(
        nodes=options.nodes,
        ranks=options.nodes * options.local,
        hosts=coordinator.names,
        pairs=rows(screening),
    )
    coordinator.end(
        {0: "PASS", 1: "FAIL"}.get(code, "UNKNOWN"), {one.node: one.reason for one in found.accused}
    )
    own.join(timeout=5)
    return code


def main(arguments: list[str] | None = None) -> int:
    """Take part, and return the exit code."""
    made = parser()
    options = made.parse_args(arguments)
    if not 0 <= options.node_rank < options.nodes:
        made.error(f"--node-rank is from 0 to {options.nodes - 1}")
    if options.share is None:
        options.share = SHARE if options.device == "cuda" else CPU_SHARE
    if options.node_rank == 0:
        directory = options.report_dir / "screen" if options.report_dir else None
        return coordinate(options, Emitter("ddp", options.device, "full", directory))
    return _join(options)


def parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    made = argparse.ArgumentParser(
        "python -m acceptance.screen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--nodes", type=int, default=os.environ.get("NNODES"), required="NNODES" not in os.environ
    )
    made.add_argument(
        "--node-rank", type=int, default=os.environ.get("NODE_RANK"), required="NODE_RANK" not in os.environ
    )
    made.add_argument(
        "--master", default=os.environ.get("MASTER_ADDR", "127.0.0.1"), help="host of node rank 0"
    )
    made.add_argument("--port", type=int, default=PORT, help=f"of the coordinator (default: {PORT})")
    made.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    made.add_argument("--local", type=int, default=1, metavar="N", help="processes, or GPUs, of each node")
    made.add_argument("--bytes", type=int, default=1 << 22, help="of the all-reduce")
    made.add_argument("--iterations", type=int, default=5)
    made.add_argument(
        "--deadline", type=float, default=300, metavar="S", help="seconds for all agents to come"
    )
    made.add_argument("--trial-deadline", type=float, default=120, metavar="S", help="seconds of one trial")
    made.add_argument("--limit", type=float, metavar="GB/S", help="least bus bandwidth of any group")
    made.add_argument(
        "--share",
        type=float,
        help=f"of the median below which a group is slow (default: {SHARE}; on CPUs {CPU_SHARE})",
    )
    made.add_argument(
        "--repeats", type=int, default=1, help="tests that stand for one, where faults come and go"
    )
    made.add_argument("--bound", type=int, help="how many nodes may be bad (default: a quarter)")
    made.add_argument("--report-dir", type=Path)
    return made


def _join(options: argparse.Namespace) -> int:
    """Serve as this node's agent until the search has ended."""
    line = agent.connect(options.master, options.port, options.deadline)
    ended = agent.serve(line, options.node_rank, options.nodes) if line else None
    if options.node_rank == 0:
        return 0
    if ended is None:
        print(f"[DDP] UNKNOWN screen: no verdict from {options.master}:{options.port}", flush=True)
        return 2
    accused = ended.get("accused")
    own = f"FAIL screen.node: this node {accused}" if accused else "this node is not accused"
    print(f"[DDP] {own}", flush=True)
    print(f"[RESULT] {ended.get('verdict')} for all nodes together", flush=True)
    return 1 if accused else 0


def _named(nodes: Sequence[int]) -> str:
    """Return nodes for people: their numbers, with runs as first–last."""
    runs: list[list[int]] = []
    for node in sorted(nodes):
        if runs and node == runs[-1][-1] + 1:
            runs[-1].append(node)
        else:
            runs.append([node])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return ("node " if len(nodes) == 1 else "nodes ") + ", ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
