"""Attach to a job that the harness did not launch: read it, optionally follow it to its end, and judge it.

Nothing is created, edited or deleted in the cluster. Without `probe`, only GET requests are sent. With
`probe`, a command also runs in each running container.
"""

from __future__ import annotations

import os
import secrets
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Thread

from harness.attach import follow, logged_rank_order, logs, rank_count, tracker
from harness.attach.api_reader import Reader
from harness.attach.job_lookup import Target, check, find
from harness.attach.rank_pods import AttachedJob, expected
from harness.attach.recorded_objects import Recording
from harness.attach.recorder_lines import RecordedLines, nonces
from harness.attach.resources import AROUND, POD, Resource
from harness.attach.tracker import TrackerOptions
from harness.context import RecordedContext, RunContext
from harness.core import processes, proxies, writable
from harness.core.clock import now
from harness.core.concurrency import run_all
from harness.core.errors import HarnessError, UsageError
from harness.core.kubeconfig import namespace_of
from harness.core.kubernetes import Kube
from harness.core.used_kubeconfigs import remember
from harness.evidence import torchrun_logs
from harness.evidence.io.reader import Bundle
from harness.evidence.io.redaction import Redactor
from harness.evidence.io.writer import BundleWriter, ProgressListener
from harness.evidence.kubernetes.objects import JOBSET_NAME, mapping
from harness.evidence.kubernetes.workload_pods import group_index
from harness.judge.case import OBSERVE_STAGE
from harness.observe import container_inspection
from harness.report.finalize import Outcome, finish, prepare_to_finish
from harness.settings import Settings, home


@dataclass(frozen=True)
class Options:
    """Options for attaching. By default, the job is read once."""

    namespace: str | None = None
    """The job's namespace. None means the namespace of the kubeconfig's current context."""
    wait: float = 0.0
    """Maximum time in seconds to wait for a job that does not exist yet."""
    follow: bool = False
    probe: bool = False
    tracker: TrackerOptions = field(default_factory=TrackerOptions)
    """The options that name the tracker and the job's run."""


def default_kubeconfig() -> Path:
    """Return the first existing file in $KUBECONFIG, or the default kubeconfig.

    kubectl merges all files listed in $KUBECONFIG. Use --kubeconfig to select another file in the list.
    """
    paths = [Path(each) for each in (os.environ.get("KUBECONFIG") or "").split(os.pathsep) if each]
    existing = [each for each in paths if each.is_file()]
    return next(iter([*existing, *paths]), home() / ".kube" / "config")


def cluster(settings: Settings) -> Kube:
    """Return a client for the cluster in the settings, or for the cluster that kubectl uses."""
    path = settings.kubeconfig or default_kubeconfig()
    digest = sha256(f"{path.absolute()} {settings.context}".encode()).hexdigest()[:12]
    return Kube(path, settings.context, settings.state_dir / "attach" / f"{digest}.json")


def attach(
    target: Target, options: Options, context: RunContext, listener: ProgressListener | None = None
) -> Outcome:
    """Read a job, follow it if requested, and judge it.

    Raises UsageError if the job does not exist, and HarnessError if it cannot be read. After the first
    successful read, every failure still results in a verdict.
    """
    check(target)
    options.tracker.check()
    writable.check(context.settings.runs_dir, "--runs-dir or HARNESS_RUNS_DIR")
    writable.check(context.settings.state_dir, "HARNESS_STATE_DIR")
    kube = cluster(context.settings)
    namespace = options.namespace or namespace_of(kube.kubeconfig, kube.context)
    reader = Reader(kube, namespace)
    with processes.signals_as_interrupt():
        Thread(target=prepare_to_finish, daemon=True).start()
        job = find(target, reader, options.wait, context.progress)
        context.progress(f"attaching to {job.resource.kind.kind} {job.name} in namespace {namespace}")
        recorded = _new_bundle(kube, job, context)
        recorded.writer.listener = listener
        try:
            with recorded.writer.stage(OBSERVE_STAGE):
                _observe(job, reader, options, recorded)
        except (Exception, KeyboardInterrupt) as error:
            _stopped(error, recorded)
        return finish(recorded)


