"""Launch a TorchrunJob. The torchrun controller creates a JobSet from it, which Kueue admits."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from harness.context import RunContext
from harness.core.causes import CauseId
from harness.core.errors import HarnessError, UsageError, WaitError
from harness.core.kubernetes import Kube, Object
from harness.evidence.kubernetes import kinds, refusals
from harness.launch.apply import apply
from harness.launch.labels import NONCE_LABEL
from harness.launch.mounts import netcheck, recorder
from harness.launch.workloads.base import Handle, Record, Surroundings
from harness.launch.workloads.pod_template_workload import PlainWorkload, take_image
from harness.provision import pod_admission
from harness.provision.controllers import torchrun
from harness.provision.images import scripts
from harness.provision.images.build import build_controller
from harness.provision.images.stack import resolve as stack_of
from harness.settings import Settings
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import JobSpec, QueueSpec
from harness.torchrun_controller.decide.decisions import owned
from harness.torchrun_controller.decide.queue import template_condition
from harness.torchrun_controller.objects.command import RESERVED
from harness.torchrun_controller.objects.permission_check import check_pod
from harness.torchrun_controller.objects.pod_template import Resolved, pod, resolve
from harness.torchrun_controller.plan.gpu_layout import Refused

_Spec = TypeVar("_Spec", bound=BaseModel)
OTHER_KINDS = {"Service", "ConfigMap", "ServiceAccount", "PersistentVolumeClaim", names.QUEUE_KIND}
CREATE_SECONDS = 60.0
"""The number of seconds within which the controller must create the JobSet. This normally takes about 1 s."""
SETUP = """export KONDUKTOR_OUTPUT_DIR="${KONDUKTOR_OUTPUT_DIR:-/tmp/harness-output}"
if [ -d /opt/harness/recorder ]; then
  read -r harness_shell _ </proc/self/stat  # process 1 may be another container's
  export PYTHONPATH="/opt/harness/recorder${PYTHONPATH:+:$PYTHONPATH}" HARNESS_LOG="/proc/$harness_shell/fd/1"
  if [ -f /opt/harness/recorder/setup.sh ]; then . /opt/harness/recorder/setup.sh; fi
fi
if [ "$HARNESS_NETCHECK" = before ]; then
  checked=0; sh /opt/harness/netcheck/netcheck.sh || checked=$?
  case $checked in 0 | 3) ;; *) exit 90 ;; esac
