"""Run one launch, from a workload to a verdict: provision, launch, observe, collect and judge."""

from __future__ import annotations

import secrets
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from threading import Thread

from harness.context import RecordedContext, RunContext
from harness.core import processes, proxies, writable
from harness.core.clock import now
from harness.core.deadlines import Budget
from harness.core.errors import HarnessError, UsageError
from harness.core.progress import Progress
from harness.core.used_kubeconfigs import remember
from harness.evidence.io.redaction import Redactor
from harness.evidence.io.writer import BundleWriter, ProgressListener
from harness.launch import pod_standard, replaced_packages
from harness.launch.description import (
    check_ranks_that_log,
    expected_of,
    launch_of,
    user_run_id,
    versions_of,
)
from harness.launch.konduktor.job_file import JobFile
from harness.launch.konduktor.workload import as_workload
from harness.launch.namespaces import namespace_of
from harness.launch.prepare import prepare
from harness.launch.submission import Launching
from harness.launch.workloads.base import Workload
from harness.observe.control_plane import ControlPlane
from harness.observe.observer import LaunchObserver
from harness.provision import full_disk, preflight
from harness.provision.cluster import Cluster, Ready
from harness.provision.images import scripts
from harness.provision.kind.cluster import KindCluster
from harness.provision.lifecycle import ClusterUse, cluster_of
from harness.report.finalize import Outcome, finish, prepare_to_finish, tidy
from harness.settings import Settings
from harness.tracker.shared.run_id import check_run_id


def run(job: Workload | JobFile, context: RunContext, listener: ProgressListener | None = None) -> Outcome:
    """Provision a cluster if needed, launch the job once and judge it.

    Afterwards, delete a cluster that was created for this launch, unless it should be kept, and remove older
    bundles as specified by `keep_runs`. Raises UsageError if the job or the settings are invalid. Every other
    failure or interruption results in a verdict.
    """
    target_cluster, workload = cluster_of(context.settings), as_workload(job)
    _check(workload, context.settings)
    with processes.signals_as_interrupt():
        packages = replaced_packages.resolved(context)
        recorded = _new_bundle(context, workload)
        recorded.writer.listener = listener
        if context.settings.pluto_api_key is not None and context.settings.tracker == "embedded":
            context.progress(
                "an API key for hosted Pluto is set, but not used: to use hosted Pluto, use --tracker hosted"
            )
        use = ClusterUse(target_cluster, recorded)
        try:
            with workload.begun(recorded) as background_work:
                _launch(workload, packages.applied(use.up(), recorded), recorded, background_work)
        except (Exception, KeyboardInterrupt) as error:
            _stopped(error, recorded)
            if isinstance(error, UsageError):
                finish(recorded)
                raise
        finally:
            use.leave_recorded()
        outcome = _finish(target_cluster, recorded)
        tidy(context, outcome.bundle)
        return outcome


def launch(job: Workload | JobFile, context: RunContext, ready: Ready) -> Outcome:
    """Launch a job once on a ready cluster, and judge it. The cluster is kept.

    The pytest fixtures use this function.
    """
    workload = as_workload(job)
    _check(workload, context.settings)
    packages = replaced_packages.resolved(context)
    recorded = _new_bundle(context, workload)
    try:
        ready = packages.applied(ready, recorded)
        with workload.begun(recorded) as background_work:
            _launch(workload, ready, recorded, background_work)
    except (Exception, KeyboardInterrupt) as error:
        _stopped(error, recorded)
        if isinstance(error, KeyboardInterrupt):
            _finish(ready.cluster, recorded)
            raise
    return _finish(ready.cluster, recorded)


@contextmanager
def cluster(context: RunContext) -> Iterator[Ready]:
    """Yield a ready cluster. After the block, delete the cluster if no other process uses it.

    A cluster that should be kept is not deleted. When the cluster is ready, the bundle is discarded, because
    there was no launch. If it does not become ready, the bundle is kept, and a cluster created here is
    deleted. Signals interrupt the block in the same way as Ctrl-C.
    """
    target_cluster = cluster_of(context.settings)
    with processes.signals_as_interrupt():
        recorded = _new_bundle(context)
        use = ClusterUse(target_cluster, recorded)
        try:
            ready = use.up()
            recorded.writer.discard()
        except (Exception, KeyboardInterrupt) as error:
            _stopped(error, recorded)
            use.leave_recorded()
            outcome = finish(recorded)
            if isinstance(error, HarnessError):
                error.hint = f"{error.hint} · evidence: {outcome.bundle}".removeprefix(" · ")
            raise
        try:
            yield ready
        finally:
            use.leave()


