"""The Workload protocol, which each kind of workload implements in its own module.

A workload is the content of its file. `Surroundings` is what a launch adds: its namespace, the worker image,
environment variables, references to Secrets, changed scripts. Everything after `submit` (watches, logs,
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
"""record(file, text) stores the submitted objects and the launcher's output in the bundle."""


@dataclass(frozen=True)
class Handle:
    """The object that the launch created, as read back from the cluster."""

    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The environment of one launch, for its workload."""

    context: RunContext
    kube: Kube
    namespace: str
    nonce: str
    image: str
    envs: Mapping[str, str]
    secret_env: Mapping[str, tuple[str, str]]
    """The ranks' variables from Secrets: (Secret, key) by variable name."""
    max_seconds: float
    """The time after which the cluster itself must end the job."""
    nodes: int
    """The expected number of pods."""
    begun: object = None
    """The value of `Workload.begun`'s context manager."""
    cpu_request: str | None = None
    """The CPU request of each pod instead of its own. The CPU limit does not change."""
    scripts: list[Object] = field(default_factory=list)
    """volumeMounts of changed scripts (harness/provision/images/scripts.py)."""
    pull_secret: str | None = None
    """The pull secret for the image, in the launch's namespace."""
    recorder: bool = False
    """Whether the recorder around Pluto's client is mounted (harness/launch/mounts/recorder.py)."""
    shared_folder: SharedFolder | None = None
    """The folder that all nodes share with this machine, if the cluster has one."""
    netcheck: bool = False
    """Whether netcheck is mounted, for the init or an exec (harness/launch/mounts/netcheck.py)."""


class Workload(Protocol):
    """A file that can be launched. `harness.launch.workload_file.load` checks it and returns a workload."""

    @property
    def name(self) -> str:
        """Return the name in the file. The launched object may have another name."""

    @property
    def kind(self) -> str:
        """Return the kind of the object that `submit` creates: JobSet, StatefulSet, Job or DaemonSet."""

    @property
    def launcher(self) -> str:
        """Return the name of the launcher that submits the workload."""

    @property
    def container(self) -> str:
        """Return the name of the container in which the ranks run."""

    @property
    def held(self) -> bool:
        """Return whether Kubernetes would restart its containers, so that they must be kept running."""

    @property
    def spreads(self) -> bool:
        """Return whether the harness spreads its pods over all nodes, so that a verdict may require it."""

    @property
    def purpose(self) -> Purpose:
        """Return the purpose of its pods. Only the ranks of a training log with Pluto."""

    @property
    def watched(self) -> tuple[WatchedKind, ...]:
        """Return the kinds to watch in addition to pods, nodes and events."""

    def job_name(self, nonce: str, /) -> str | None:
        """Return the job name that the ranks send to the tracker, or None for the launched object's name."""

    def members(self, kube: Kube, /) -> int:
        """Return the expected number of pods, one for each node of the job."""

    def must_answer(self, kube: Kube, /) -> list[str]:
        """Return the names of the nodes that must report a result, if each node is tested; otherwise none."""

    @property
    def per_node(self) -> int:
        """Return the number of ranks in each pod, or a guess."""

    @property
    def ranks_given(self) -> bool:
        """Return whether the file determines the number of ranks in each pod."""

    @property
    def queue(self) -> str | None:
        """Return the LocalQueue that the workload names, or None."""

    @property
    def cpus(self) -> Decimal | None:
        """Return the CPU request and limit of each pod, or None if they differ."""

    @property
    def image(self) -> str: ...

    @property
    def takes_ours(self) -> bool:
        """Return whether `image` is the placeholder for the worker image that the harness builds."""

    @property
    def resources(self) -> set[str]:
        """Return the names of the resources that each pod requests."""

    @property
    def pod_spec(self) -> Object:
        """Return the spec of a pod, as far as the file determines it."""

    def placed(self, settings: Settings, /) -> Object:
        """Return a pod with the node selector, affinity and tolerations that the scheduler will see."""

    @property
    def envs(self) -> dict[str, str]: ...

    @property
    def annotations(self) -> dict[str, str]:
        """Return the file's settings for the harness: annotations, or the labels of a konduktor job."""

    @property
    def secret_envs(self) -> dict[str, str]:
        """Return the variables of `envs` that are secrets. Ranks get them from a Secret."""

    @property
    def secrets(self) -> set[str]:
        """Return all secret values in the file."""

    def check(self, settings: Settings) -> None:
        """Raise UsageError if the workload cannot be launched with these settings. Nothing is created yet."""

    def begun(self, context: RunContext) -> AbstractContextManager[object]:
        """Return a context manager that starts work before a cluster exists, and cleans up at its end."""

    def provide(self, context: RunContext) -> Iterable[str]:
        """Build or download what the launch needs on this machine. Return additional images for the nodes.

        Raises HarnessError.
        """

    def install(self, kube: Kube, context: RunContext) -> None:
        """Install what the launch needs in the cluster, before watches start. Raises HarnessError."""

    def submit(self, surroundings: Surroundings, record: Record) -> Handle:
        """Launch the workload and return its object. Raises HarnessError, cause launch.*."""

    def cancel(self, surroundings: Surroundings) -> None:
        """Delete the launched object, if it exists."""

    def clean(self, surroundings: Surroundings) -> None:
        """Remove the launch's leftovers on this machine and outside its namespace."""
