"""A konduktor job file as a workload: konduktor creates a JobSet from it, which Kueue admits."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from kubernetes.client.exceptions import ApiException

from harness.context import RunContext
from harness.core.kubernetes import Kube
from harness.core.pod_security import Standard
from harness.evidence.kubernetes import kinds
from harness.evidence.schema.bundle import Purpose
from harness.launch.konduktor.config import Submission, users_config
from harness.launch.konduktor.job_file import JobFile
from harness.launch.konduktor.launch_process import Konduktor
from harness.launch.konduktor.submit import CONTAINER, KonduktorLauncher
from harness.launch.workloads.base import Handle, Record, Surroundings, Workload
from harness.launch.workloads.pod_template_workload import take_image
from harness.provision.konduktor import installed, konduktor_bin
from harness.settings import Settings

_PLACEMENT = ("nodeSelector", "affinity", "tolerations")
"""The fields of a pod spec that determine which node a pod is scheduled on."""


@dataclass(frozen=True)
class KonduktorWorkload:
    """A konduktor job file as a Workload (workloads/base.py)."""

    job: JobFile
    kind: str = "JobSet"
    launcher: str = "konduktor"
    container: str = CONTAINER
    keep_alive: bool = False
    spreads: bool = True
    purpose: Purpose = "training"
    watched: tuple[kinds.WatchedKind, ...] = kinds.JOBSET
    konduktor: Konduktor | None = None
    """The konduktor process, if launch_process.early has already started it."""

    @property
    def name(self) -> str:
        return str(self.job.document["name"])

    def job_name(self, _nonce: str, /) -> None:
        """Return None, because konduktor appends a suffix that makes each job's name unique."""

    def members(self, _kube: Kube, /) -> int:
        """Return the number of nodes in the job file. konduktor creates one pod for each node."""
        return self.job.num_nodes

    def must_answer(self, _kube: Kube, /) -> list[str]:
        """Return no nodes, because Kueue chooses the pods' nodes."""
        return []

    @property
    def per_node(self) -> int:
        return self.job.ranks // self.job.num_nodes

    @property
    def has_rank_count(self) -> bool:
        return self.job.has_rank_count

    @property
    def queue(self) -> str | None:
        return self.job.queue

    @property
    def cpus(self) -> Decimal | None:
        return self.job.cpus

    @property
    def image(self) -> str:
        return self.job.image

    @property
    def uses_worker_image(self) -> bool:
        return self.job.uses_worker_image

    @property
    def resources(self) -> set[str]:
        return self.job.resources

    @property
    def pod_spec(self) -> dict[str, Any]:
        return self.job.pod_spec

    @property
    def pod_standard(self) -> Standard:
        """Return "privileged", because konduktor adds the capability IPC_LOCK and its script
        must run as root."""
        return "privileged"

    def placed(self, settings: Settings, /) -> dict[str, Any]:
        """Return a pod as konduktor creates it, with the scheduling fields from the user's config."""
        config = users_config(settings.konduktor_config).get("pod_config") or {}
        users = config.get("spec") if isinstance(config, dict) else None
        placement = {key: value for key, value in (users or {}).items() if key in _PLACEMENT}
        own = self.pod_spec
        tolerations = [*own.get("tolerations", []), *(placement.pop("tolerations", None) or [])]
        return {"spec": {**own, **placement, "tolerations": tolerations}}

    @property
    def envs(self) -> dict[str, str]:
        return self.job.envs

    @property
    def annotations(self) -> dict[str, str]:
        """Return the labels in the job file. A job file has no annotations."""
        return dict(self.job.document["resources"].get("labels") or {})

    @property
    def secret_envs(self) -> dict[str, str]:
        return self.job.secret_envs

    @property
    def secrets(self) -> set[str]:
        return self.job.secrets

    def check(self, settings: Settings) -> None:
        """Raise UsageError for an invalid number of ranks or an invalid konduktor config."""
        self.job.ranks  # noqa: B018 - raises UsageError
        users_config(settings.konduktor_config)

    def begun(self, context: RunContext) -> AbstractContextManager[Konduktor]:
        """Return konduktor's process.

        If konduktor is installed, the process starts early, because its imports are slow.
        """
        return self.konduktor or Konduktor(context.settings.state_dir, installed(context.settings))

    def provide(self, context: RunContext) -> Iterable[str]:
        """Install konduktor in its own virtual environment. Return no additional images."""
        konduktor_bin(context)
        return ()

    def install(self, kube: Kube, context: RunContext) -> None:
        """Install nothing, because JobSet and Kueue are installed before every launch."""

    def submit(self, surroundings: Surroundings, record: Record) -> Handle:
        """Run `konduktor launch` and return the JobSet that it creates (KonduktorLauncher.submit)."""
        return self._launcher(surroundings).submit(self._submission(surroundings), record)

    def cancel(self, surroundings: Surroundings) -> None:
        """Delete the JobSets of this launch, if there are any."""
        try:
            self._launcher(surroundings).cancel(self._submission(surroundings))
        except ApiException as error:
            if error.status != 404:  # If the JobSet API is missing, there is no JobSet to delete.
                raise

    def clean(self, surroundings: Surroundings) -> None:
        """Remove nothing, because the context manager of `begun` removes konduktor's HOME."""

    def _launcher(self, surroundings: Surroundings) -> KonduktorLauncher:
        assert isinstance(surroundings.begun, Konduktor)
        program = konduktor_bin(surroundings.context)
        return KonduktorLauncher(surroundings.kube, surroundings.begun, program)

    def _submission(self, surroundings: Surroundings) -> Submission:
        users = users_config(surroundings.context.settings.konduktor_config)
        take_image(users.get("pod_config", {}).get("spec") or {}, surroundings.image)
        rendered = self.job.render(
            image=surroundings.image, envs=dict(surroundings.envs), max_seconds=surroundings.max_seconds
        )
        return Submission(
            namespace=surroundings.namespace,
            nonce=surroundings.nonce,
            job_yaml=rendered,
            secret_env=dict(surroundings.secret_env),
            cpu_request=surroundings.cpu_request,
            users=users,
            files=surroundings.scripts,
            pull_secret=surroundings.pull_secret,
            recorder=surroundings.recorder,
            netcheck=surroundings.netcheck,
        )


def as_workload(job: Workload | JobFile) -> Workload:
    """Return a KonduktorWorkload for a job file, and return a workload unchanged."""
    return KonduktorWorkload(job) if isinstance(job, JobFile) else job
