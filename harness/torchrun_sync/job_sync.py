"""Sync one tree into all of a job's pods, and switch all pods to it in one generation.

First, each pod stages the new tree next to the current one. After every pod has confirmed the digest, the
commands are stopped in all pods. Only then do the pods switch to the new tree and start the commands, so that
ranks with different code never communicate. Pods that share a volume receive the tree once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from harness.core.errors import HarnessError
from harness.core.progress import Progress
from harness.torchrun_sync.channel import Open, PodRefused
from harness.torchrun_sync.ignored import OWN
from harness.torchrun_sync.sender import Changed, Limits, Sender, State
from harness.torchrun_sync.tree import Tree, Walker

MAX_SCANS = 5
STOPPING_SECONDS = 60.0
"""During a switch, a failed command does not end its pod for this number of seconds. The commands in the pods
do not stop at the same moment, so a rank may fail because another rank has already stopped."""
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Synced:
    """The result of a sync. `seconds` maps each phase to the time at which the phase ended, in seconds since
    the sync started."""

    tree: str
    generation: int
    pods: int
    restarted: int
    """The number of pods whose command was started or restarted."""
    unsupervised: int
    """The number of pods whose command was not restarted, because the pod has no supervisor."""
    files: int
    sent: int
    """The number of bytes of file content that were sent. `files` and `sent` are totals over all pods."""
    reconnects: int
    skipped: tuple[str, ...]
    seconds: dict[str, float] = field(default_factory=dict)


class Fleet:
    """The pods of one job, with a sender for each.

    A connection to a pod stays open between syncs until the pod closes it.
    """

    def __init__(
        self,
        pods: Mapping[str, Open],
        limits: Limits | None = None,
        progress: Progress = lambda _: None,
        ready: str = "",
    ) -> None:
        """Create a sender for each pod.

        `ready` is the string that init containers wait for. The default is the tree's digest.
        """
        self._senders = {name: Sender(name, pods[name], limits or Limits()) for name in sorted(pods)}
        self._progress, self._ready = progress, ready

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()

    def sync(self, walker: Walker, patience: float = 0, generation: int | None = None) -> Synced:
        """Sync the folder into all pods. Pods that already run the folder's content are not changed.

        If a command fails within `patience` seconds after this sync, its pod waits for another sync for the
        rest of this time. `generation` is the generation to run. By default, the generation is computed from
        the states of the pods. Raises HarnessError if the sync fails.
        """
        start = time.monotonic()
        seconds: dict[str, float] = {}

        def passed(phase: str) -> None:
            seconds[phase] = round(time.monotonic() - start, 3)

        before = [(s.files, s.sent, s.reconnects) for s in self._senders.values()]
        states = self._each(list(self._senders), lambda sender: sender.state())
        passed("asked")
        tree = self._staged(walker, states)
        passed("staged")
        generation = generation or _generation(states, tree.digest)
        outdated = [name for name, state in states.items() if not _runs(state, tree.digest, generation)]
        if outdated:
            self._switch(tree.digest, generation, outdated, states, patience)
        passed("switched")
        after = [(s.files, s.sent, s.reconnects) for s in self._senders.values()]
        files, sent, reconnects = (
            sum(new[i] - old[i] for new, old in zip(after, before, strict=True)) for i in range(3)
        )
        return Synced(
            tree=tree.digest,
            generation=generation,
            pods=len(states),
            restarted=sum(states[name].supervised for name in outdated),
            unsupervised=sum(not state.supervised for state in states.values()),
            files=files,
            sent=sent,
            reconnects=reconnects,
            skipped=tree.skipped,
            seconds=seconds,
        )

    def patience(self, seconds: float) -> dict[str, str]:
        """Let a failed command wait for new code during the next `seconds` seconds.

        Return the states of the supervisors, keyed by pod.
        """
        statuses = self._each(list(self._senders), lambda sender: sender.patience(seconds))
        return {name: str(status.get("state", "")) for name, status in statuses.items()}

    def _staged(self, walker: Walker, states: Mapping[str, State]) -> Tree:
        """Scan the folder and stage its tree in each store.

        If a file changes while it is read, scan the folder again.
        """
        changed = ""
        for _ in range(MAX_SCANS):
            tree = walker.scan()
            try:
                staged = self._each(_writers(states, tree.digest), partial(Sender.send, tree=tree))
            except Changed as change:
                changed = change.path
                self._progress(f"{changed} was written to while it was being read; scanning the folder again")
                continue
            if mismatches := {name: digest for name, digest in staged.items() if digest != tree.digest}:
                raise PodRefused(f"expected the tree {tree.digest} in every pod, found {mismatches}")
            return tree
        raise always_changes(changed)

    def _switch(
        self,
        tree: str,
        generation: int,
        outdated: Sequence[str],
        states: Mapping[str, State],
        patience: float,
    ) -> None:
        try:
            self._each(outdated, lambda sender: sender.patience(max(STOPPING_SECONDS, patience)))
            self._each(outdated, lambda sender: sender.hold())
        except BaseException:
            with suppress(HarnessError):
                self._each(outdated, lambda sender: sender.release())
            raise
        writers = {state.store: name for name, state in reversed(list(states.items())) if name in outdated}
        first = [name for name in outdated if name in writers.values()]
        rest = [name for name in outdated if name not in first]
        switch = partial(
            Sender.switch, tree=tree, generation=generation, patience=patience, ready=self._ready
        )
        self._each(first, switch)
        self._each(rest, switch)

    def _each(self, names: Sequence[str], act: Callable[[Sender], _Result]) -> dict[str, _Result]:
        """Call `act` with the senders of the named pods in parallel, and wait for all calls.

        If several calls raise an error, the error of the first pod is raised.
        """
        if not names:
            return {}
        with ThreadPoolExecutor(len(names)) as pool:
            futures = {name: pool.submit(act, self._senders[name]) for name in names}
        return {name: future.result() for name, future in futures.items()}


def always_changes(path: str) -> HarnessError:
    """Return the error for a file that was written to during each of MAX_SCANS scans."""
    return HarnessError(
        f"{path} was written to while it was being read, in each of {MAX_SCANS} attempts",
        hint=f"a file that keeps changing is probably not code: add it to {OWN}",
    )


def _writers(states: Mapping[str, State], tree: str) -> list[str]:
    """Return one pod for each store whose current tree was modified or is not the requested tree."""
    lacking: dict[str, str] = {}
    for name, state in states.items():
        if state.tree != tree or not state.intact:
            lacking.setdefault(state.store, name)
    return list(lacking.values())


def _runs(state: State, tree: str, generation: int) -> bool:
    is_current = (state.tree, state.generation, state.intact) == (tree, generation, True)
    return is_current and state.started == generation


def _generation(states: Mapping[str, State], tree: str) -> int:
    """Return the generation to run.

    This is the running generation if only new pods need the tree, otherwise a new generation.
    """
    newest = max(max(state.generation, state.started) for state in states.values())
    old = [state for state in states.values() if state.started]
    return newest if newest and old and all(_runs(state, tree, newest) for state in old) else newest + 1