fi
"""
"""Commands that run before the job's own setupCommand. For other kinds of workloads, files/worker_init.sh
runs these commands."""


@dataclass(frozen=True)
class TorchrunJobWorkload(PlainWorkload):
    """A TorchrunJob with its TorchrunQueue. `document` is the job, and `other_objects` contains the queue."""

    kind: ClassVar[str] = "JobSet"
    keep_alive: ClassVar[bool] = False
    launcher: ClassVar[str] = "torchrun"

    @property
    def watched(self) -> tuple[kinds.WatchedKind, ...]:
        return (*kinds.JOBSET, kinds.TORCHRUN_JOB)

    def mistakes(self) -> Iterable[str]:
        for each in self.other_objects:
            if each.get("kind") not in OTHER_KINDS:
                yield (
                    f"{each.get('kind')}: besides the TorchrunJob, only these kinds are supported: "
                    f"{', '.join(sorted(OTHER_KINDS))}"
                )

    def __post_init__(self) -> None:
        problems = [*self.mistakes()]
        try:
            check_pod(pod(self._resolved, kai=False), self._resolved.queue)
        except (Refused, _Wrong) as error:
            problems.append(f"{error}")
        if problems:
            raise UsageError(
                f"manifest {self.source}: " + "; ".join(problems),
                hint="for a working example, see manifests/torchrun-job.yaml in the harness's repository",
            )

    @cached_property
    def _spec(self) -> JobSpec:
        return _valid(JobSpec, self.document)

    @cached_property
    def _queue(self) -> Object:
        """Return the job's TorchrunQueue from the same file.

        Raises _Wrong if the file does not contain it.
        """
        queues = {
            each["metadata"]["name"]: each for each in self.other_objects if each["kind"] == names.QUEUE_KIND
        }
        if self._spec.queue_name not in queues:
            queue_names = ", ".join(sorted(queues)) or "none"
            raise _Wrong(
                f"expected TorchrunQueue {self._spec.queue_name} in the same file, found {queue_names}"
            )
        return queues[self._spec.queue_name]

    @cached_property
    def _resolved(self) -> Resolved:
        storage = self._spec.workspace_storage
        if storage is not None and storage.source == "zip":
            raise _Wrong(
                "spec.workspaceStorage.source: zip requires an upload; use `harness torchrun submit` or "
                "another source"
            )
        return resolve(self.name, self._spec, {}, _valid(QueueSpec, self._queue))

    @cached_property
    def template(self) -> Object:
        """Return the template for the pods that the controller will create."""
        return pod(self._resolved, kai=False)

    @property
    def first_host(self) -> str:
        return names.host(self.name, 0)

    def members(self, _kube: Kube, /) -> int:
        return self._resolved.plan.nodes

    @property
    def per_node(self) -> int:
        return self._resolved.plan.processes

    @property
    def has_rank_count(self) -> bool:
        return True

    @property
    def queue(self) -> str:
        """Return the LocalQueue of the TorchrunQueue.

        The default is the LocalQueue in the launch's namespace.
        """
        return self._resolved.queue.local_queue or str(Settings.model_fields["queue"].default)

    @property
    def envs(self) -> dict[str, str]:
        return {name: value for name, value in super().envs.items() if not RESERVED.fullmatch(name)}

    def provide(self, context: RunContext) -> Iterable[str]:
        """Build the controller's image and return it. On an existing cluster, return no image."""
        return (_image(context),) if context.settings.kubeconfig is None else ()

    def install(self, kube: Kube, context: RunContext) -> None:
        """Install the controller on a harness cluster, or check that an existing cluster has it.

        The CRDs must exist before TorchrunJobs can be watched.
        """
        if context.settings.kubeconfig is None:
            torchrun.install(kube, _image(context))
        else:
            torchrun.require(kube)

    def render(self, surroundings: Surroundings) -> list[Object]:
        """Return the objects in the file, with the launch's additions in the queue's pod template."""
        job, queue = copy.deepcopy(self.document), copy.deepcopy(self._queue)
        rest = [copy.deepcopy(each) for each in self.other_objects if each is not self._queue]
        added = [each for each in self._env(surroundings) if not RESERVED.fullmatch(each["name"])]
        own_names = {each["name"] for each in added}
        template = queue["spec"].setdefault("podTemplate", {}).setdefault("spec", {})
        [trainer, *_] = template.setdefault("containers", [{"name": names.TRAINER}])
        take_image(template, surroundings.image)
        trainer["env"] = added
        trainer["image"] = surroundings.image
        for spec in (queue["spec"], job["spec"]):
            spec["env"] = [each for each in spec.get("env") or [] if each["name"] not in own_names]
        job["spec"].pop("image", None)
        self._mount(template, trainer, surroundings)
        labels = job["spec"].setdefault("labels", {})
        labels[NONCE_LABEL] = surroundings.nonce
        queue["spec"].setdefault("overrides", {}).setdefault("labels", []).append(NONCE_LABEL)
        job["spec"]["setupCommand"] = SETUP + (job["spec"].get("setupCommand") or "")
        reliability = job["spec"].setdefault("reliability", {})
        limit = int(surroundings.max_seconds)
        reliability["activeDeadlineSeconds"] = min(
            int(reliability.get("activeDeadlineSeconds") or limit), limit
        )
        queue["spec"].pop("clusterQueue", None)
        queue["spec"]["localQueue"] = self.queue
        documents = [*rest, queue, job]
        for each in documents:
            each["metadata"]["namespace"] = surroundings.namespace
        return documents

    def _mount(self, pod_spec: Object, trainer: Object, surroundings: Surroundings) -> None:
        folders = [recorder.MOUNTED] if surroundings.recorder else []
        folders += [netcheck.MOUNTED] if surroundings.netcheck else []
        mounts = [*surroundings.scripts, *(folder.mount() for folder in folders)]
        volumes = [*scripts.volumes(surroundings.scripts), *(folder.volume() for folder in folders)]
        if mounts:
            trainer["volumeMounts"] = [*(trainer.get("volumeMounts") or []), *mounts]
            pod_spec["volumes"] = [*(pod_spec.get("volumes") or []), *volumes]
        if surroundings.pull_secret is not None:
            pod_spec["imagePullSecrets"] = [{"name": surroundings.pull_secret}]

    def submit(self, surroundings: Surroundings, record: Record) -> Handle:
        """Apply the objects and wait for the JobSet. Return its name and UID.

        Raises HarnessError with a launch.* cause.
        """
        kube = surroundings.kube
        documents = self.render(surroundings)
        record("launch/manifest.yaml", yaml.safe_dump_all(documents, sort_keys=False))
        for document in documents:
            apply(kube, document)
        jobs = kube.wait(
            f"the controller to create the JobSet of TorchrunJob {self.name}",
            names.API,
            names.JOB_KIND,
            lambda jobs: self._pending(kube, jobs.get(self.name, {}), surroundings.namespace),
            seconds=CREATE_SECONDS,
            namespace=surroundings.namespace,
            cause="launch.jobset_not_found",
        )
        return Handle(self.name, self._jobset_uid(kube, jobs[self.name]))

    def _jobset_uid(self, kube: Kube, job: Object) -> str:
        """Return the UID of the job's JobSet. The status of a queued job may not contain it yet."""
        if job["status"].get("jobID"):
            return str(job["status"]["jobID"])
        metadata, awaited = job["metadata"], f"the JobSet of TorchrunJob {self.name}"

        def missing(jobsets: dict[str, Object]) -> str | None:
            return None if owned(jobsets.get(self.name, {"metadata": {}}), metadata["uid"]) else "no JobSet"

        try:
            jobsets = kube.wait(
                awaited,
                names.JOBSET_API,
                "JobSet",
                missing,
                seconds=CREATE_SECONDS,
                namespace=metadata["namespace"],
                cause="launch.jobset_not_found",
            )
        except WaitError:
            now = kube.get(names.API, names.JOB_KIND, self.name, metadata["namespace"]) or job
            text = f"no JobSet; the job is {now['status'].get('phase')}: {now['status'].get('message')}"
            raise WaitError(awaited, text, CREATE_SECONDS, cause="launch.jobset_not_found") from None
        return str(jobsets[self.name]["metadata"]["uid"])

    def _pending(self, kube: Kube, job: Object, namespace: str) -> str | None:
        """Return the job's phase and message, or None if the job has a JobSet.

        Raises HarnessError if the controller refused the job, or if the API server rejects the queue's pods.
        """
        pending = _pending(job)
        if pending is not None:
            queue = kube.get(names.API, names.QUEUE_KIND, self._spec.queue_name, namespace)
            raise_if_rejected(queue or self._queue)
        return pending

    def cancel(self, surroundings: Surroundings) -> None:
        """Delete the job. The garbage collector deletes its JobSet and pods."""
        surroundings.kube.delete(names.API, names.JOB_KIND, self.name, surroundings.namespace)


