"""Stay attached to a job until it ends: send its code, show its logs, and send new code after edits.

Detaching never changes the job. New pods get the code that is stored in the cluster (stored_code.py).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.cli.torchrun.jobs import PROGRAM, Jobs, finished, phase, rank, reason, unobserved
from harness.cli.torchrun.stored_code import CodeStore, generation_of, is_stored, pack_code
from harness.core.errors import HarnessError, UsageError, WaitError
from harness.core.kubernetes import Object
from harness.core.progress import Progress
from harness.core.terminal_row import Row
from harness.core.terminal_text import Terminal, printable
from harness.torchrun_controller.api import names
from harness.torchrun_sync.channel import ContainerGone, Cut
from harness.torchrun_sync.ignored import OWN
from harness.torchrun_sync.job_sync import Fleet, Synced
from harness.torchrun_sync.pods import TRAINER, Target, target
from harness.torchrun_sync.selection import escaped_path
from harness.torchrun_sync.tree import Stamp, Walker

POLL_SECONDS = 0.5
PATIENCE_SECONDS = 60.0
"""The number of seconds for which a supervisor waits for new code after its command has failed. `sync
--watch` extends this time repeatedly."""
RENEW_SECONDS = 15.0
RETRY_SECONDS = 2.0
SETTLE_SECONDS = 10.0
"""The number of seconds after which a file that does not stop changing is reported."""
REPEAT_SECONDS, MANY_CHANGES = 20.0, 5
"""A file is also reported if it changes MANY_CHANGES times, each within REPEAT_SECONDS of the last time."""
NO_CODE = f"; a file that keeps changing is probably not code: add it to {OWN}"
CUT_SECONDS = 600.0
"""The number of seconds for which a failed sync is retried. The controller uses the same limit for pods that
wait for their code."""
STATUS_SECONDS = 5.0
"""The number of seconds after which a job without a status is assumed to have no controller."""
LOG_SECONDS = 10.0
"""The maximum number of seconds to wait for the remaining lines of each log after the job has ended."""
DETACHED = 130
"""The exit code after Ctrl-C, as in a shell. It does not mean that the job has failed."""


@dataclass
class Attached:
    """Follows a job until it ends.

    `walker` reads the folder with the job's code. If `walker` is None, no code is sent.
    """

    jobs: Jobs
    name: str
    walker: Walker | None
    progress: Progress
    watch: bool = False
    show_logs: bool = True
    uid: str = ""
    """The UID of the job. If it is empty, it is set when the job is first read."""
    _synced: frozenset[str] = frozenset()
    _fleet: Fleet | None = None
    _stamps: dict[str, Stamp | str] | None = None
    _renewed: float = 0.0
    _stored: int = 0
    """The latest generation of the code that this process stored in the cluster, or 0."""
    _log_threads: dict[str, threading.Thread] = field(default_factory=dict)
    _phase: str = ""
    _began: float = field(default_factory=time.monotonic)
    _cut_since: float | None = None
    _cut: str = ""
    _unobserved_since: float | None = None
    _folder_error: str = ""
    """The last reported reason why the folder cannot be sent."""
    _last_change: tuple[str, float, int] = ("", 0.0, 0)
    """The path that changed last, the time of its change, and the number of its changes in a row."""

    def follow(self) -> int:
        """Wait until the job ends, and return its exit code. Ctrl-C detaches without changing the job."""
        try:
            while True:
                try:
                    code = self._poll()
                except HarnessError as error:
                    if error.cause != "cluster.unreachable":
                        raise
                    self.progress(f"{error.message}; retrying while the job continues")
                    code = None
                if code is not None:
                    return code
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            self.progress(
                f"detached; {self.name} continues. To attach again: {PROGRAM} logs {self.name} --follow; "
                f"to send new code: {PROGRAM} sync {self.name}; to end it: {PROGRAM} delete {self.name}"
            )
            return DETACHED
        finally:
            if self._fleet is not None:
                self._fleet.close()

    def _poll(self) -> int | None:
        """Follow new logs and send new code. Return the exit code once the job has ended."""
        job = self.jobs.find(self.name)
        if job is None:
            raise HarnessError(f"TorchrunJob {self.name} was deleted")
        self._check_uid(job)
        self._report(job)
        pods = self.jobs.pods(self.name)
        self._follow_logs(pods)
        if finished(job):
            for thread in self._log_threads.values():
                thread.join(LOG_SECONDS)
            return self.jobs.exit_code(job)
        self._sync_new_pods(job, pods)
        return None

    def sync_code(self, seconds: float) -> None:
        """Send the code once, to the pods that run it or wait for it.

        Raises WaitError after `seconds`. If the job has no pods, the code is only stored in the cluster.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            job = self.jobs.get(self.name)
            self._check_uid(job)
            self._report(job)
            if finished(job):
                raise HarnessError(f"{self.name} has ended: {phase(job)} {reason(job)}")
            pods = self.jobs.pods(self.name)
            if not pods and self._store_next(job) and not self.jobs.pods(self.name):
                return
            targets = self._targets(job, pods)
            if targets and self._try_sync(job, targets):
                return
            time.sleep(POLL_SECONDS)
        raise WaitError(f"the pods of {self.name}", f"{phase(job)}: {reason(job)}", seconds)

    def _check_uid(self, job: Object) -> None:
        """Raise HarnessError if the job was deleted and another one of the same name was created.

        The other job's logs and exit code are not those of this job, and it must not get this job's code.
        """
        uid = str(job["metadata"]["uid"])
        self.uid = self.uid or uid
        if uid != self.uid:
            raise HarnessError(
                f"TorchrunJob {self.name} was deleted, and another TorchrunJob with this name was created"
            )

    def _report(self, job: Object) -> None:
        status = ": ".join(filter(None, [phase(job), reason(job)]))
        if not job.get("status") and time.monotonic() - self._began > STATUS_SECONDS:
            status += (
                f": no controller has set a status for {STATUS_SECONDS:g} s; "
                "check that a controller runs and watches this namespace"
            )
        self._unobserved_since = (self._unobserved_since or time.monotonic()) if unobserved(job) else None
        if self._unobserved_since and time.monotonic() - self._unobserved_since > STATUS_SECONDS:
            status += f": {unobserved(job)}"
        if status != self._phase:
            self._phase = status
            self.progress(f"{self.name} {status}")

    def _targets(self, job: Object, pods: Sequence[Object]) -> list[Target]:
        """Return the containers that receive code, one per pod. The list is empty if a pod or container is
        missing."""
        count = (job.get("status") or {}).get("numNodes")
        targets = [each for each in map(target, pods) if each]
        if is_stored(job):  # An init container fetches the stored code and exits.
            targets = [each for each in targets if each.container == TRAINER]
        return targets if count and len(targets) == count else []

    def _sync_new_pods(self, job: Object, pods: Sequence[Object]) -> None:
        """Send the code to new pods.

        With --watch, also send it after files have changed and are completely written.
        """
        if self.walker is None or names.WORKSPACE_ANNOTATION not in (
            job["metadata"].get("annotations") or {}
        ):
            return
        if is_stored(job) and not self.watch:
            return  # The pods run the submitted code. Later edits are sent only on request.
        targets = self._targets(job, pods)
        if not targets:
            return
        before = self._stamps
        if self.watch:
            stamps = self._read_stamps()
            if stamps is None:
                self._renew_in_time()
                return
            self._stamps = stamps
        new = frozenset(each.uid for each in targets) - self._synced
        # If a pod's init container received the code, the pod is not synced again when the trainer starts,
        # because the trainer already has that code.
        if new:
            self._try_sync(job, targets)
        elif self.watch and before != self._stamps:
            if before is not None and self._stamps is not None:
                self._count_changes(_changed_path(before, self._stamps))
            self._stamps_settled(job, targets)
        elif self.watch:
            self._renew_in_time()

    def _read_stamps(self) -> dict[str, Stamp | str] | None:
        """Return the sizes and times of the folder's files, or None if the folder cannot be sent now.

        Once code was sent, an error in the folder does not end the command, because the user is editing the
        folder: an ignore file may have an incomplete rule, or a link may lead out of the folder for a moment.
        """
        assert self.walker is not None
        try:
            stamps = self.walker.stamps()
        except UsageError as error:
            if not self._synced:
                raise
            self._report_folder(error)
            return None
        if stamps != self._stamps:
            self._folder_error = ""
        return stamps

    def _report_folder(self, error: HarnessError) -> None:
        """Report once that the folder cannot be sent."""
        text = f"{error.message}: {error.hint}" if error.hint else error.message
        if text != self._folder_error:
            self._folder_error = text
            self.progress(f"{text}; until then, the pods run the code from before")

    def _count_changes(self, path: str) -> None:
        """Report a path that changes again and again, because each change restarts the ranks."""
        now, (last_path, last, count) = time.monotonic(), self._last_change
        count = count + 1 if path == last_path and now - last < REPEAT_SECONDS else 1
        self._last_change = (path, now, count)
        if count == MANY_CHANGES:
            self.progress(f"{path} has changed {count} times, and each change restarts the ranks{NO_CODE}")

    def _stamps_settled(self, job: Object, targets: Sequence[Target]) -> None:
        """Send the code as soon as two successive polls find the files unchanged.

        An editor may write several files one after another, and so does git during a checkout or a rebase.
        """
        assert self.walker is not None
        since, reported = time.monotonic(), False
        while True:
            time.sleep(0.1)
            now = self._read_stamps()
            if now is None or (now == self._stamps and not self.walker.is_changing()):
                break
            if now != self._stamps and time.monotonic() - since > SETTLE_SECONDS and not reported:
                reported = True
                path = _changed_path(self._stamps or {}, now)
                self.progress(f"waiting, because {path} is written to again and again{NO_CODE}")
            self._stamps = now
        if now is None:
            self._stamps = None
            return
        if self._try_sync(job, targets) is None and not self._folder_error:
            self._stamps = None  # The next poll tries again.

    def _renew_in_time(self) -> None:
        if self._fleet is not None and time.monotonic() - self._renewed > RENEW_SECONDS:
            self._renew()

    def _renew(self) -> None:
        """Ask the supervisors in the pods to wait longer for new code.

        A pod that does not respond is only reported.
        """
        assert self._fleet is not None
        self._renewed = time.monotonic()
        try:
            self._fleet.patience(PATIENCE_SECONDS)
        except HarnessError as error:
            self.progress(f"a pod does not respond: {error.message}")

    def _store_next(self, job: Object) -> bool:
        """Store the folder's code in the cluster, for pods that start later. Return whether it was stored."""
        assert self.walker is not None
        generation = generation_of(job) + 1
        packed = pack_code(self.walker, generation)
        return CodeStore(self.jobs, self.progress).store(job, packed, generation, self.walker)

    def _store(self, job: Object, synced: Synced) -> None:
        """Store in the cluster the code that the pods are now running, for pods that start later."""
        assert self.walker is not None
        if (self._stored or generation_of(job)) == synced.generation:
            return
        packed = pack_code(self.walker, synced.generation)
        if packed.tree.digest != synced.tree:
            return  # A file has changed since the sync, so another sync follows.
        CodeStore(self.jobs, self.progress).store(job, packed, synced.generation, self.walker)
        self._stored = synced.generation

    def _try_sync(self, job: Object, targets: Sequence[Target]) -> Synced | None:
        """Send the code to the pods.

        Return None if a container is gone or cannot be reached, because pods can be replaced at any time.

        Raises HarnessError if a retry cannot help, or if the code could not be sent for CUT_SECONDS.
        """
        try:
            synced = self._sync(job, targets)
        except HarnessError as error:
            if self.watch and self._synced and isinstance(error, UsageError):
                self._report_folder(error)
                return None
            if not isinstance(error, ContainerGone | Cut) and not self._changed(targets):
                raise
            now = time.monotonic()
            self._cut_since = self._cut_since or now
            if now - self._cut_since > CUT_SECONDS:
                raise
            if error.message != self._cut:
                self._cut = error.message
                self.progress(f"{error.message}; retrying while the job continues")
            time.sleep(RETRY_SECONDS)
            return None
        self._cut_since, self._cut = None, ""
        return synced

    def _changed(self, targets: Sequence[Target]) -> bool:
        """Return whether the job has ended, or the containers that receive code are no longer `targets`."""
        job = self.jobs.find(self.name)
        return job is None or finished(job) or self._targets(job, self.jobs.pods(self.name)) != targets

    def _sync(self, job: Object, targets: Sequence[Target]) -> Synced:
        assert self.walker is not None
        if self._fleet is not None:
            self._fleet.close()
        kube, namespace = self.jobs.kube, self.jobs.namespace
        ready = (job["metadata"].get("annotations") or {}).get(names.WORKSPACE_ANNOTATION, "")
        connections = {each.pod: each.open(kube, namespace) for each in targets}
        self._fleet = Fleet(connections, progress=self.progress, ready=ready)
        start = time.monotonic()
        synced = self._fleet.sync(self.walker, PATIENCE_SECONDS if self.watch else 0)
        self._synced = frozenset(each.uid for each in targets)
        self._renewed = time.monotonic()
        self.progress(
            f"code {synced.tree[:12]} in {synced.pods} pods, generation {synced.generation}: "
            f"{synced.files} files, {synced.sent / 1e6:.1f} MB sent in {time.monotonic() - start:.1f} s; "
            f"{synced.restarted} restarted"
        )
        self._store(job, synced)
        for path in synced.skipped:
            self.progress(f"{path} was not sent, because it is not a file, folder or symbolic link")
        return synced

    def _follow_logs(self, pods: Sequence[Object]) -> None:
        """Start printing the log of each trainer container that has started."""
        for pod in pods if self.show_logs else ():
            uid = pod["metadata"]["uid"]
            statuses = (pod.get("status") or {}).get("containerStatuses") or []
            has_started = any(
                each["name"] == names.TRAINER and "waiting" not in each["state"] for each in statuses
            )
            if has_started and uid not in self._log_threads:
                thread = threading.Thread(target=show, args=(self.jobs, pod, True), daemon=True)
                self._log_threads[uid] = thread
                thread.start()


def _changed_path(before: Mapping[str, Stamp | str], after: Mapping[str, Stamp | str]) -> str:
    """Return a path whose stamp differs."""
    return escaped_path(min(path for path in {*before, *after} if before.get(path) != after.get(path)))


def show(jobs: Jobs, pod: Object, follow: bool) -> None:
    """Print a trainer container's log as a terminal would show it, each line with its pod's node rank.

    In the unprocessed log, a carriage return or a cursor movement would erase the node rank or other pods'
    lines.
    """
    query = {"container": names.TRAINER, **({"follow": "true"} if follow else {})}
    path = f"/api/v1/namespaces/{jobs.namespace}/pods/{pod['metadata']['name']}/log"
    terminal = Terminal[None](live=True)

    def write(rows: Iterator[Row[None]]) -> None:
        for row in rows:
            sys.stdout.write(printable(f"{rank(pod)} | {row.described}\n"))
            sys.stdout.flush()

    try:
        for line in jobs.kube.fetch(path, query):
            write(terminal.write(line.decode(errors="replace"), None))
        write(terminal.flush())
    except (ApiException, HTTPError) as error:
        write(terminal.flush())
        print(f"the log of {pod['metadata']['name']} ended: {type(error).__name__}", file=sys.stderr)
