"""One launch, from a job file to a verdict: provision, launch, observe, collect, judge."""

from __future__ import annotations

import secrets
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress

from harness.core import processes
from harness.core.clock import now
from harness.core.deadlines import Budget
from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import reached
from harness.evidence.listener import ProgressListener
from harness.evidence.redaction import Redactor
from harness.evidence.schema import Expected, Launch
from harness.evidence.writer import BundleWriter
from harness.launch.konduktor.config import users_config
from harness.launch.konduktor.job_file import JobFile
from harness.launch.namespaces import namespace_of
from harness.launch.prepare import Launching, prepare
from harness.observe.observer import LaunchObserver
from harness.provision import lifecycle
from harness.provision.existing import ExistingCluster
from harness.provision.images import scripts
from harness.provision.konduktor import konduktor_bin
from harness.provision.ready import Ready
from harness.report.finalize import Outcome, finish, tidy
from harness.settings import Settings
from harness.tracker.run_id import check_run_id, make_run_id

Progress = Callable[[str], None]


def run(
    job: JobFile, settings: Settings, progress: Progress, listener: ProgressListener | None = None
) -> Outcome:
    """Provision if needed, launch once, judge. Removes a cluster that it created, unless kept.

    Raises UsageError when nothing was created; every other failure, and an interruption, is a verdict.
    Afterwards, older bundles go as `keep_runs` says.
    """
    _check(job, settings)
    with processes.signals_as_interrupt():
        writer = _new_bundle(settings, job)
        writer.listener = listener
        ready = None
        try:
            ready = lifecycle.up(settings, writer, progress)
            _launch(job, settings, ready, writer, progress)
        except (Exception, KeyboardInterrupt) as error:
            _stopped(error, writer, progress)
            if isinstance(error, UsageError):
                finish(writer, progress)
                raise
        finally:
            _leave(settings, ready, writer, progress)
        outcome = finish(writer, progress)
        tidy(settings, progress, outcome.bundle)
        return outcome


def launch(job: JobFile, settings: Settings, ready: Ready, progress: Progress) -> Outcome:
    """Launch once on a cluster that is ready, and judge; the cluster stays. For fixtures."""
    _check(job, settings)
    writer = _new_bundle(settings, job)
    try:
        _launch(job, settings, ready, writer, progress)
    except (Exception, KeyboardInterrupt) as error:
        _stopped(error, writer, progress)
        if isinstance(error, KeyboardInterrupt):
            finish(writer, progress)
            raise
    return finish(writer, progress)


def up(settings: Settings, progress: Progress) -> Ready:
    """A ready cluster that stays. What fails leaves a bundle, and no cluster that this call began; what does
    not fail was no launch, and leaves none."""
    with processes.signals_as_interrupt():
        writer = _new_bundle(settings)
        try:
            ready = lifecycle.up(settings, writer, progress)
            writer.discard()
            return ready
        except (Exception, KeyboardInterrupt) as error:
            _stopped(error, writer, progress)
            _leave(settings, None, writer, progress)
            outcome = finish(writer, progress)
            if isinstance(error, HarnessError):
                error.hint = f"{error.hint} · evidence: {outcome.bundle}".removeprefix(" · ")
            raise


def _stopped(error: Exception | KeyboardInterrupt, writer: BundleWriter, progress: Progress) -> None:
    """Have in the manifest what ended the run early, also when it came between two stages."""
    if isinstance(error, KeyboardInterrupt):
        name = str(error) or "SIGINT"
        progress(f"stopped by {name}: cleaning up, the evidence is kept")
        if writer.current.interrupted is None:
            writer.update(interrupted=name)
        return
    progress(f"stopped: {writer.redactor.text(str(error) or type(error).__name__)}")
    if not isinstance(error, HarnessError) and writer.full is None:
        writer.text("harness-error.txt", "".join(traceback.format_exception(error)))
    if all(stage.ok for stage in writer.current.stages):
        with suppress(Exception), writer.stage("harness"):
            raise error


def _leave(settings: Settings, ready: Ready | None, writer: BundleWriter, progress: Progress) -> None:
    """Done with the cluster: the last one removes it, unless it is to be kept. Only a second interruption
    leaves it: its state then stays too, so that `harness down` finds it."""
    owner = writer.current.nonce
    if ready is not None:
        ready.use.release()
    if not lifecycle.removable(settings, ready, owner):
        return
    left = f"cluster {settings.cluster_name} is left: `harness down --cluster-name {settings.cluster_name}`"
    try:
        with writer.stage("delete cluster"):
            try:
                lifecycle.leave(settings, progress, ready, owner)
            except KeyboardInterrupt:
                progress("the cluster is being deleted; interrupt once more to leave it")
                lifecycle.leave(settings, progress, ready, owner)
    except KeyboardInterrupt as error:
        writer.update(interrupted=writer.current.interrupted or str(error) or "SIGINT")
        progress(left)
    except Exception as error:
        progress(f"{left} ({error})")


