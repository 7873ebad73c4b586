"""Generate random training programs from grammar.yaml.

A program combines logged data, processes, shell code, a way to start the ranks and a way to end them.

A seed and a number always determine the same program, so a wrong verdict can be reproduced from this pair.
"""

from __future__ import annotations

import base64
import random
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from harness.core.errors import UsageError
from harness.faults.fault_file import Strict

GRAMMAR = Path(__file__).with_name("grammar.yaml")
SCRIPT = "/workspace/program.py"
STEPS = (2, 3, 4, 6, 12)
_USUAL = 0.5
"""The probability that a program logs only values of the usual types, float and int."""
_Name = TypeVar("_Name")


class Launch(Strict):
    """A way to start the ranks of a program. `alone` means that each of two pods forms its own world."""

    sh: str
    weight: float
    nodes: int
    ranks: int = 1
    """The number of ranks in each pod."""
    torch: bool = False
    alone: bool = False


class Wrap(Strict):
    """Shell code around the command that starts the ranks."""

    sh: str
    weight: float


class Grammar(Strict):
    """The content of grammar.yaml."""

    launches: dict[str, Launch]
    wraps: dict[str, Wrap]
    values: dict[str, float]
    tensors: dict[str, float]
    containers: dict[str, float]
    steps: dict[str, float]
    orders: dict[str, float]
    children: dict[str, float]
    seconds: dict[str, float]
    ends: dict[str, float]


class Call(Strict):
    """A call to `run.log`. An item of `data` is [name, kind of value] or [name, kind, content]."""

    data: list[Any]
    container: str
    step: int
    step_kind: str
    number: float


class Worker(Strict):
    """The behaviour of harness/workers/program.py, which is the same in all ranks except the victim."""

    calls: list[Call]
    threads: int
    shared_names: bool
    group: bool
    finish: bool
    patient: bool
    """Whether the program lets the client's upload process start before it calls `finish`."""
    victim: int
    child: str
    child_calls: list[Call]
    second: str
    second_differs: bool
    end: str
    early: bool
    """Whether the victim ends after half of its calls."""
    pause: float = 0.0
    """The number of seconds for which a rank sleeps after each call."""

    @property
    def about(self) -> list[str]:
        """Return phrases that describe the behaviour: the number of calls and each unusual property."""
        behaviour = self
        kinds = {entry[1] for call in [*behaviour.calls, *behaviour.child_calls] for entry in call.data}
        parts = {
            f"child: {behaviour.child}": behaviour.child,
            f"second {behaviour.second}": behaviour.second,
            f"{behaviour.threads} threads": behaviour.threads,
            "shared names": behaviour.shared_names,
            "a process group": behaviour.group,
            "no finish()": not behaviour.finish,
            "impatient": not behaviour.patient,
            "ends after half": behaviour.early,
            f"rank {behaviour.victim} ends by {behaviour.end}": behaviour.end != "return" or behaviour.early,
            f"data as {sorted({call.container for call in behaviour.calls} - {'dict'})}": any(
                call.container != "dict" for call in behaviour.calls
            ),
            f"steps {sorted({call.step_kind for call in behaviour.calls} - {'int'})}": any(
                call.step_kind != "int" for call in behaviour.calls
            ),
            f"values {sorted(kinds - {'float', 'int'})}": kinds - {"float", "int"},
        }
        return [f"{len(behaviour.calls)} calls", *(text for text, is_present in parts.items() if is_present)]

    @property
    def packed(self) -> str:
        """Return this behaviour as the argument for harness/workers/program.py."""
        return base64.b64encode(self.model_dump_json().encode()).decode()


class Program(Strict):
    """A randomly generated program."""

    seed: int
    number: int
    launch: str
    wrap: str
    has_torch: bool
    """Whether `import torch` works in the image. If it fails, the client starts five times as fast."""
    worker: Worker

    @property
    def name(self) -> str:
        return f"program-{self.seed}-{self.number:05}"

    @property
    def launched(self) -> Launch:
        return grammar().launches[self.launch]

    @property
    def ranks(self) -> int:
        """Return the number of ranks that the job must have."""
        return self.launched.nodes * self.launched.ranks

    @property
    def script(self) -> str:
        """Return the shell script that every pod runs."""
        launch = self.launched.sh.replace("CMD", f"{SCRIPT} {self.worker.packed}")
        wrap = grammar().wraps[self.wrap].sh
        if self.wrap in ("exec", "nohup") and not launch.startswith(("python3", "torchrun", "/usr")):
            # `exec` and `nohup` do not accept variable assignments before a program.
            launch = f"env {launch}"
        evaluation = f"python3 {SCRIPT} {self.worker.packed} child"
        return wrap.replace("LAUNCH", launch).replace("EVALUATION", evaluation)

    @property
    def about(self) -> str:
        """Return a one-line description of the program."""
        return "; ".join([f"{self.launch} / {self.wrap}", *self.worker.about])


