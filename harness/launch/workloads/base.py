"""What can be launched: one protocol, with one module for each kind that implements it.

A workload is the content of its file. `Surroundings` is what one launch adds: a namespace of its own, the
worker image, environment, secrets by reference, changed scripts. Everything after `submit` (watches, logs,
evidence, judges, report, faults) is the same for all kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol

from harness.context import RunContext
from harness.core.kubernetes import Kube, Object
from harness.evidence.kubernetes.kinds import WatchedKind
from harness.evidence.schema.bundle import Purpose
from harness.provision.cluster import SharedFolder
from harness.settings import Settings

Record = Callable[[str, str], None]
"""record(file, text) keeps what was submitted, and what the launcher printed, in the bundle."""


@dataclass(frozen=True)
class Handle:
    """The object that the launch made, read back from the cluster."""

    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What one launch gives its workload."""

    context: RunContext
    kube: Kube
    namespace: str
    nonce: str
    image: str
    envs: Mapping[str, str]
    secret_env: Mapping[str, tuple[str, str]]
    """The ranks' environment by reference: name → (Secret, key)."""
    max_seconds: float
    """Seconds after which the cluster itself must end the job."""
    nodes: int
    """How many pods the workload is to have."""
    begun: object = None
    """What `Workload.begun` gave."""
    cpu_request: str | None = None
    """CPU that each pod requests in place of its own. Its limit stays."""
    scripts: list[Object] = field(default_factory=list)
    """volumeMounts of changed scripts (harness/provision/images/scripts.py)."""
    pull_secret: str | None = None
    """The pull secret for the image, in the launch's namespace."""
    recorder: bool = False
    """Whether the recorder around Pluto's client is mounted (harness/launch/mounts/recorder.py)."""
    shared_folder: SharedFolder | None = None
    """A folder that all nodes share with this machine, where the cluster has one."""
    netcheck: bool = False
    """Whether netcheck is mounted for the init or a call from outside (harness/launch/mounts/netcheck.py)."""


class Workload(Protocol):
    """One file that can be launched. `harness.launch.workload_file.load` checks it and makes one."""

    @property
    def name(self) -> str:
        """Return the name in the file. The launched object may have another one."""

    @property
    def kind(self) -> str:
        """Return the kind of the object that `submit` makes: JobSet, StatefulSet, Job or DaemonSet."""

    @property
    def launcher(self) -> str:
        """Return the program that submits it."""

    @property
    def container(self) -> str:
        """Return the name of the container that the ranks run in."""

    @property
    def held(self) -> bool:
        """Return whether its controller restarts what ends, so that its containers must be held."""

    @property
    def spreads(self) -> bool:
        """Return whether its pods spread over all nodes, so that a verdict may require it."""

    @property
    def purpose(self) -> Purpose:
        """Return what its pods run. Only the ranks of a training log with Pluto."""

    @property
    def watched(self) -> tuple[WatchedKind, ...]:
        """Return the objects to watch beside pods, nodes and events."""

    def job_name(self, nonce: str, /) -> str | None:
        """Return the job name that its ranks give the tracker. None means the name of the launched object."""

    def members(self, kube: Kube, /) -> int:
        """Return how many pods must come: one for each node of the job."""

    def must_answer(self, kube: Kube, /) -> list[str]:
        """Return the names of the nodes that must answer, where each node is tested by itself; else none."""

    @property
    def per_node(self) -> int:
        """Return the number of ranks in each pod, or a guess."""

    @property
    def ranks_given(self) -> bool:
        """Return whether its file says how many ranks there are in each pod."""

    @property
    def queue(self) -> str | None:
        """Return the LocalQueue that it names, or None."""

    @property
    def cpus(self) -> Decimal | None:
        """Return the CPUs that each pod requests and is limited to, or None where these are two numbers."""

    @property
    def image(self) -> str: ...

    @property
    def takes_ours(self) -> bool:
        """Return whether `image` stands for the worker image that the harness builds."""

    @property
    def resources(self) -> set[str]:
        """Return the names of the resources that each pod requests."""

    @property
    def pod_spec(self) -> Object:
        """Return the spec of a pod, as far as the file tells it."""

    def placed(self, settings: Settings, /) -> Object:
        """Return a pod as the scheduler sees it: its spec with node selector, affinity and tolerations."""

    @property
    def envs(self) -> dict[str, str]: ...

    @property
    def annotations(self) -> dict[str, str]:
        """Return what its file says to the harness: annotations, or the labels of a konduktor job."""

    @property
    def secret_envs(self) -> dict[str, str]:
        """Return the variables of `envs` that hold a secret. Ranks get them out of a Secret."""

    @property
    def secrets(self) -> set[str]:
        """Return every secret that the file holds."""

    def check(self, settings: Settings) -> None:
        """Check that the settings can work with it, before anything is created. Raises UsageError."""

    def begun(self, context: RunContext) -> AbstractContextManager[object]:
        """Begin what needs no cluster, before there is one. The end of the block ends and removes it."""

    def provide(self, context: RunContext) -> Iterable[str]:
        """Get what the launch needs on this machine. Return images that nodes need besides its own.

        Raises HarnessError.
        """

    def install(self, kube: Kube, context: RunContext) -> None:
        """Install in the cluster what the launch needs there, before it is watched. Raises HarnessError."""

    def submit(self, surroundings: Surroundings, record: Record) -> Handle:
        """Launch it and return its object. Raises HarnessError, cause launch.*."""

    def cancel(self, surroundings: Surroundings) -> None:
        """Delete what was launched. It is no error when nothing is there."""

    def clean(self, surroundings: Surroundings) -> None:
        """Remove what the launch left on this machine."""
