"""Find the job that the user named as KIND/NAME, as NAME, or by a label selector for bare pods."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from harness.attach.api_reader import Forbidden, Reader
from harness.attach.rank_pods import AttachedJob, NoPodsError, describe, owners
from harness.attach.resources import (
    EVENT,
    JOBSET,
    MPI_JOB,
    MPI_JOB_V1,
    NAMESPACE,
    POD,
    PYTORCH_JOB,
    TARGETS,
    TORCHRUN_JOB,
    TRAIN_JOB,
    Resource,
    target_of,
)
from harness.core.clock import seconds
from harness.core.deadlines import Deadline
from harness.core.errors import UsageError
from harness.core.kubernetes import Object
from harness.evidence.kubernetes.objects import JOBSET_NAME, items, mapping

AGAIN_SECONDS = 1.0
"""Interval, in seconds, at which a job that does not exist yet is looked up again."""
SETTLE_SECONDS = 3.0
"""Time, in seconds, to wait after the first bare pod appears, so that the job's other pods can be created."""
KINDS = ", ".join(each.kind.kind for each in TARGETS)
KONDUKTOR = "trainy.ai/job-name"
"""Label that konduktor sets on its JobSets."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
"""Pattern for a valid object name (RFC 1123). Any other text could change the path or the query of the
request."""
_SUFFIX = "-[0-9a-f]{4}"
"""Pattern for the suffix that konduktor appends to the name in the job file to form the JobSet's name."""


@dataclass(frozen=True)
class Target:
    """The user's description of the job: either `word` (KIND/NAME or NAME) or `selector`."""

    word: str = ""
    selector: str = ""
    container: str | None = None

    def __str__(self) -> str:
        return self.word or f"pods with {self.selector}"


def check(target: Target) -> None:
    """Raise UsageError unless the target names exactly one job and uses only names that Kubernetes allows."""
    if bool(target.word) == bool(target.selector):
        raise UsageError(
            "expected either KIND/NAME or -l SELECTOR",
            hint="for example: harness attach job/train -n team-a, or harness attach -l app=train",
        )
    kind, slash, name = target.word.partition("/")
    if slash and (not name or "/" in name):
        raise UsageError(f"expected KIND/NAME, found {target.word}", hint="for example: jobset/train")
    own = name if slash else kind
    if target.word and not _NAME.fullmatch(own):
        raise UsageError(
            f"a job name can contain only lower-case letters, digits, - and .; found {own!r}",
            hint="list the names with `kubectl get jobs,jobsets,statefulsets`",
        )
    if slash and target_of(kind) is None:
        raise UsageError(f"cannot attach to the kind {kind}", hint=f"use one of these kinds: {KINDS}")


def find(
    target: Target, reader: Reader, wait: float = 0.0, progress: Callable[[str], None] | None = None
) -> AttachedJob:
    """Return the job. If it does not exist or has no pods, retry for `wait` seconds.

    For a konduktor job, the name may be the one in its job file. While waiting for such a job, this function
    ignores JobSets that have ended, because they belong to earlier launches.

    Raises UsageError if the job does not exist or if the target matches several jobs, and HarnessError if the
    job cannot be read.
    """
    check(target)
    if not _NAME.fullmatch(reader.namespace):
        raise UsageError(
            f"a namespace name can contain only lower-case letters, digits and -; found {reader.namespace!r}"
        )
    deadline, reported = Deadline.after(wait), False
    while True:
        try:
            if not target.selector:
                return _by_name(target, reader, waiting=not deadline.passed)
            job = _by_selector(target, reader)
            if reported:  # Some of the job's pods may not have been created yet.
                time.sleep(SETTLE_SECONDS)
                job = _by_selector(target, reader)
            return job
        except (_Absent, NoPodsError) as error:
            if deadline.passed:
                raise UsageError(error.message, hint=error.hint) from None
            if progress is not None and not reported:
                progress(f"{error.message}: waiting for it")
            reported = True
            time.sleep(min(AGAIN_SECONDS, deadline.remaining))


class _Absent(UsageError):
    """Raised if the job does not exist. It may have been deleted, or it may be created later."""


def _by_selector(target: Target, reader: Reader) -> AttachedJob:
    pods = reader.all(POD, target.selector, needed=True)
    if not pods:
        raise _Absent(
            f"no pod in namespace {reader.namespace} has the labels {target.selector}",
            hint=_no_namespace(reader) or _LABELS,
        )
    jobs = {_controller(pod) for pod in pods}
    if len(jobs) > 1:
        raise UsageError(
            f"the selector {target.selector} matches pods of {len(jobs)} jobs: {', '.join(sorted(jobs))}",
            hint="name one job as KIND/NAME, or use a selector that matches the pods of only one job",
        )
    return describe(POD, reader.namespace, target.selector, None, pods, container=target.container)