def _check(job: JobFile, settings: Settings) -> None:
    """Everything that can be wrong before anything is created."""
    if settings.kubeconfig is not None:
        ExistingCluster(settings)
    Budget(settings.wait_seconds)
    job.ranks  # noqa: B018 - raises UsageError
    users_config(settings.konduktor_config)
    scripts.users(settings)
    if (given := _given_run_id(job, settings)) is not None:
        check_run_id(given)
    if settings.tracker == "hosted" and settings.pluto_api_key is None:
        raise UsageError("--tracker hosted needs a key", hint="set PLUTO_API_KEY or PLUTO_API_TOKEN")


def _given_run_id(job: JobFile, settings: Settings) -> str | None:
    """The user's own: PLUTO_RUN_ID of the environment, or of the job file."""
    return settings.pluto_run_id or job.envs.get("PLUTO_RUN_ID") or None


def _new_bundle(settings: Settings, job: JobFile | None = None) -> BundleWriter:
    """A bundle whose redactor knows every secret of the settings. None: it is of no launch."""
    key = settings.pluto_api_key
    redactor = Redactor([key.get_secret_value()] if key else [])
    writer = BundleWriter.create(settings.runs_dir, secrets.token_hex(4), redactor)
    name = job.document["name"] if job else None
    writer.update(command=sys.argv, job=name, deadline_seconds=settings.wait_seconds)
    return writer


def _launch(job: JobFile, settings: Settings, ready: Ready, writer: BundleWriter, progress: Progress) -> None:
    """Launch, observe to the end, collect. Cleans up what belongs to the launch alone."""
    nonce = writer.current.nonce
    budget = Budget(settings.wait_seconds)
    run_id = _given_run_id(job, settings) or make_run_id(nonce)
    expected = Expected(
        num_nodes=job.num_nodes,
        ranks=job.ranks,
        run_id=run_id,
        project=job.envs.get("PLUTO_PROJECT", settings.pluto_project),
        min_nodes_used=min(job.num_nodes, ready.schedulable_nodes),
        queue=job.queue,
    )
    writer.update(expected=expected, versions=_versions(ready, job), cluster=_identity(ready))
    with ExitStack() as undo:
        with writer.stage("konduktor"):
            program = konduktor_bin(settings, progress)
        with writer.stage("namespace"), reached():
            progress(f"preparing namespace {namespace_of(nonce)}")
            launching = prepare(
                *(ready, program, job, settings, expected, nonce, budget, writer, progress, undo)
            )
            undo.callback(launching.clean)
            launch = Launch(launcher="konduktor", namespace=launching.namespace, kind="JobSet")
            writer.update(launch=launch)
            observer = LaunchObserver(ready.kube, launching.namespace, writer, budget)
            undo.callback(observer.stop)
        with writer.stage("watches"), reached():
            progress(f"watching namespace {launching.namespace}")
            observer.start()
        try:
            with writer.stage("launch"), observer.blamed():
                writer.update(launched_at=now())
                progress("konduktor launch")
                name = _submit(launching, writer)
                progress(f"launched {launching.namespace}/{name}, Pluto run id {run_id}")
            with writer.stage("observe"):
                observer.wait_for_completion(progress)
        finally:
            with writer.stage("collect"), observer.blamed():
                _collect(launching, observer, progress)


def _versions(ready: Ready, job: JobFile) -> dict[str, str]:
    """Of the stack, and of what the worker image was built from, where the job takes that one."""
    return {**ready.versions, **(ready.worker.made_of if job.takes_ours else {})}


def _identity(ready: Ready) -> dict[str, str]:
    """Enough for somebody else's kubectl."""
    there = ready.cluster
    return {"name": there.name, "context": there.context, "kubeconfig": str(there.kubeconfig)}


def _submit(launching: Launching, writer: BundleWriter) -> str:
    handle = launching.submit()
    launch = writer.current.launch
    assert launch is not None
    writer.update(launch=launch.model_copy(update={"object_name": handle.name, "uid": handle.uid}))
    return handle.name


def _collect(launching: Launching, observer: LaunchObserver, progress: Progress) -> None:
    """Logs to their end, ground truth out of them, and what the tracker has. Each also when another fails."""
    progress("collecting logs and what the tracker has")
    with ExitStack() as then:  # the last one first
        if observer.answered():
            then.callback(launching.collect_tracker)
            then.callback(observer.finish)
            if not observer.completion.finished():
                launching.cancel()
        else:
            progress("the API server does not answer: a job that still runs is ended by the next run")
            then.callback(launching.no_tracker, "not asked, the API server does not answer")
            then.callback(observer.finish)