def template(context: RunContext) -> dict[str, str]:
    """Return {"template": the image from which new clusters start}, or {} if templates are not used.

    If there is no template yet, a cluster is created, saved as the template, and deleted.
    """
    own = {"cluster_name": "harness-template", "keep_cluster": False, "kubeconfig": None, "api_port": 0}
    settings = context.settings.model_copy(update=own)
    context, kind = replace(context, settings=settings), KindCluster(settings)
    quiet_context = replace(context, progress=lambda _line: None)
    if kind.lacks_template(quiet_context):
        with cluster(context):
            pass
    current = kind.template(quiet_context)
    return {} if current is None else {"template": current.image}


def _finish(cluster: Cluster, context: RecordedContext) -> Outcome:
    """Judge the launch. At the same time, free the disk space that the launch occupies in the cluster.

    This is safe, because the bundle contains the evidence.
    """
    if context.writer.current.launch is None:
        return finish(context)
    with ThreadPoolExecutor(1) as pool:
        disk_cleanup = pool.submit(cluster.free_disk, namespace_of(context.nonce), context.progress)
        outcome = finish(context)
    if (error := disk_cleanup.exception()) is not None:
        context.progress(f"the disk space that the launch used could not be freed: {error}")
    return outcome


def _stopped(error: Exception | KeyboardInterrupt, context: RecordedContext) -> None:
    """Record in the manifest why the run ended early, even if it ended between two stages."""
    writer, progress = context.writer, context.progress
    if isinstance(error, KeyboardInterrupt):
        name = str(error) or "SIGINT"
        progress(f"stopped by {name}: cleaning up and keeping the evidence")
        if writer.current.interrupted is None:
            writer.update(interrupted=name)
        return
    progress(f"stopped: {writer.redactor.text(str(error) or type(error).__name__)}")
    if not isinstance(error, HarnessError) and writer.full is None:
        writer.text("harness-error.txt", "".join(traceback.format_exception(error)))
    if writer.full is not None or getattr(error, "cause", None) in full_disk.FULL:
        writer.update(disk=full_disk.largest(context.settings))
    if all(stage.ok for stage in writer.current.stages):
        with suppress(Exception), writer.stage("harness"):
            raise error


def _check(workload: Workload, settings: Settings) -> None:
    """Run every check that is possible before anything is created. Raises UsageError."""
    writable.check(settings.runs_dir, "--runs-dir or HARNESS_RUNS_DIR")
    writable.check(settings.cache_dir, "HARNESS_CACHE_DIR")
    writable.check(settings.state_dir, "HARNESS_STATE_DIR")
    Budget(settings.wait_seconds)
    workload.check(settings)
    pod_standard.check(workload, settings)
    scripts.users(settings)
    replaced_packages.check(workload, settings)
    check_ranks_that_log(workload, settings)
    if (run_id := user_run_id(workload, settings)) is not None:
        check_run_id(run_id)
    if settings.tracker == "hosted" and settings.pluto_api_key is None:
        raise UsageError("--tracker hosted needs an API key", hint="set PLUTO_API_KEY or PLUTO_API_TOKEN")


def _new_bundle(context: RunContext, workload: Workload | None = None) -> RecordedContext:
    """Return the context with a new bundle, in which secrets from the settings are redacted.

    Without `workload`, the bundle does not record a launch.
    """
    settings = context.settings
    key = settings.pluto_api_key
    redactor = Redactor([*([key.get_secret_value()] if key else []), *proxies.secrets()])
    writer = BundleWriter.create(settings.runs_dir, secrets.token_hex(4), redactor)
    name = workload.name if workload else None
    writer.update(command=sys.argv, job=name, deadline_seconds=settings.wait_seconds)
    return context.recorded(writer)


