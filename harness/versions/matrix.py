"""Launch the cells of a matrix, several at a time, and collect their results.

All cells with the same versions of JobSet and Kueue share a cluster. If a matrix needs several clusters, it
uses them one after another.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from harness import run
from harness.context import RunContext
from harness.core.clock import CLOCK, now
from harness.core.errors import HarnessError, UsageError
from harness.core.locks import locked
from harness.launch import replaced_packages
from harness.versions.cell import Launcher, Ledger, Outcome, cluster_name
from harness.versions.matrix_definition import Definition
from harness.versions.matrix_plan import Plan, PlannedCell
from harness.versions.matrix_results import AxisValue, CellResult, Document

LEDGER: Final = "ledger.jsonl"
_POLL_SECONDS: Final = 1.0
_BAD_USAGE: Final = 64


class Matrix:
    """A matrix that is being launched. `document` can be called from any thread."""

    def __init__(self, definition: Definition, plan: Plan, folder: Path, context: RunContext) -> None:
        """Open the ledger in `folder`, which may have been written by an earlier process.

        Raises UsageError if the job is not valid, or does not allow replacing the packages.
        """
        self.plan = plan
        self.folder = folder
        self.running: dict[int, float] = {}
        """The start time of each launch in progress, keyed by cell number."""
        self._definition = definition
        self._context = context
        self._launcher = Launcher(definition.job, context.settings, folder, definition.parallel > 1)
        self._launcher.check([axis.package for axis in plan.axes])
        self._started_at, self._start = now(), time.monotonic()
        self._lock = threading.Lock()
        self._ledger = Ledger(folder / LEDGER)
        self._keys = [self._key(cell) for cell in plan.cells]
        self.results = [
            CellResult(
                versions=cell.labels,
                options=[] if cell.problem else cell.cell.options,
                expected=cell.expected,
                # A launch without a bundle is repeated, because the index or Docker may be available again.
                outcomes=[outcome for outcome in self._ledger.of(key) if outcome.bundle],
            )
            for cell, key in zip(plan.cells, self._keys, strict=True)
        ]

    def run(self) -> Document:
        """Launch all cells that have no result yet, and return the results.

        Before a cluster is created, its cells are checked in order until one is found whose packages can be
        installed. If there is no such cell, the cluster is not created. A version of JobSet or Kueue that
        does not work affects only its own cells. If the process is interrupted, the launches in progress are
        stopped. All finished launches are already in the ledger.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "lock", self._refuse):
            for number, cell in enumerate(self.plan.cells):
                if cell.problem and not self.results[number].outcomes:
                    self._add(number, self._without_launch(number, cell.problem))
            for controllers, numbers in self._by_cluster().items():
                self._launch_on_cluster(dict(controllers), numbers)
        return self.document()

    def document(self) -> Document:
        """Return the results of the matrix so far."""
        axes = {
            axis.package: [
                AxisValue(
                    label=value.label,
                    requested=value.requested,
                    version=one.version if (one := value.candidate) else None,
                    released=f"{one.released:%Y-%m-%d}" if one and one.released else None,
                    digest=one.digest if one else "",
                    problem=value.problem,
                )
                for value in axis.values
            ]
            for axis in self.plan.axes
        }
        with self._lock:
            cells = [result.model_copy(update={"outcomes": [*result.outcomes]}) for result in self.results]
        return Document(
            folder=str(self.folder.absolute()),
            job=str(self._definition.job),
            started_at=self._started_at,
            seconds=round(time.monotonic() - self._start, 1),
            parallel=self._definition.parallel,
            repeat=self._definition.repeat,
            axes=axes,
            cells=cells,
            excluded={_name(cell.labels): reason for cell, reason in self.plan.excluded},
            notes=list(self.plan.notes),
            replace=self._context.settings.replace,
        )

    def last_lines(self) -> list[str]:
        """Return the last progress line of each launch in progress."""
        return self._launcher.last_lines()

    def _refuse(self) -> None:
        raise UsageError(
            f"another process is already running the matrix in {self.folder}",
            hint="wait until the other process ends",
        )

    def _by_cluster(self) -> dict[tuple[tuple[str, str], ...], list[int]]:
        """Return the numbers of the cells to launch, keyed by the replaced versions of JobSet and Kueue."""
        numbers: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for number, result in enumerate(self.results):
            if result.needs_launch(self._definition.repeat):
                numbers.setdefault(tuple(self.plan.cells[number].cell.controllers.items()), []).append(number)
        return numbers

    def _launch_on_cluster(self, controllers: dict[str, str], numbers: list[int]) -> None:
        numbers = self._installable(numbers)
        if not numbers:
            return
        settings = self._context.settings
        own = {
            "cluster_name": cluster_name(settings, controllers),
            "replace": settings.replace | controllers,
        }
        context = replace(self._context, settings=settings.model_copy(update=own))
        with ExitStack() as stack:
            try:
                stack.enter_context(run.cluster(context))
            except HarnessError as error:
                if not controllers:
                    raise
                for number in numbers:
                    self._add(number, self._without_launch(number, error.message))
                return
            self._launch_all(numbers)

    def _installable(self, numbers: list[int]) -> list[int]:
        """Return the numbers of the cells, starting with the first cell whose packages can be installed.

        For each earlier cell, record that its packages cannot be installed.
        """
        for place, number in enumerate(numbers):
            settings = self._context.settings
            replacements = settings.replace | self.plan.cells[number].cell.replace
            context = replace(self._context, settings=settings.model_copy(update={"replace": replacements}))
            try:
                replaced_packages.resolved(context)
            except UsageError as error:
                self._add(number, self._without_launch(number, error.message))
            else:
                return numbers[place:]
        return []

    def _launch_all(self, remaining: list[int]) -> None:
        repeat = self._definition.repeat
        running: dict[Future[Outcome], int] = {}
        with ThreadPoolExecutor(self._definition.parallel) as pool:
            try:
                while remaining or running:
                    while remaining and len(running) < self._definition.parallel:
                        number = remaining.pop(0)
                        running[pool.submit(self._launch, number)] = number
                    # Without a timeout, a signal could not interrupt the wait for a thread.
                    finished, _ = wait(running, _POLL_SECONDS, FIRST_COMPLETED)
                    for future in finished:
                        number = running.pop(future)
                        self._add(number, future.result())
                        if self.results[number].needs_launch(repeat):
                            remaining.insert(0, number)
            except BaseException:
                self._launcher.stop()
                pool.shutdown(cancel_futures=True)
                # Some launches may have finished before they were stopped.
                for future, number in running.items():
                    if future.done() and not future.cancelled() and future.exception() is None:
                        self._add(number, future.result())
                raise

    def _launch(self, number: int) -> Outcome:
        with self._lock:
            self.running[number] = time.monotonic()
        try:
            attempt = len(self.results[number].outcomes) + 1
            return self._launcher.launch(self.plan.cells[number].cell, attempt)
        finally:
            with self._lock:
                self.running.pop(number, None)

    def _add(self, number: int, outcome: Outcome) -> None:
        self._ledger.add(outcome)
        with self._lock:
            self.results[number].outcomes.append(outcome)
            result = self.results[number]
            count = sum(bool(each.outcomes) for each in self.results)
        words = " ".join(filter(None, [outcome.result, outcome.cause]))
        self._context.progress(
            f"{'✓' if result.is_expected(outcome) else '✗'} {result.name}: {words} in "
            f"{outcome.seconds:.0f} s ({count} of {len(self.results)} cells)"
        )
        if not outcome.passed:
            self._context.progress(f"    {outcome.explanation}")

    def _without_launch(self, number: int, problem: str) -> Outcome:
        cell = self.plan.cells[number]
        return Outcome(
            key=self._keys[number],
            cell=cell.labels,
            attempt=len(self.results[number].outcomes) + 1,
            result="not installable",
            exit_code=_BAD_USAGE,
            explanation=problem,
            started_at=now(),
            seconds=0,
        )

    def _key(self, cell: PlannedCell) -> str:
        """Return the cell's key in the ledger. A cell with a problem gets a new key, so it is tried again."""
        return self._launcher.key(cell.cell) if not cell.problem else secrets.token_hex(8)


def new_folder(runs_dir: Path) -> Path:
    """Return the path of the folder for a new matrix, without creating it."""
    return runs_dir.absolute() / f"matrix-{CLOCK.stamp()}-{secrets.token_hex(2)}"


def continued(folder: Path) -> Path:
    """Return the folder of an earlier matrix. Raises UsageError if it has no ledger."""
    if not (folder / LEDGER).is_file():
        raise UsageError(
            f"--continue: expected the results folder of a matrix, but {folder} does not contain {LEDGER}",
            hint="use the folder that the matrix printed in its first progress line",
        )
    return folder.absolute()


def _name(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{package} {label}" for package, label in labels.items())
