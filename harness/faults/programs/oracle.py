"""Judge whether the verdict on a generated program is right, without using the judges or the recorder.

The oracle reads the journals that the program's processes wrote before each call, the containers' exit codes,
and the tracker's database. PASS is right only if every number passed to `run.log` is in the run and in the
ground truth, every rank exited on its own with exit code 0, and all ranks belonged to one world.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.core import processes
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.evidence.schema.ground_truth import TruthRow
from harness.faults.programs.containers import Container
from harness.faults.programs.generator import Program
from harness.faults.programs.journal import Journal, read
from harness.faults.random.oracle import POINTS, Point, point

Word = Literal["right", "wrong PASS", "wrong FAIL", "wrong cause", "vague", "judge error"]
LEFT_OUT = ("bool", "decimal", "fraction", "complex", "array", "tensor", "list", "tuple", "set", "in ")
"""The prefixes of the kinds of values that the client may omit. If any other number is missing, it was
lost."""


@dataclass(frozen=True)
class Reason:
    """A reason why PASS would be wrong, with the prefixes of the causes that match it.

    `strong` means that the evidence suffices to name a cause, so UNKNOWN would be too vague.
    """

    text: str
    causes: tuple[str, ...]
    strong: bool = True


@dataclass(frozen=True)
class Decision:
    """The oracle's decision about a verdict, and the verdict that would be right."""

    word: Word
    right: str