@cache
def grammar(path: Path = GRAMMAR) -> Grammar:
    """Load a grammar. Raises UsageError if the file is not valid."""
    try:
        return Grammar.model_validate(yaml.safe_load(path.read_text()))
    except (OSError, ValueError, yaml.YAMLError, ValidationError) as error:
        raise UsageError(f"{path} is not a valid grammar of programs: {error}") from None


def program(seed: int, number: int) -> Program:
    """Return the program with this seed and number."""
    return _Draw(random.Random(f"program:{seed}:{number}")).program(seed, number)


def worker(seed: int, number: int, calls: int, pause: float) -> Worker:
    """Return a behaviour for two ranks that torchrun starts on a cluster.

    `calls` is the number of calls that each rank makes, and `pause` the number of seconds after each call.
    """
    launch = grammar().launches["torchrun"]
    behaviour = _Draw(random.Random(f"worker:{seed}:{number}")).worker(launch, calls)
    return behaviour.model_copy(update={"pause": pause, "threads": 0})


class _Draw:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._grammar = grammar()

    def program(self, seed: int, number: int) -> Program:
        launches = {name: launch.weight for name, launch in self._grammar.launches.items()}
        wraps = {name: wrap.weight for name, wrap in self._grammar.wraps.items()}
        launch = self._pick(launches)
        return Program(
            seed=seed,
            number=number,
            launch=launch,
            wrap=self._pick(wraps) if self._often(0.7) else "plain",
            has_torch=self._often(0.05) or self._grammar.launches[launch].torch,
            worker=self.worker(self._grammar.launches[launch]),
        )

    def worker(self, launch: Launch, calls: int | None = None) -> Worker:
        group = launch.torch and self._often(0.5)
        usual_values, usual_calls = self._often(_USUAL), self._often(0.7)
        values = {"float": 3.0, "int": 1.0} if usual_values else dict(self._grammar.values)
        values |= self._grammar.tensors if group and not usual_values else {}
        end = self._pick(self._grammar.ends)
        return Worker(
            calls=self._calls(calls or self._chance.choice(STEPS), values, usual_calls),
            threads=self._chance.choice((0, 0, 0, 0, 0, 1, 3)),
            shared_names=self._often(0.15),
            group=group,
            finish=self._often(0.85),
            patient=self._often(0.95),
            victim=self._chance.randrange(launch.nodes * launch.ranks),
            child=self._pick(self._grammar.children),
            child_calls=self._calls(2, {"float": 1.0}, True),
            second=self._pick(self._grammar.seconds),
            second_differs=self._often(0.5),
            end=end,
            early=self._often(0.4 if end != "return" else 0.05),
        )

    def _calls(self, count: int, values: dict[str, float], usual: bool) -> list[Call]:
        names = [f"m{number}" for number in range(self._chance.choice((1, 1, 2, 4)))]
        order = "rising" if usual else self._pick(self._grammar.orders)
        container = "dict" if usual else self._pick(self._grammar.containers)
        step_kind = "int" if usual else self._pick(self._grammar.steps)
        steps = {
            "rising": list(range(count)),
            "repeated": [number // 2 for number in range(count)],
            "falling": [*range(count // 2, count), *range(count // 2)],
            "from 1000": [1000 + 10 * number for number in range(count)],
        }[order]
        return [
            Call(
                data=[self._entry(name, values) for name in names],
                container=container,
                step=step,
                step_kind=step_kind,
                number=1 + at / 4,
            )
            for at, step in enumerate(steps)
        ]

    def _entry(self, name: str, values: dict[str, float]) -> list[Any]:
        kind = self._pick(values)
        if kind in ("nested", "items"):
            return [name, kind, [["a", "float"], ["b", self._chance.choice(("int", "float", "none"))]]]
        return [name, kind]

    def _often(self, share: float) -> bool:
        return self._chance.random() < share

    def _pick(self, weights: dict[_Name, float]) -> _Name:
        return self._chance.choices(list(weights), list(weights.values()))[0]
