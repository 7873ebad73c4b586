"""What can be launched: one protocol, with one module for each kind that has it.

A workload is what its file says. `Surroundings` is what one launch adds: a namespace of its own, the worker
image, environment, secrets by reference, changed scripts. Everything after `submit` (watches, logs, evidence,
judges, report, faults) is the same for all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Protocol

from harness.context import RunContext
from harness.core.kubernetes import Kube, Object
from harness.evidence.kinds import WatchedKind
from harness.settings import Settings

Record = Callable[[str, str], None]
"""record(file, text): keep what was submitted, and what the launcher said, in the bundle."""


@dataclass(frozen=True)
class Handle:
    """The object that the launch made, read back from the cluster."""

    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What one launch gives to its workload."""

    context: RunContext
    kube: Kube
    namespace: str
    nonce: str
    image: str
    envs: Mapping[str, str]
    secret_env: Mapping[str, tuple[str, str]]
    """Environment of the ranks by reference: name → (Secret, key)."""
    max_seconds: float
    """After which the cluster itself must end the job."""
    home: Path
    """A folder of this launch alone."""
    nodes: int
    """How many pods the workload is to have."""
    cpu_request: str | None = None
    """CPU that each pod asks for, in place of its own; its limit stays."""
    scripts: list[Object] = field(default_factory=list)
    """volumeMounts of changed scripts (harness/provision/images/scripts.py)."""
    pull_secret: str | None = None
    """Of the launch's namespace, for the image."""


class Workload(Protocol):
    """One file that can be launched. Made by `harness.launch.workload_file.load`, which checks it."""

    @property
    def name(self) -> str:
        """As the file has it; what is launched may be called otherwise."""

    @property
    def kind(self) -> str:
        """Of the object that `submit` makes: JobSet, StatefulSet, Job or DaemonSet."""

    @property
    def launcher(self) -> str:
        """The program that submits it."""

    @property
    def container(self) -> str:
        """Name of the container that the ranks run in."""

    @property
    def held(self) -> bool:
        """Whether its controller starts again what ends, so that its containers are kept from ending."""

    @property
    def spreads(self) -> bool:
        """Whether its pods go to as many nodes as there are, so that a verdict may ask for it."""

    @property
    def watched(self) -> tuple[WatchedKind, ...]:
        """Objects to watch beside pods, nodes and events."""

    def job_name(self, nonce: str, /) -> str | None:
        """What its ranks tell the tracker as the name of their job; None: the name of what is launched."""

    def members(self, kube: Kube, /) -> int:
        """How many pods must come: one for each node of the job."""

    @property
    def per_node(self) -> int:
        """Ranks in each pod."""

    @property
    def queue(self) -> str | None:
        """The LocalQueue that it names."""

    @property
    def cpus(self) -> Decimal | None:
        """CPUs that each pod asks for and may use, where these are one number; else None."""

    @property
    def image(self) -> str: ...

    @property
    def takes_ours(self) -> bool:
        """Whether `image` stands for the worker image that the harness builds."""

    @property
    def resources(self) -> set[str]:
        """Names of the resources that each pod asks for."""

    @property
    def envs(self) -> dict[str, str]: ...

    @property
    def secret_envs(self) -> dict[str, str]:
        """Those of `envs` that hold a secret: ranks get them out of a Secret."""

    @property
    def secrets(self) -> set[str]:
        """Every secret that the file holds."""

    def check(self, settings: Settings) -> None:
        """Raises UsageError for settings that cannot work with it, before anything is created."""

    def provide(self, context: RunContext) -> None:
        """Get what the launch needs on this machine. Raises HarnessError."""

    def submit(self, surroundings: Surroundings, record: Record) -> Handle:
        """Launch it. Raises HarnessError, cause launch.*."""

    def cancel(self, surroundings: Surroundings) -> None:
        """Delete what was launched; nothing there is no error."""

    def clean(self, surroundings: Surroundings) -> None:
        """Remove what the launch left on this machine."""