def _launch(workload: Workload, ready: Ready, context: RecordedContext, background_work: object) -> None:
    """Launch a workload, observe it until it ends, and collect evidence. Then clean up the workload's
    objects."""
    writer, progress, nonce = context.writer, context.progress, context.nonce
    budget = Budget(context.settings.wait_seconds)
    expected = expected_of(workload, ready, context)
    remember(context.settings.state_dir, ready.cluster.kubeconfig)
    writer.update(expected=expected, versions=versions_of(ready, workload), cluster=_identity(ready))
    writer.update(replaced=list(ready.replaced))
    with ExitStack() as undo:
        with writer.stage(workload.launcher):
            for image in workload.provide(context):
                ready.cluster.provide_image(image, context)
            workload.install(ready.kube, context)
        if not workload.uses_worker_image or workload.purpose == "nodes":
            with writer.stage("own image"):
                image = preflight.image(workload, ready.worker.tag)
                ready.cluster.provide_image(image, context, everywhere=workload.purpose == "nodes")
        namespace = namespace_of(nonce)
        launch = launch_of(workload, namespace, context)
        control_plane = ControlPlane(ready.cluster.deleted, ready.cluster.stopped)
        observer = LaunchObserver(ready.kube, launch, workload.watched, writer, budget, control_plane)

        def watch() -> None:
            undo.callback(observer.stop)
            progress(f"watching namespace {namespace}")
            observer.start()

        with writer.stage("namespace"), observer.blamed():
            progress(f"preparing namespace {namespace}")
            launching = prepare(
                workload,
                ready,
                context,
                expected=expected,
                budget=budget,
                undo=undo,
                background_work=background_work,
                on_namespace=watch,
            )
            undo.callback(launching.clean)
            writer.update(launch=launch)
        with writer.stage("watches"), observer.blamed():
            observer.listed()
        Thread(target=prepare_to_finish, daemon=True).start()
        interrupted = ranks_ended = False
        try:
            with writer.stage("launch"), observer.blamed():
                writer.update(launched_at=now())
                progress(f"{workload.launcher} launch")
                name = _submit(launching, writer)
                progress(f"launched {launching.namespace}/{name}, Pluto run id {expected.run_id}")
            with writer.stage("observe"):
                observer.wait_for_completion(progress)
            ranks_ended = True
        except KeyboardInterrupt:
            interrupted = True
            raise
        finally:
            # Ranks that never ran have no checkpoint, and ranks of an interrupted launch are still writing.
            if launch.training and not interrupted and observer.completion.ran() and observer.answered():
                _audit_training(launching, ranks_ended)
            with writer.stage("collect"), observer.blamed():
                _collect(launching, observer, progress)


def _identity(ready: Ready) -> dict[str, str]:
    """Return the kubeconfig and context that kubectl needs to reach the cluster."""
    target = ready.cluster
    return {"name": target.name, "context": target.context, "kubeconfig": str(target.kubeconfig)}


def _submit(launching: Launching, writer: BundleWriter) -> str:
    handle = launching.submit()
    launch = writer.current.launch
    assert launch is not None
    writer.update(launch=launch.model_copy(update={"object_name": handle.name, "uid": handle.uid}))
    return handle.name


def _audit_training(launching: Launching, ranks_ended: bool) -> None:
    """Audit the files that a training wrote, and upload them if --upload is set.

    `ranks_ended` is true if all ranks have ended.
    """
    writer = launching.writer
    with writer.stage("audit"):
        launching.audit(launching.surroundings.context.progress)
    if writer.current.launch is not None and writer.current.launch.upload is not None:
        with writer.stage("upload"):
            launching.upload(ranks_ended)


def _collect(launching: Launching, observer: LaunchObserver, progress: Progress) -> None:
    """Collect logs, ground truth and the tracker's rows. If one step fails, the others still run."""
    progress("collecting logs and the tracker's rows")
    with ExitStack() as callbacks:  # The callbacks run in reverse order.
        if observer.answered():
            callbacks.callback(launching.collect_tracker)
            callbacks.callback(observer.finish)
            observer.record_device_holders()  # This must happen before the workload is deleted.
            if not observer.completion.finished():
                launching.cancel()
        else:
            progress(
                "the API server does not respond; if the job is still running, the next run will delete it"
            )
            callbacks.callback(launching.no_tracker, "not requested, because the API server does not respond")
            callbacks.callback(observer.finish)