_LABELS = "check the pods' labels with `kubectl get pods --show-labels`"


def _controller(pod: Object) -> str:
    own = next((each for each in items(pod, "metadata", "ownerReferences") if each.get("controller")), None)
    return f"{own.get('kind')}/{own.get('name')}" if own else "no controller"


def _by_name(target: Target, reader: Reader, waiting: bool) -> AttachedJob:
    kind, slash, name = target.word.partition("/")
    resource = target_of(kind) if slash else None
    if resource is not None:
        return _by_kind(resource, name, target, reader, waiting)
    resources: list[Resource] = []
    forbidden: Forbidden | None = None
    for each in TARGETS:
        if each in (POD, TRAIN_JOB):  # A TrainJob has a JobSet of the same name.
            continue
        try:
            resources += [each] if _served(each, target.word, reader)[1] is not None else []
        except Forbidden as error:
            forbidden = error
    if TORCHRUN_JOB in resources and JOBSET in resources:
        resources.remove(JOBSET)  # The JobSet belongs to the TorchrunJob.
    if len(resources) > 1:
        kinds = ", ".join(f"{each.kind.kind.lower()}/{target.word}" for each in resources)
        raise UsageError(
            f"{len(resources)} jobs in namespace {reader.namespace} are named {target.word}: {kinds}",
            hint="add the kind, as in KIND/NAME",
        )
    if not resources:
        if (jobset := _of_konduktor(target.word, reader, waiting)) is not None:
            return _described(JOBSET, jobset, target, reader)
        if forbidden is not None:
            raise forbidden
        raise _Absent(
            f"there is no job {target.word} in namespace {reader.namespace}",
            hint=_no_namespace(reader) or f"kinds: {KINDS}",
        )
    return _by_kind(resources[0], target.word, target, reader, waiting)


def _of_konduktor(name: str, reader: Reader, waiting: bool) -> Object | None:
    """Return the JobSet of the konduktor job that has this name in its job file, or None if there is none.

    With `waiting`, JobSets that have ended are ignored. Raises UsageError if several JobSets match.
    """
    jobsets = [
        each
        for each in reader.all(JOBSET, KONDUKTOR)
        if re.fullmatch(re.escape(name) + _SUFFIX, str(mapping(each, "metadata").get("name")))
    ]
    if waiting:
        jobsets = [each for each in jobsets if not mapping(each, "status").get("terminalState")]
    if len(jobsets) > 1:
        newest = sorted(jobsets, key=lambda each: str(mapping(each, "metadata").get("creationTimestamp")))
        names = [f"{mapping(each, 'metadata').get('name')} ({_state(each)})" for each in reversed(newest)]
        raise UsageError(
            f"konduktor launched {len(jobsets)} jobs named {name} in namespace {reader.namespace}",
            hint=f"name one of these JobSets (newest first): {', '.join(names[:5])}",
        )
    return jobsets[0] if jobsets else None


def _state(jobset: Object) -> str:
    return str(mapping(jobset, "status").get("terminalState") or "not ended")


def _described(resource: Resource, item: Object, target: Target, reader: Reader) -> AttachedJob:
    name = str(mapping(item, "metadata").get("name"))
    return describe(resource, reader.namespace, name, item, [], container=target.container)


def _by_kind(resource: Resource, name: str, target: Target, reader: Reader, waiting: bool) -> AttachedJob:
    pods = list[Object]()
    if resource in (PYTORCH_JOB, MPI_JOB):
        return _of_kubeflow(resource, name, target, reader)
    item = reader.get(resource, name)
    if (
        resource is JOBSET
        and item is None
        and (jobset_item := _of_konduktor(name, reader, waiting)) is not None
    ):
        return _described(JOBSET, jobset_item, target, reader)
    if item is None:
        raise _missing(resource, name, reader)
    if resource in (TRAIN_JOB, TORCHRUN_JOB):  # The JobSet has the same name as its TrainJob or TorchrunJob.
        jobset = reader.get(JOBSET, name)
        if jobset is not None:
            _check_owner(resource, item, jobset)
            resource, item = JOBSET, jobset
        elif resource is TRAIN_JOB:
            raise _without_jobset(resource, item, reader)
    if resource is POD:
        return describe(POD, reader.namespace, name, None, [item], container=target.container)
    if resource is TORCHRUN_JOB:
        pods = reader.all(POD, f"{JOBSET_NAME}={name}", needed=True)
        if not pods:
            raise _without_jobset(resource, item, reader)
    elif resource.kind.kind == "DaemonSet":
        uid = str(mapping(item, "metadata").get("uid"))
        pods = [pod for pod in reader.all(POD, needed=True) if uid in owners(pod)]
    return describe(resource, reader.namespace, name, item, pods, container=target.container)