class _Wrong(Exception):
    """Raised for a mistake in a TorchrunJob's manifest."""


def _valid(model: type[_Spec], document: Object) -> _Spec:
    try:
        return model.model_validate(document.get("spec"))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise _Wrong(f"{document['kind']} spec.{field}: {first['msg']}; found {first['input']!r}") from None


def _pending(job: Object) -> str | None:
    """Return the job's phase and message, or None if the job is queued or its JobSet has been created.

    Raises HarnessError if the job failed.
    """
    status = job.get("status") or {}
    if status.get("phase") == "Failed":
        raise HarnessError(
            f"the torchrun controller rejected the job: {status.get('message')}",
            hint="correct the manifest; the bundle's launch/manifest.yaml contains the objects as applied",
            cause="launch.rejected",
        )
    is_created = status.get("jobID") or status.get("phase") == "Queued"
    return None if is_created else f"{status.get('phase')}: {status.get('message')}"


def raise_if_rejected(queue: Object) -> None:
    """Raise HarnessError if the API server has rejected a TorchrunQueue's pods for a permanent reason."""
    checked = template_condition(queue)
    if checked is None or checked.status != "False" or not refusals.final(message := checked.message or ""):
        return
    cause: CauseId = "launch.rejected"
    hint = "correct the manifest; the bundle's launch/manifest.yaml contains the objects as applied"
    if refusals.rule_of(message) is not None:
        hint, cause = pod_admission.hint_for(message), "launch.pods_refused"
    raise HarnessError(f"TorchrunQueue {queue['metadata']['name']}: {message}", hint=hint, cause=cause)


def _image(context: RunContext) -> str:
    return build_controller(stack_of(context), context).tag
