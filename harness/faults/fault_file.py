"""The file format of faults: target, injection, undo and expected verdict.

    about: One sentence that describes the fault.
    target: tracker                   # one of Target
    scope: launch                     # what it disturbs, see Scope
    job: {worker: "faulty.py exit3 1"}
    env: {HARNESS_WAIT_SECONDS: "90"} # for the harness; null removes a variable
    at: {log: "step 5"}               # when: before, {stage: name}, {log: regex} or both
    inject: [{kubectl: "delete pod -n {{ namespace }} {{ pod1 }}"}]
    undo: []                          # idempotent; always run, even if the injector dies
    expect: {verdict: FAIL, cause: rank.pod_deleted, ranks: [1]}

Steps are Jinja2 templates. harness.faults.step_variables lists their variables.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.core.errors import UsageError
from harness.core.user_yaml import yaml_document
from harness.judge.catalogue import CAUSES

CASES = Path(__file__).parent / "cases"
Target = Literal[
    "docker",
    "controllers",
    "image",
    "scheduling",
    "launcher",
    "rendezvous",
    "network",
    "acceptance",
    "training",
    "rank",
    "tracker",
    "client",
    "harness",
]
Scope = Literal["launch", "cluster", "machine", "own"]
"""The scope of a fault's disturbance. A `launch` fault disturbs only its own launch, so other faults can run
at the same time. A `cluster` or `machine` fault runs alone. An `own` fault runs alone, on a cluster that it
creates and removes."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Step(Strict):
    """A step that injects or undoes a fault.

    Exactly one of docker, kubectl, sh, signal and sleep is set. A command can also have `stdin`.
    """

    docker: str | None = None
    kubectl: str | None = None
    sh: str | None = None
    signal: str | None = Field(None, description="signal to send to the harness's process group, e.g. INT")
    sleep: float | None = Field(
        None, description="seconds to wait before the next step, while the fault lasts"
    )
    stdin: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Step:
        actions = [name for name in ("docker", "kubectl", "sh", "signal", "sleep") if getattr(self, name)]
        if len(actions) != 1:
            raise ValueError(
                f"expected exactly one of docker, kubectl, sh, signal and sleep, found {actions}"
            )
        return self

    @property
    def is_command(self) -> bool:
        return bool(self.docker or self.kubectl or self.sh)


class Job(Strict):
    """The changes that a fault makes to jobs/multinode.yaml or to a manifest."""

    manifest: str | None = Field(
        None,
        description="the manifest to use instead of jobs/multinode.yaml: a file in harness/faults/files, "
        "manifests/NAME, or accept-nodes or accept-ddp for the acceptance tests on CPUs",
    )
    worker: str | None = Field(
        None, description="file in /workspace to run instead of multinode.py, and its arguments"
    )
    replace: dict[str, str] = Field({}, description="text in the run script → replacement")
    before: str = Field("", description="shell lines to insert before the run script")
    set: dict[str, Any] = Field(
        {},
        description="path → value. The parts of a path are joined by /, and a path in a manifest begins with "
        "the object's kind. The index after a list's last item appends to the list",
    )
    text: str | None = Field(None, description="the whole file, verbatim; it need not be valid YAML")


class Train(Strict):
    """A launch with `harness train`, which replaces the launch of a job file."""

    defect: str | None = Field(
        None, description="KIND[:NUMBER], a defect from harness/workers/training/faulty.py"
    )
    kind: Literal["statefulset", "job"] = "statefulset"
    restarts: int = 3
    options: list[str] = Field([], description="trainer options, added after those in fault_job.TRAINER")


class When(Strict):
    """The moment at which the fault is injected, determined from the bundle while the bundle is being
    written.

    If `stage` and `log` are both set, the log line is awaited after the stage has begun.
    """

    stage: str | None = Field(None, description="a stage in the manifest that must have begun")
    log: str | None = Field(None, description="a regex that a line in the ranks' logs must match")
    pods: int = Field(1, ge=1, description="number of pods whose logs must contain such a line")

    @model_validator(mode="after")
    def _one(self) -> When:
        if self.stage is None and self.log is None:
            raise ValueError("expected stage, log or both")
        return self


class Expect(Strict):
    """The expected result of the harness. Exactly one of `verdict`, `exit` and `named` is set.

    With `exit`, the harness must exit with this code before it judges anything. With `named`, an oracle
    judges after the launch whether a PASS was right (harness/faults/random/oracle.py), and any other verdict
    must name the disturbance.
    """

    verdict: Literal["PASS", "FAIL", "UNKNOWN"] | None = None
    cause: str | None = None
    ranks: list[int] | None = None
    exit: int | None = None
    named: str | None = Field(
        None, description="a regex that the cause or the text of a verdict other than PASS must match"
    )
    message_pattern: str = Field(
        "",
        description="a regex that the verdict's explanation (for a PASS: a check's explanation) or the "
        "error message must match",
    )

    @model_validator(mode="after")
    def _validated(self) -> Expect:
        if [self.verdict, self.exit, self.named].count(None) != 2:
            raise ValueError("expected exactly one of verdict, exit and named")
        if self.cause is not None and self.cause not in CAUSES:
            raise ValueError(f"{self.cause} is not a cause in docs/causes.md")
        if self.verdict in ("FAIL", "UNKNOWN") and self.cause is None:
            raise ValueError("a verdict other than PASS needs a cause")
        return self


class Fault(Strict):
    """A fault, as described by its file.

    `name` is the file name without the extension. `cannot` is the reason why the fault cannot be injected on
    this kind of machine.
    """

    name: str
    about: str
    target: Target
    scope: Scope = "launch"
    job: Job = Job()
    train: Train | None = None
    env: dict[str, str | None] = {}
    arguments: list[str] = []
    at: Literal["before"] | When = "before"
    freeze: bool = Field(False, description="stop the harness (SIGSTOP) during the injection")
    inject: list[Step] = []
    undo: list[Step] = []
    nightly: bool = Field(
        False,
        description="inject this fault only in `make faults`, because it is slow or similar to another fault",
    )
    expect: Expect | None = None
    cannot: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> Fault:
        if (self.expect is None) == (self.cannot is None):
            raise ValueError("expected exactly one of expect and cannot")
        if self.train is not None and self.job != Job():
            raise ValueError("`job` and `train` cannot be combined")
        if any(not step.is_command for step in self.undo):
            raise ValueError(
                "undo accepts only commands, because the harness may not be running when the fault is undone"
            )
        if (
            self.inject
            and not self.undo
            and any(step.is_command for step in self.inject)
            and self.scope != "launch"
        ):
            raise ValueError("a fault that is injected outside its own launch needs an undo")
        return self


def load(path: Path) -> Fault:
    """Load a fault from a file. Raises UsageError with the file and all invalid fields."""
    try:
        return Fault(**{"name": path.stem, **yaml_document(path, "fault")})
    except TypeError as error:
        raise UsageError(f"{path} is not a valid fault: {error}") from None
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()]
        raise UsageError(f"{path} is not a valid fault: {'; '.join(lines)}") from None


@functools.cache
def catalogue(folder: Path = CASES) -> Mapping[str, Fault]:
    """Return all faults, keyed by name, ordered by target (in launch order) and name.

    The files are read once in each process.
    """
    order = list(Target.__args__)  # type: ignore[attr-defined]
    found = [load(path) for path in sorted(folder.glob("*.yaml"))]
    faults = sorted(found, key=lambda f: (order.index(f.target), f.name))
    return MappingProxyType({fault.name: fault for fault in faults})
