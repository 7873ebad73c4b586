"""Sees one launch: objects, logs, ground truth, and whether the API server answers; all of it evidence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from harness.core.deadlines import Budget, Deadline
from harness.core.errors import HarnessError, WaitError
from harness.core.kubernetes import Kube, reached
from harness.core.progress import Progress
from harness.evidence.schema import Observation
from harness.evidence.truth import TruthCollector
from harness.evidence.writer import BundleWriter
from harness.observe.completion import CompletionDetector
from harness.observe.heartbeat import Heartbeat
from harness.observe.logs import LogFollower
from harness.observe.rendezvous import RendezvousMonitor
from harness.observe.watcher import Watcher
from harness.workers.truth_frames import MARK

LOG_SECONDS = 50.0
"""For logs to be read to their end: longer than the grace that a pod gets to end (30 s)."""
GONE_SECONDS = 45.0
"""An API server that restarts or is cut off for a moment is back by then; the job goes on without it."""
SHOWN_BYTES = 64 * 1024
"""Of one read, for a listener: nobody reads a flood as it comes."""
UNREACHABLE = "cluster.unreachable"


class LaunchObserver:
    """`start`, `wait_for_completion`, `finish`; then `stop`, always."""

    def __init__(self, kube: Kube, namespace: str, writer: BundleWriter, budget: Budget) -> None:
        self.completion = CompletionDetector(admission_seconds=budget.admission)
        expected = writer.current.expected
        self._rendezvous = RendezvousMonitor(
            kube, expected.num_nodes if expected else 1, budget.rendezvous, writer.inspection
        )
        self._wait = budget.wait
        self._writer = writer
        self._truth = TruthCollector(writer.current.nonce)
        self._gaps: list[str] = []
        self._watched_again: list[str] = []
        self._files: dict[tuple[str, str], Any] = {}
        self._heartbeat = Heartbeat(kube, self._silence)
        self._logs = LogFollower(kube, self._log, self._gaps.append)
        self._watcher = Watcher(kube, namespace, self._state, self._seen, self._watched_again.append)

    def start(self) -> None:
        """Returns when everything was listed once, so that nothing can happen unseen from here on."""
        self._heartbeat.start()
        self._watcher.start()

    def wait_for_completion(self, progress: Progress) -> None:
        """Until the launch is over, or nothing can be known of it any more.

        Raises HarnessError: run.timed_out, cluster.unreachable, run.evidence_disk_full.
        """
        deadline = Deadline.after(self._wait)
        seen = ""
        while (reason := self.completion.reason() or self._rendezvous.reason()) is None:
            if self._writer.full is not None:
                raise self._writer.full
            silent = self._heartbeat.silent
            if silent > GONE_SECONDS or (deadline.passed and silent):
                raise self._unreachable()
            if deadline.passed:
                last = self.completion.summary()
                self._writer.update(interrupted=f"deadline of {self._wait:.0f} s; last seen: {last}")
                raise WaitError("the launch to end", last, self._wait, cause="run.timed_out")
            if self.completion.summary() != seen:
                seen = self.completion.summary()
                progress(seen)
            self.completion.wait(min(1.0, deadline.left))
        progress(f"over: {reason}")

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What fails in the block while the API server does not answer, fails because of that."""
        try:
            with reached():
                yield
        except HarnessError as error:
            if error.cause != UNREACHABLE and self._heartbeat.silent and self._writer.full is None:
                raise self._unreachable() from error
            raise

    def answered(self) -> bool:
        """Whether the API server answers now."""
        return self._heartbeat.ask()

    def finish(self) -> None:
        """Logs to their end, or to where they can be read, and the ground truth out of them."""
        lost = self.completion.out_of_reach()
        self._logs.finish(0 if self._heartbeat.silent else LOG_SECONDS, lost)
        self.stop()
        for rank, lines in self._truth.result().items():
            for line in lines:
                self._writer.truth(rank, line)
        self._writer.update(log_gaps=sorted(set(self._gaps)))
        for text in sorted(set(self._watched_again)):
            self._writer.retry("a watch", text)

    def stop(self) -> None:
        """Stopping twice is fine."""
        self._watcher.stop()
        self._heartbeat.stop()

    def _unreachable(self) -> WaitError:
        return WaitError(
            "the API server to answer",
            f"nothing; before that {self.completion.summary()}",
            self._heartbeat.silent,
            hint="the job may be fine: `kubectl get jobset -A` when the API server is back",
            cause=UNREACHABLE,
        )

    # -- told by other threads: the first write that fails is kept by the writer, and ends the wait ----------
    def _state(self, kind: str, observation: Observation) -> None:
        with suppress(HarnessError):
            self._writer.observe(kind, observation)

    def _seen(self, kind: str, observation: Observation) -> None:
        self.completion.observe(kind, observation)
        self._rendezvous.observe(kind, observation)
        self._logs.observe(kind, observation)

    def _log(self, pod: str, container: str, text: str) -> None:
        with suppress(HarnessError):
            if (pod, container) not in self._files:
                self._files[pod, container] = self._writer.log_file(pod, container)
            self._files[pod, container].write(text)
        if MARK in text:
            for line in text.splitlines():
                self._truth.feed(line)
        if self._writer.listener is not None:
            self._writer.listener.logged(pod, self._writer.redactor.text(text[-SHOWN_BYTES:]))

    def _silence(self, text: str) -> None:
        """A watch may have died without a word meanwhile."""
        self._writer.retry("the API server", text)
        self._watcher.resume()