def picture_now(bundle: Bundle, kube: Kube, context: RunContext, folder: Path) -> Bundle:
    """Create a bundle in `folder` with the current objects of a job that the harness attached to earlier.

    Raises UsageError if the job no longer exists, or if it was replaced by another job with the same name.
    """
    launch = bundle.manifest.launch if bundle.manifest else None
    assert launch is not None
    kind, name = launch.kind, launch.object_name or ""
    bare = kind == "Pod" and name not in launch.pods[0].names
    target = Target("" if bare else f"{kind.lower()}/{name}", name if bare else "", launch.container or None)
    reader = Reader(kube, launch.namespace)
    job = find(target, reader)
    if kind != "Pod" and job.uid != launch.uid:
        raise UsageError(
            f"the {kind} {name} recorded in {bundle.path} was deleted, and another {kind} with the same "
            "name exists now",
            hint=f"to attach to the new {kind}: harness attach {kind.lower()}/{name} -n {launch.namespace}",
        )
    settings = context.settings.model_copy(update={"runs_dir": folder})
    recorded = _new_bundle(kube, job, replace(context, settings=settings))
    _picture(job, reader, Recording(job, recorded.writer), recorded.writer)
    recorded.writer.close()
    return Bundle.open(recorded.writer.path)


def _new_bundle(kube: Kube, job: AttachedJob, context: RunContext) -> RecordedContext:
    settings = context.settings
    key = settings.pluto_api_key
    redactor = Redactor([*([key.get_secret_value()] if key else []), *proxies.secrets()])
    if kube.proxy is not None:
        redactor.add(kube.proxy.password)
    writer = BundleWriter.create(settings.runs_dir, secrets.token_hex(4), redactor)
    created = mapping(job.item, "metadata").get("creationTimestamp")
    remember(settings.state_dir, kube.kubeconfig)
    writer.update(
        command=sys.argv,
        job=job.name,
        launch=job.launch,
        expected=job.expected,
        launched_at=str(created) if created else None,
        cluster={"context": kube.context or "", "kubeconfig": str(kube.kubeconfig.absolute())},
    )
    return context.recorded(writer)


def _observe(job: AttachedJob, reader: Reader, options: Options, context: RecordedContext) -> None:
    """Record the job once or, with `follow`, until it has ended."""
    writer = context.writer
    lines = RecordedLines(writer)
    recording = Recording(job, writer)
    if options.follow:
        gaps = follow.until_the_end(job, reader, recording, lines, context)
    else:
        _picture(job, reader, recording, writer)
        lines.know(nonces(recording.pods.values(), job.uid))
        gaps = logs.read(reader, recording.pods.values(), job.launch.container, writer, lines.feed)
    writer.update(log_gaps=sorted(set(gaps)), unread=reader.unread)
    if options.probe:
        running = [pod for pod in recording.pods.values() if mapping(pod, "status").get("phase") == "Running"]
        inspect = partial(container_inspection.inspect_pods, container=job.launch.container)
        for snapshot in inspect(reader.kube, running, network=False):
            writer.inspection(snapshot.model_copy(update={"at_end": True}))
        for snapshot in inspect(reader.kube, running):
            writer.inspection(snapshot)
    frames = lines.write()
    if frames or lines.admitted:
        tracker.read(job, reader, list(recording.pods.values()), options.tracker, context)
    writer.close()
    _count_ranks(job, recording, writer)
    if frames:
        launch = writer.current.launch or job.launch
        writer.update(launch=launch.model_copy(update={"recorder": True, "processes": True}))
    if writer.full is not None:
        raise writer.full


def _picture(job: AttachedJob, reader: Reader, recording: Recording, writer: BundleWriter) -> None:
    """Record the current objects of the job and the related objects in the cluster."""
    if job.item is not None:
        recording.add(job.resource.kind.name, job.item)
    resources = [POD, *(each for each in AROUND if each is not job.resource)]

    def read(resource: Resource) -> list[tuple[str, dict[str, object]]]:
        labels = pod_labels(job) if resource is POD else ""
        return [(resource.kind.name, each) for each in reader.all(resource, labels, resource is POD)]

    lists = run_all([lambda resource=resource: read(resource) for resource in resources])  # type: ignore[misc]
    for kind, item in [entry for entries in lists for entry in entries]:
        recording.add(kind, item)
    if _changed(job, reader, recording):
        with suppress(HarnessError):  # If this fails, the pod states that were read earlier are used.
            for kind, item in read(POD):
                recording.add(kind, item)
    recording.flush()
    kinds = {each.kind.name for each in resources} | {job.resource.kind.name}
    writer.update(attached_at=now(), watched=sorted(kinds - reader.unread.keys() - reader.absent))