@dataclass
class Account:
    """The oracle's findings about a program.

    If there are `reasons`, a PASS is wrong. If there are only `doubts`, either PASS or another verdict can be
    right.
    """

    program: Program
    journals: Sequence[Journal]
    containers: Sequence[Container]
    tracked: set[Point]
    recorded: set[Point]
    reasons: list[Reason] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._world()
        self._check_ends()
        self._values()
        self._doubts()

    @property
    def _ranks(self) -> list[Journal]:
        return [journal for journal in self.journals if journal.role.startswith("rank")]

    def _world(self) -> None:
        if self.program.launched.alone:
            self.reasons.append(Reason("each pod formed a separate world", ("rendezvous.", "variables.")))
            start_count = len({journal.host for journal in self._ranks})
            if start_count < len(self.containers):
                text = f"{len(self.containers) - start_count} pods ended before their program began"
                self.reasons.append(Reason(text, ("rank.",)))
            return
        present = {journal.rank for journal in self._ranks}
        if missing := sorted(set(range(self.program.ranks)) - present):
            causes = ("rank.", "rendezvous.", "unification.rank_silent")
            self.reasons.append(Reason(f"ranks {missing} never started their program", causes))

    def _check_ends(self) -> None:
        last: dict[tuple[str, int], Journal] = {}
        for journal in self._ranks:
            last[journal.host, journal.pid] = journal  # A program started by os.exec keeps the process id.
        for journal in last.values():
            end = journal.end
            if end is None:
                self.reasons.append(
                    Reason(f"rank {journal.rank} did not end by itself", ("rank.", "rendezvous."))
                )
            elif end["code"] != 0:
                text = f"rank {journal.rank} ended with exit code {end['code']} ({end['how']})"
                self.reasons.append(Reason(text, ("rank.",)))
            elif end["how"] == "os._exit 0":
                self.doubts.append(f"rank {journal.rank} ended through os._exit(0)")
        for container in self.containers:
            if container.timed_out:
                causes = ("rank.", "rendezvous.", "run.timed_out", "unification.")
                self.reasons.append(Reason(f"pod {container.index} did not end in time", causes))
            elif container.exit_code:
                text = f"pod {container.index} ended with exit code {container.exit_code}"
                self.reasons.append(Reason(text, ("rank.", "rendezvous.")))

    def _values(self) -> None:
        lost_points: dict[str, list[str]] = defaultdict(list)
        logged: dict[tuple[str, int | str], dict[float | None, Journal]] = defaultdict(dict)
        for journal in self.journals:
            # If no call has a step, the client numbers the calls. The numbering starts at the same value in
            # all processes.
            client_counts = not self.program.worker.threads and all(
                call["step"] is None for call in journal.calls
            )
            for index, call in enumerate(journal.calls):
                step = f"{index}, counted by the client," if client_counts else call["step"]
                for name, kind, number in call["leaves"]:
                    # The client accepts a single None, but sometimes rejects several of them.
                    if number is None:
                        self.doubts.append(f"{kind} is no number")
                        continue
                    at = point(name, call["step"] or 0, float(number))
                    if step is not None:
                        logged[name, step].setdefault(at[2], journal)
                    missing = self._missing_number(at, call["step"] is None)
                    if missing:
                        of_role = "" if journal.role.startswith("rank") else f" of a {journal.role}"
                        may_be_left_out = (
                            kind.startswith(LEFT_OUT)
                            or kind == "numpy bool"
                            or call["container"] == "only items"
                        )
                        may_be_left_out = may_be_left_out or call["step_kind"] == "negative"
                        group = f"{missing}{of_role}" + (
                            f", which the client may leave out ({kind})" if may_be_left_out else ""
                        )
                        lost_points[group].append(f"{name}={number} at step {call['step']}")
        for group, points in lost_points.items():
            causes = (
                ("unification.", "tracker.")
                if "leave out" in group
                else ("unification.", "rank.", "tracker.")
            )
            is_strong = group.startswith("not in the run") and " of a " not in group
            self.reasons.append(
                Reason(f"{len(points)} numbers {group}, such as {points[0]}", causes, is_strong)
            )
        for (name, step), values in logged.items():
            ranks = {journal.rank for journal in values.values()}
            if len(values) > 1 and len(ranks) > 1:
                text = f"ranks {sorted(map(str, ranks))} logged {name} at step {step} with several values"
                self.reasons.append(Reason(text, ("unification.",)))
            elif len(values) > 1:
                self.doubts.append(f"{name} was logged at step {step} with several values")

    def _missing_number(self, at: Point, any_step: bool) -> str:
        """Return a description of where a logged number is missing, or "" if it is not missing."""
        names = {at[0], at[0].replace("/", ".")}
        for place, points in (("the run", self.tracked), ("the ground truth", self.recorded)):
            is_present = any((name, at[1], at[2]) in points for name in names)
            if any_step:
                is_present = any(name in names and value == at[2] for name, _, value in points)
            if not is_present:
                return f"not in {place}"
        return ""

    def _doubts(self) -> None:
        worker = self.program.worker
        if worker.second:
            self.doubts.append(f"a second {worker.second}")
        children = {journal.role for journal in self.journals if not journal.role.startswith("rank")}
        if children:
            self.doubts.append("another process logged, too")

    def judge(self, verdict: Verdict) -> Decision:
        """Judge whether the verdict on the program is right."""
        right = "; ".join(reason.text for reason in self.reasons) or "PASS"
        errors = [check for check in verdict.checks if check.cause == "run.judge_error"]
        if errors:
            return Decision("judge error", errors[0].explanation)
        if verdict.verdict == "PASS":
            return Decision("wrong PASS" if self.reasons else "right", right)
        if not self.reasons:
            if any("os._exit" in doubt for doubt in self.doubts) and verdict.verdict == "UNKNOWN":
                return Decision("vague", "rank.exited_early, or PASS because everything is there")
            return Decision("right" if self.doubts else "wrong FAIL", right)
        causes = tuple(cause for reason in self.reasons for cause in reason.causes)
        if any("os._exit" in doubt for doubt in self.doubts):
            causes += ("rank.exited_early",)
        if verdict.verdict == "UNKNOWN":
            return Decision("vague" if any(reason.strong for reason in self.reasons) else "right", right)
        is_named = bool(verdict.cause) and str(verdict.cause).startswith(causes)
        return Decision(
            "right"
            if is_named or (self.doubts and str(verdict.cause).startswith("unification."))
            else "wrong cause",
            right,
        )


def account(
    program: Program, bundle: Path, journals: Path, containers: Sequence[Container], tracked: set[Point]
) -> Account:
    """Return the oracle's findings. `tracked` contains the program's points in the tracker."""
    lines = [line for path in sorted(journals.rglob("*.jsonl")) for line in path.read_text().splitlines()]
    journal_list = read(lines)
    return Account(program, journal_list, containers, tracked, set(_truth_points(Bundle.open(bundle))))


def tracked(database: Path, project: str, run_id: str) -> set[Point]:
    """Return a run's points, read from the tracker's database file."""
    command = [sys.executable, "-c", POINTS, str(database), project, run_id]
    result = processes.run(command, timeout=60)
    return {point(*json.loads(line)) for line in result.stdout.splitlines()}


def _truth_points(bundle: Bundle) -> Iterator[Point]:
    """Yield the points in all of a bundle's ground-truth files."""
    for path in sorted((bundle.path / "truth").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record.get("kind") == "row":
                row = TruthRow.model_validate(record)
                yield point(row.metric, row.step, row.value)
