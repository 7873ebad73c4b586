"""The Workload protocol, which each kind of workload implements in its own module.

A workload is the content of its file. `Surroundings` contains what a launch adds to it: the namespace, the
worker image, environment variables, references to Secrets, and scripts that have changed since the image was
built. Everything after `submit` (watches, logs, evidence, judges, report and faults) is the same for all
kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Protocol

from harness.context import RunContext
from harness.core.kubernetes import Kube, Object
from harness.core.pod_security import Standard
from harness.evidence.kubernetes.kinds import WatchedKind
from harness.evidence.schema.bundle import Purpose
from harness.provision.cluster import SharedFolder
from harness.settings import Settings

Record = Callable[[str, str], None]
"""A function `record(file, text)` that stores submitted objects and launcher output in the bundle."""


@dataclass(frozen=True)
class Handle:
    """The name and UID of the object that the launch created."""

    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The settings of one launch that are not in the workload's file."""

    context: RunContext
    kube: Kube
    namespace: str
    nonce: str
    image: str
    envs: Mapping[str, str]
    secret_env: Mapping[str, tuple[str, str]]
    """The environment variables that ranks read from Secrets. Maps each variable's name to (Secret, key)."""
    max_seconds: float
    """The maximum duration of the job in seconds. The cluster itself must enforce it."""
    nodes: int
    """The number of pods that the launch is expected to create."""
    begun: object = None
    """The value that the context manager returned by `Workload.begun` yields on entry."""
    cpu_request: str | None = None
    """Each pod's CPU request, which replaces the request in the file. The CPU limit does not change."""
    rejects_root: bool = False
    """Whether the namespace rejects pods that run as root."""
    scripts: list[Object] = field(default_factory=list)
    """The volumeMounts for scripts that have changed since the image was built
    (provision/images/scripts.py)."""
    pull_secret: str | None = None
    """The pull secret for the image, in the launch's namespace."""
    recorder: bool = False
    """Whether the recorder that wraps the Pluto client is mounted (harness/launch/mounts/recorder.py)."""
    shared_folder: SharedFolder | None = None
    """The folder that all nodes share with this machine, if the cluster has one."""
    netcheck: bool = False
    """Whether netcheck is mounted, so that the init or `kubectl exec` can run it
    (harness/launch/mounts/netcheck.py)."""


class Workload(Protocol):
    """A workload that can be launched. `harness.launch.workload_file.load` reads it from a file."""

    @property
    def name(self) -> str:
        """Return the workload's name in its file. The launched object may have a different name."""

    @property
    def kind(self) -> str:
        """Return the kind of the object that `submit` creates: JobSet, StatefulSet, Job or DaemonSet."""

    @property
    def launcher(self) -> str:
        """Return the name of the launcher for the workload."""

    @property
    def container(self) -> str:
        """Return the name of the container in which the ranks run."""

    @property
    def keep_alive(self) -> bool:
        """Return whether the init keeps a container running after its command ends, because Kubernetes would
        restart the container."""

    @property
    def spreads(self) -> bool:
        """Return whether the harness spreads the pods over all nodes. If so, a verdict can require that all
        nodes are used."""

    @property
    def purpose(self) -> Purpose:
        """Return the pods' purpose. Only pods with the purpose "training" log to Pluto."""

    @property
    def watched(self) -> tuple[WatchedKind, ...]:
        """Return the kinds to watch in addition to pods, nodes and events."""

    def job_name(self, nonce: str, /) -> str | None:
        """Return the job name that the ranks send to the tracker.

        None means that they send the launched object's name.
        """

    def members(self, kube: Kube, /) -> int:
        """Return the expected number of pods, which is the job's number of nodes."""

    def must_answer(self, kube: Kube, /) -> list[str]:
        """Return the nodes that must report a result. The list is empty unless each node is tested."""

    @property
    def per_node(self) -> int:
        """Return the number of ranks in each pod, or an estimate if the file does not determine it."""

    @property
    def has_rank_count(self) -> bool:
        """Return whether the number of ranks in each pod can be determined from the file."""

    @property
    def queue(self) -> str | None:
        """Return the LocalQueue that the workload names, or None."""

    @property
    def cpus(self) -> Decimal | None:
        """Return each pod's CPU request, or None if the workload's pod template determines the request."""

    @property
    def image(self) -> str: ...

    @property
    def uses_worker_image(self) -> bool:
        """Return whether `image` is the placeholder for the worker image that the harness builds."""

    @property
    def resources(self) -> set[str]:
        """Return the names of the resources requested by each pod."""

    @property
    def pod_spec(self) -> Object:
        """Return the part of the pod spec that the file determines."""

    @property
    def pod_standard(self) -> Standard | None:
        """Return the strictest Pod Security Standard that the pods pass.

        "baseline" means that the pods also pass "restricted" if `Surroundings.rejects_root` is set. None
        means that the standard depends on the file.
        """

    def placed(self, settings: Settings, /) -> Object:
        """Return a pod with the node selector, affinity and tolerations that the scheduler will use."""

    @property
    def envs(self) -> dict[str, str]: ...

    @property
    def annotations(self) -> dict[str, str]:
        """Return the harness's settings in the file: the workload's annotations, or the labels of a konduktor
        job."""

    @property
    def secret_envs(self) -> dict[str, str]:
        """Return the secret variables in `envs`. The ranks read them from a Secret."""

    @property
    def secrets(self) -> set[str]:
        """Return all secret values that the workload's file contains."""

    def check(self, settings: Settings) -> None:
        """Raise UsageError if the workload cannot be launched with these settings. Create no objects."""

    def begun(self, context: RunContext) -> AbstractContextManager[object]:
        """Return a context manager that starts preparations before a cluster exists, and cleans up on
        exit."""

    def provide(self, context: RunContext) -> Iterable[str]:
        """Build or download the launch's tools and images. Return additional images for the nodes.

        Raises HarnessError.
        """

    def install(self, kube: Kube, context: RunContext) -> None:
        """Install this workload's controllers in the cluster, before the watches start.

        Raises HarnessError.
        """

    def submit(self, surroundings: Surroundings, record: Record) -> Handle:
        """Create the workload's objects and return its main object.

        Raises HarnessError with a launch.* cause.
        """

    def cancel(self, surroundings: Surroundings) -> None:
        """Delete the launched object, if it exists."""

    def clean(self, surroundings: Surroundings) -> None:
        """Remove the launch's files from this machine, and the launch's objects that are outside its
        namespace."""