def _check_owner(resource: Resource, job: Object, jobset: Object) -> None:
    """Raise UsageError if the JobSet with the name of a job does not show how the job ended.

    The JobSet may not belong to the job, or may have been created after the job ended. Kubeflow Trainer
    creates a new JobSet when the JobSet of a finished TrainJob is deleted (kubeflow/trainer#2981).
    """
    name, kind = mapping(job, "metadata").get("name"), resource.kind.kind
    instead = f"to judge only the JobSet: `harness attach jobset/{name}`"
    if mapping(job, "metadata").get("uid") not in owners(jobset):
        raise UsageError(f"JobSet {name} does not belong to the {kind} with the same name", hint=instead)
    created = seconds(mapping(jobset, "metadata").get("creationTimestamp"))
    for each in items(job, "status", "conditions") if resource is TRAIN_JOB else ():
        at = seconds(each.get("lastTransitionTime"))
        state, true = each.get("type"), each.get("status") == "True"
        if (
            state in ("Complete", "Failed")
            and true
            and at is not None
            and created is not None
            and created > at
        ):
            raise UsageError(
                f"the pods in which {kind} {name} ran no longer exist: its current JobSet was created "
                f"after the {kind} became {state}",
                hint=instead,
            )


def _without_jobset(resource: Resource, job: Object, reader: Reader) -> _Absent:
    """Return the error for a job whose controller has not created the JobSet, or has deleted it.

    The error's hint contains the job's conditions and its last Event, because some reasons are reported only
    in an Event (kubeflow/trainer#3671).
    """
    metadata = mapping(job, "metadata")
    messages = [
        f"{each.get('type')} is {each.get('status')} ({each.get('reason')}: {each.get('message')})"
        for each in items(job, "status", "conditions")
    ]
    messages += [
        f"Event {each.get('reason')}: {each.get('message')}"
        for each in reader.all(EVENT)
        if mapping(each, "involvedObject").get("uid") == metadata.get("uid")
    ][-1:]
    return _Absent(
        f"{resource.kind.kind} {metadata.get('name')} has no JobSet, so it has no pods",
        hint="; ".join(messages)
        or "it has no conditions and no Events; check that its controller is running",
    )


def _missing(resource: Resource, name: str, reader: Reader) -> UsageError:
    existing = sorted(str(mapping(each, "metadata").get("name")) for each in reader.all(resource))
    names = ", ".join(existing[:5]) + (f" and {len(existing) - 5} more" if len(existing) > 5 else "")
    kind = resource.kind.kind
    if resource.kind.name in reader.absent:
        return _Absent(
            f"the cluster has no {kind} {name}, because the API server does not serve the kind {kind}"
        )
    hint = f"existing {kind}s: {names or 'none'}"
    if label := _POD_LABELS.get(kind):
        pods = reader.all(POD, f"{label}={name}")
        hint = f"its pods still exist; to judge them: `harness attach -l {label}={name}`" if pods else hint
    if resource in (TRAIN_JOB, TORCHRUN_JOB) and reader.get(JOBSET, name) is not None:
        hint = f"there is a JobSet {name}; to judge it: `harness attach jobset/{name}`"
    hint = _no_namespace(reader) or hint
    return _Absent(f"there is no {kind} {name} in namespace {reader.namespace}", hint=hint)


def _no_namespace(reader: Reader) -> str:
    """Return a hint if the namespace does not exist, otherwise ""."""
    try:
        namespace = reader.get(NAMESPACE, reader.namespace)
    except Forbidden:
        return ""
    return "" if namespace else f"namespace {reader.namespace} does not exist; choose another one with -n"


_POD_LABELS = {"Job": "job-name", "JobSet": JOBSET_NAME}
"""Pod labels that contain the name of the pod's Job or JobSet. The pods keep these labels if the Job or
JobSet is deleted with --cascade=orphan."""


def _served(resource: Resource, name: str, reader: Reader) -> tuple[Resource, Object | None]:
    """Return a resource and its object of this name. The object is None if it does not exist.

    For MPI_JOB, the returned resource is MPI_JOB_V1 if the object exists only in that API version.
    """
    item = reader.get(resource, name)
    if item is None and resource is MPI_JOB and (older := reader.get(MPI_JOB_V1, name)) is not None:
        return MPI_JOB_V1, older
    return resource, item


def _of_kubeflow(resource: Resource, name: str, target: Target, reader: Reader) -> AttachedJob:
    """Return the description of a PyTorchJob or MPIJob.

    The job's pods are found by their labels, because the user may not be allowed to read the job's object.
    """
    try:
        resource, item = _served(resource, name, reader)
    except Forbidden as error:
        reader.unread[resource.kind.name] = error.message
        item = None
    pods = reader.all(POD, f"training.kubeflow.org/job-name={name}", needed=True)
    if item is None and not pods:
        raise _missing(resource, name, reader)
    return describe(resource, reader.namespace, name, item, pods, container=target.container)