def _changed(job: AttachedJob, reader: Reader, recording: Recording) -> bool:
    """Read and record the job's object again, after its pods. Return whether the object's status has changed.

    If the job ended after its pods were read, its object shows why pods were deleted, and the recorded states
    of its pods may be outdated.
    """
    if job.item is None:
        return False
    with suppress(HarnessError):  # If this fails, the object's state that was read earlier is used.
        item = reader.get(job.resource, job.name, retry=False)
        if item is not None and mapping(item, "metadata").get("uid") == job.uid:
            recording.add(job.resource.kind.name, item)
            return mapping(item, "status") != mapping(job.item, "status")
    return False


def pod_labels(job: AttachedJob) -> str:
    """Return a selector that matches the job's pods, or "" if they can be identified only by their owners."""
    kind = job.resource.kind.kind
    if kind in ("JobSet", "TorchrunJob"):
        return f"{JOBSET_NAME}={job.name}"
    if kind == "Job":
        return f"job-name={job.name}"
    labels = job.groups[0].pods.labels if job.groups else {}
    return ",".join(f"{key}={value}" for key, value in labels.items() if key.endswith("job-name"))


def _count_ranks(job: AttachedJob, recording: Recording, writer: BundleWriter) -> None:
    """Update the expected ranks from the pod specs, and from the pods' logs if these show the ranks."""
    nodes, container = job.expected.num_nodes, job.launch.container
    with_rank = [pod for pod in recording.pods.values() if _has_rank(job, pod)]
    specs = [mapping(pod, "spec") for pod in with_rank]
    groups = [replace(group, template=spec) for group in job.groups[:1] for spec in specs] or list(job.groups)
    if job.resource.kind.kind == "MPIJob":  # An MPIJob's workers only run sshd, so their specs show no ranks.
        return
    counts = [rank_count.of_pod(group.template, container, nodes) for group in groups]
    bundle = Bundle.open(writer.path)
    logged, source = logged_rank_order.logged(bundle, container, torchrun_logs.logged), "torchrun's log"
    from_logs = rank_count.agreed(logged, nodes)
    if from_logs is None:
        own = nonces(recording.pods.values(), job.uid)
        logged, source = logged_rank_order.recorded(bundle, container, own), "the recorders' lines"
        from_logs = rank_count.agreed(logged, nodes, source)
    if from_logs is not None:
        counts = [from_logs]
    updated = expected(nodes, counts, job.item, groups, container)
    if (current := writer.current.expected) is not None:  # Keep the run that was found in the tracker.
        run = {"run_id": current.run_id, "project": current.project, "tracker_run": current.tracker_run}
        updated = updated.model_copy(update=run)
    if from_logs is not None:
        order = logged_rank_order.of_logs(logged, nodes, source)
    else:
        order = logged_rank_order.of_pods(bundle, with_rank, container, updated)
    if job.groups and (places := rank_count.whole_order(order.known, nodes)) is not None:
        names = {pod.name: places[i] for i, pods in bundle.pod_attempts().items() for pod in pods}
        groups_by_log = [job.groups[0].pods.model_copy(update={"names": names, "labels": {}, "owner": None})]
        launch = writer.current.launch or job.launch
        writer.update(launch=launch.model_copy(update={"pods": groups_by_log}))
    if order.contradiction:
        updated = updated.model_copy(update={"ranks_given": False, "ranks_from": order.contradiction})
    elif order.text:
        updated = updated.model_copy(update={"ranks_from": f"{updated.ranks_from}; {order.text}"})
    writer.update(expected=updated)


def _has_rank(job: AttachedJob, pod: dict[str, object]) -> bool:
    return job.resource.kind.kind == "DaemonSet" or group_index(job.launch.pods, pod) is not None


def _stopped(error: Exception | KeyboardInterrupt, context: RecordedContext) -> None:
    """Record why reading the job stopped early. The evidence collected so far is kept and judged."""
    writer = context.writer
    if isinstance(error, KeyboardInterrupt):
        name = str(error) or "SIGINT"
        context.progress(f"stopped by {name}; the evidence is kept")
        if writer.current.interrupted is None:
            writer.update(interrupted=name)
        return
    context.progress(f"stopped: {writer.redactor.text(str(error) or type(error).__name__)}")
    if not isinstance(error, HarnessError) and writer.full is None:
        with suppress(Exception):
            writer.text("harness-error.txt", "".join(traceback.format_exception(error)))
