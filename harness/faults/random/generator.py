"""Generate random faults from grammar.yaml.

Each fault combines an object in the cluster, a verb that describes what happens to it, a moment in the
launch, and a behaviour of the job's worker. A seed and a number always determine the same fault, so a run can
be continued, and a fault can be repeated.
"""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

from pydantic import Field, ValidationError, field_validator

from harness.core.errors import UsageError
from harness.core.user_yaml import yaml_document
from harness.faults.fault_file import Expect, Fault, Job, Scope, Step, Strict, Target, When
from harness.faults.programs.generator import Worker, worker

GRAMMAR = Path(__file__).with_name("grammar.yaml")
PREFIX = "random-"
"""The prefix of the names of random faults."""
PROGRAM = "-program"
"""The suffix of the names of random faults whose ranks run a generated program."""
PROGRAM_CALLS, PROGRAM_PAUSE = 20, 0.5
"""The number of calls in a generated program, and the pause after each call in seconds. The number of calls
equals the number of steps of the main job's worker, so that every moment occurs."""
LAST_MOMENT = "ending"
RANKS = (0, 1)
"""The ranks of jobs/multinode.yaml, which is the job for every random fault."""
ALWAYS = ("joined", "training", "ending")
WITNESS = "{{ files }}/witness.yaml"
WAIT_SECONDS = "120"
EPHEMERAL_STORAGE = "2Gi"
"""The ephemeral-storage limit of each container. It is small, so that the `fill` verb writes little."""
_PRELUDE = """source {{ files }}/strike.sh
k() { {{ kubectl }} "$@"; }
n() { k -n {{ namespace }} "$@"; }
"""


class Verb(Strict):
    """A shell script that disturbs an object. `undo` is set if the disturbance affects the cluster."""

    do: str
    undo: str = ""


class Object(Strict):
    """An object or process that can be disturbed. `named` is a regex for verdicts that name the object."""

    target: Target
    scope: Scope = "launch"
    named: str
    moments: tuple[str, ...] = ALWAYS
    verbs: dict[str, Verb]

    @field_validator("verbs", mode="before")
    @classmethod
    def _short(cls, verbs: dict[str, object]) -> dict[str, object]:
        return {name: {"do": verb} if isinstance(verb, str) else verb for name, verb in verbs.items()}


class Behaviour(Strict):
    """A behaviour of the job's worker. `named` is a regex that matches verdicts that report the worker's own
    fault."""

    worker: str
    weight: int = 1
    set: dict[str, str] = Field({})
    replace: dict[str, str] = Field({})
    until: str | None = Field(None, description="the last moment at which the worker is certain to be alive")
    named: str | None = None


class Grammar(Strict):
    """The content of grammar.yaml."""

    moments: dict[str, When]
    behaviours: dict[str, Behaviour]
    objects: dict[str, Object]


@cache
def grammar(path: Path = GRAMMAR) -> Grammar:
    """Load a grammar. Raises UsageError if the file is not valid."""
    try:
        return Grammar.model_validate(yaml_document(path, "grammar"))
    except ValidationError as error:
        raise UsageError(f"{path} is not a valid grammar of faults: {error}") from None


def drawn(seed: int, number: int, generated: bool = False) -> Fault:
    """Return the random fault with this seed and number.

    With `generated`, the fault has the same object, verb and moment, but its ranks run a generated program
    instead of a behaviour from the grammar.
    """
    grammar_rules, chance = grammar(), random.Random(f"{seed}:{number}")
    object_name = chance.choice(list(grammar_rules.objects))
    target = grammar_rules.objects[object_name]
    verb = chance.choice(list(target.verbs))
    moment = chance.choice(target.moments)
    weights = [each.weight for each in grammar_rules.behaviours.values()]
    behaviour = chance.choices(list(grammar_rules.behaviours), weights)[0]
    rank, victim = chance.choice(RANKS), chance.choice(RANKS)
    name = f"{PREFIX}{seed}-{number:03}"
    if generated:
        behaviour_of_worker = worker(seed, number, PROGRAM_CALLS, PROGRAM_PAUSE)
        # After os.exec, nothing reads the stdout pipe, so a write to it can end the rank early.
        is_late = (
            behaviour_of_worker.early or behaviour_of_worker.second == "exec"
        ) and moment == LAST_MOMENT
        return with_program(
            combined(name, object_name, verb, "training" if is_late else moment, "steady", rank, victim),
            behaviour_of_worker,
        )
    return combined(name, object_name, verb, moment, behaviour, rank, victim)


def with_program(fault: Fault, behaviour: Worker) -> Fault:
    """Return the fault, changed so that its ranks run a generated program.

    A verdict can then also name a defect in the program.
    """
    assert fault.expect is not None
    own = ["unification\\."] + (
        [rf"rank {behaviour.victim}\b", "rank\\."] if behaviour.end != "return" else []
    )
    own += [r"os\.exec"] if behaviour.second == "exec" else []
    return fault.model_copy(
        update={
            "name": f"{fault.name}{PROGRAM}",
            "about": fault.about.replace("steady worker", f"a program: {'; '.join(behaviour.about)}"),
            "job": fault.job.model_copy(update={"worker": f"program.py {behaviour.packed}"}),
            "expect": Expect(named="|".join([str(fault.expect.named), *own])),
        }
    )


def by_name(name: str) -> Fault | None:
    """Return the random fault with a name such as random-7-012, or None for any other name."""
    match = re.fullmatch(rf"{PREFIX}(-?\d+)-(\d+)({PROGRAM})?", name)
    return drawn(int(match[1]), int(match[2]), bool(match[3])) if match else None


def combined(
    name: str, object_name: str, verb: str, moment: str, behaviour: str, rank: int, victim: int
) -> Fault:
    """Return the fault that combines the object `object_name` with a verb, a moment and a behaviour.

    The fault disturbs the object that belongs to rank `rank`. The worker of rank `victim` has the behaviour.
    If this rank's worker ends before `moment`, the behaviour's last moment is used instead.
    """
    rules = grammar()
    target, action, worker = (
        rules.objects[object_name],
        rules.objects[object_name].verbs[verb],
        rules.behaviours[behaviour],
    )
    order = list(rules.moments)
    if worker.until is not None and order.index(moment) > order.index(worker.until):
        moment = worker.until

    def of_rank(text: str) -> str:
        return text.replace("RANK", str(rank))

    moment_rule = rules.moments[moment]
    undo = of_rank(f"{action.undo}\nsettle") if action.undo else ""
    does_meanwhile = f"rank {victim} {behaviour}" if worker.named else f"{behaviour} worker"
    return Fault(
        name=name,
        about=f"{verb.capitalize()}: {of_rank(object_name)} ({moment}; {does_meanwhile}).",
        target=target.target,
        scope=target.scope,
        job=Job(
            worker=f"witness.py {worker.worker} {victim}",
            set=dict(worker.set),
            replace=dict(worker.replace),
        ),
        env={
            "HARNESS_KONDUKTOR_CONFIG": WITNESS,
            "HARNESS_WAIT_SECONDS": WAIT_SECONDS,
            "HARNESS_EPHEMERAL_STORAGE": EPHEMERAL_STORAGE,
        },
        at=When(stage=moment_rule.stage, log=of_rank(moment_rule.log) if moment_rule.log else None),
        inject=[Step(sh=_PRELUDE + of_rank(action.do))],
        undo=[Step(sh=_PRELUDE + undo)] if undo else [],
        nightly=True,
        expect=Expect(named="|".join(filter(None, (of_rank(target.named), worker.named)))),
    )
