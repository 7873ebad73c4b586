"""One launch, from a job file to a verdict: provision, launch, observe, collect, judge."""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from harness import provision
from harness.budget import Budget, Deadline
from harness.errors import HarnessError, UsageError, WaitError
from harness.evidence.reader import Bundle
from harness.evidence.redaction import Redactor
from harness.evidence.schema import Expected, Launch, Observation, Verdict
from harness.evidence.truth import TruthCollector
from harness.evidence.writer import BundleWriter, now
from harness.launch import Launching, prepare
from harness.launchers.job_file import JobFile
from harness.observe.ending import Ending
from harness.observe.logs import LogFollower
from harness.observe.watcher import Watcher
from harness.settings import Settings
from harness.tracker.run_id import check_run_id, make_run_id
from harness.verdict import judge

Progress = Callable[[str], None]
LOG_SECONDS = 50.0
"""For logs to be read to their end: longer than the grace that a pod gets to end (30 s)."""


@dataclass(frozen=True)
class Outcome:
    verdict: Verdict
    bundle: Path


def run(job: JobFile, settings: Settings, progress: Progress) -> Outcome:
    """Provision if needed, launch once, judge. Removes a cluster that it created, unless kept.

    Raises UsageError before anything is created; every later failure is a verdict.
    """
    _check(job, settings)
    with _signals_as_interrupt():
        writer = _new_bundle(settings)
        ready: provision.Ready | None = None
        try:
            ready = provision.up(settings, writer, progress)
            _launch(job, settings, ready, writer, progress)
        except (HarnessError, KeyboardInterrupt) as error:
            progress(f"stopped: {error or 'interrupted'}")
            if isinstance(error, UsageError):
                raise
        finally:
            if ready is not None and ready.created and not settings.keep_cluster:
                with writer.stage("delete cluster"):
                    progress(f"deleting cluster {ready.kind.name}")
                    provision.down(settings, progress)
        return finish(writer)


def launch(job: JobFile, settings: Settings, ready: provision.Ready, progress: Progress) -> Outcome:
    """Launch once on a cluster that is ready, and judge; the cluster stays. For fixtures."""
    _check(job, settings)
    writer = _new_bundle(settings)
    try:
        _launch(job, settings, ready, writer, progress)
    except HarnessError as error:
        progress(f"stopped: {error}")
    return finish(writer)


def up(settings: Settings, progress: Progress) -> provision.Ready:
    """A ready cluster that stays. What fails leaves a bundle, and no cluster that this call began."""
    with _signals_as_interrupt():
        writer = _new_bundle(settings)
        try:
            return provision.up(settings, writer, progress)
        except HarnessError as error:
            outcome = finish(writer)
            raise HarnessError(
                error.message, hint=f"{error.hint} · evidence: {outcome.bundle}", cause=error.cause
            ) from None


def finish(writer: BundleWriter) -> Outcome:
    """Judge what is in the bundle and write the verdict into it."""
    writer.update(ended_at=now())
    writer.close()
    verdict = judge(Bundle.open(writer.path))
    writer.verdict(verdict)
    return Outcome(verdict, writer.path)


def _check(job: JobFile, settings: Settings) -> None:
    """Everything that can be wrong before anything is created."""
    Budget(settings.wait_seconds)
    job.ranks  # noqa: B018 - raises UsageError
    if settings.pluto_run_id is not None:
        check_run_id(settings.pluto_run_id)
    if settings.tracker == "hosted" and settings.pluto_api_key is None:
        raise UsageError("--tracker hosted needs a key", hint="set PLUTO_API_KEY or PLUTO_API_TOKEN")


def _new_bundle(settings: Settings) -> BundleWriter:
    """A bundle whose redactor knows every secret of the settings."""
    key = settings.pluto_api_key
    redactor = Redactor([key.get_secret_value()] if key else [])
    writer = BundleWriter.create(settings.runs_dir, secrets.token_hex(4), redactor)
    writer.update(command=sys.argv, deadline_seconds=settings.wait_seconds)
    return writer


def _launch(
    job: JobFile, settings: Settings, ready: provision.Ready, writer: BundleWriter, progress: Progress
) -> None:
    """Launch, observe to the end, collect. Cleans up what belongs to the launch alone."""
    nonce = writer.current.nonce
    budget = Budget(settings.wait_seconds)
    run_id = settings.pluto_run_id or job.envs.get("PLUTO_RUN_ID") or make_run_id(nonce)
    check_run_id(run_id)
    expected = Expected(
        num_nodes=job.num_nodes,
        ranks=job.ranks,
        run_id=run_id,
        project=job.envs.get("PLUTO_PROJECT", settings.pluto_project),
        min_nodes_used=min(job.num_nodes, ready.schedulable_nodes),
        queue=job.queue,
    )
    writer.update(expected=expected, versions=ready.versions, cluster=_identity(ready))
    with ExitStack() as undo:
        with writer.stage("namespace"):
            launching = prepare(ready, job, settings, expected, nonce, budget, writer, progress)
            undo.callback(launching.clean)
        ending, truth = Ending(), TruthCollector(nonce)
        gaps: list[str] = []
        logs = LogFollower(ready.kube, _log_writer(writer, truth), gaps.append)

        def listener(kind: str, observation: Observation) -> None:
            ending.observe(kind, observation)
            logs.observe(kind, observation)

        watcher = Watcher(ready.kube, launching.namespace, writer.observe, listener, gaps.append)
        undo.callback(watcher.stop)
        watcher.start()
        try:
            with writer.stage("launch"):
                writer.update(
                    launched_at=now(),
                    launch=Launch(launcher="konduktor", namespace=launching.namespace, kind="JobSet"),
                )
                name = _submit(launching, writer)
                progress(f"launched {launching.namespace}/{name}, Pluto run id {run_id}")
            with writer.stage("observe"):
                _observe(ending, budget, writer, progress)
        finally:
            with writer.stage("collect"):
                _collect(launching, ending, watcher, logs, truth, gaps, writer)


def _identity(ready: provision.Ready) -> dict[str, str]:
    """Enough for somebody else's kubectl."""
    kind = ready.kind
    return {"name": kind.name, "context": kind.context, "kubeconfig": str(kind.kubeconfig)}


def _submit(launching: Launching, writer: BundleWriter) -> str:
    handle = launching.submit()
    launch = writer.current.launch
    assert launch is not None
    writer.update(launch=launch.model_copy(update={"object_name": handle.name, "uid": handle.uid}))
    return handle.name


def _observe(ending: Ending, budget: Budget, writer: BundleWriter, progress: Progress) -> None:
    """Until the launch is over, or its deadline has passed."""
    deadline = Deadline.after(budget.wait)
    seen = ""
    while (reason := ending.reason()) is None:
        if deadline.passed:
            writer.update(interrupted=f"deadline of {budget.wait:.0f} s; last seen: {ending.summary()}")
            raise WaitError("the launch to end", ending.summary(), budget.wait, cause="run.timed_out")
        if ending.summary() != seen:
            seen = ending.summary()
            progress(seen)
        ending.wait(min(1.0, deadline.left))
    progress(f"over: {reason}")


def _collect(
    launching: Launching,
    ending: Ending,
    watcher: Watcher,
    logs: LogFollower,
    truth: TruthCollector,
    gaps: list[str],
    writer: BundleWriter,
) -> None:
    """Logs to their end, ground truth out of them, and what the tracker has. Each also when another fails."""
    launching.end_if_running(ending)
    logs.finish(LOG_SECONDS)
    watcher.stop()
    for rank, lines in truth.result().items():
        for line in lines:
            writer.truth(rank, line)
    writer.update(log_gaps=sorted(set(gaps)))
    launching.collect_tracker()


def _log_writer(writer: BundleWriter, truth: TruthCollector) -> Callable[[str, str, str], None]:
    files: dict[tuple[str, str], Any] = {}

    def write(pod: str, container: str, text: str) -> None:
        if (pod, container) not in files:
            files[pod, container] = writer.log_file(pod, container)
        files[pod, container].write(text)
        for line in text.splitlines():
            truth.feed(line)

    return write


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: what was created is cleaned up."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        del frame
        raise KeyboardInterrupt(signal.Signals(signum).name)

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
