"""Search for the first bad version of a package by launching a job, and record each launch in a ledger.

FOLDER/bisect.jsonl   one line per launch and per skipped version, written immediately
FOLDER/versions.json  the versions in the package index when the search started
FOLDER/cells/         the launches (harness/versions/cell.py)
FOLDER/result.json    the result
FOLDER/report.md      a report for the project that maintains the package

The same command continues an interrupted search, because the folder's name is derived from the search's
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final, Protocol

from pydantic import BaseModel

from harness import run
from harness.context import RunContext
from harness.core import processes
from harness.core.errors import HarnessError, UsageError
from harness.versions import bisect_search
from harness.versions.bisect_search import End, Launch, Next
from harness.versions.bisect_versions import Version, Versions, check_index, prepared
from harness.versions.candidates import Candidate
from harness.versions.cell import Cell, Outcome, append_record, read_records

ANY: Final = "any"
"""The value of --cause that makes every verdict other than PASS count as bad."""
_MAX_WITHOUT_VERDICT: Final = 2


class CellLauncher(Protocol):
    """The methods of harness.versions.cell.Launcher that a search uses."""

    def launch(self, cell: Cell, attempt: int = 1) -> Outcome:
        """Launch a cell, and wait for its outcome."""
        ...

    def stop(self) -> None:
        """Stop the launch in progress."""
        ...


class Record(BaseModel):
    """The result of one launch, or the reason why a version was skipped."""

    version: str
    """The id of the launched or skipped version."""
    result: bisect_search.Result
    reason: str = ""
    """Why the version was skipped, or how its launch failed if the result is "other"."""
    outcome: Outcome | None = None

    @property
    def failure(self) -> str:
        """Return the verdict and its cause, such as "FAIL rank.crashed"."""
        return failure(self.outcome) if self.outcome is not None else ""


class Ledger:
    """The records of a search, including those from earlier processes. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Read the ledger with `read_records`, which raises UsageError for an invalid line."""
        self.path = path
        self.records = read_records(
            path, Record, "a record of a search", "remove this line; the version is then launched again"
        )

    def add(self, record: Record) -> None:
        """Append a record to the ledger's file."""
        self.records.append(record)
        append_record(self.path, record)


class Bisection:
    """A search among versions. `run` launches versions until the search ends."""

    def __init__(
        self,
        versions: Versions,
        launcher: CellLauncher,
        folder: Path,
        cause: str | None,
        context: RunContext,
        cluster: Callable[[RunContext], AbstractContextManager[object]] = run.cluster,
    ) -> None:
        """Read the ledger in `folder`, and continue the search recorded there.

        `cause` is the cause of the failure to search for, or ANY. None means the cause of the last version's
        failure. `cluster` provides the cluster for all launches.
        """
        self.versions = versions
        self.ledger = Ledger(folder / "bisect.jsonl")
        self._launcher = launcher
        self._cause = cause
        self._context = context
        self._places = {each.id: place for place, each in enumerate(versions.versions)}
        self._prepared: dict[str, Future[Candidate]] = {}
        self._cluster = cluster
        self._has_cluster = False

    @property
    def cause(self) -> str | None:
        """Return the cause to search for, or None if it is not known yet."""
        if self._cause is not None:
            return self._cause
        return next((each.failure for each in self.ledger.records if each.result == "bad"), None)

    def run(self, max_error: float) -> End:
        """Launch versions until the search ends. The cluster is created before the first launch.

        Raises UsageError if the package index cannot be read, and HarnessError if launches end without a
        verdict. If the search is interrupted, the launch in progress is stopped. All finished launches are
        already in the ledger.
        """
        if self.ledger.records:
            self._context.progress(
                f"continuing after {len(self.ledger.records)} results in {self.ledger.path}"
            )
        with processes.signals_as_interrupt(), ExitStack() as cluster, ThreadPoolExecutor(1) as pool:
            try:
                while isinstance(step := self._step(max_error), Next):
                    self._judge(step, pool, cluster)
            except BaseException:
                self._launcher.stop()
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        return step

    def record_of(self, place: int | None, result: bisect_search.Result) -> Record | None:
        """Return the last record that has this result for the version at this position in the list."""
        if place is None:
            return None
        version = self.versions.versions[place].id
        records = [each for each in self.ledger.records if each.version == version and each.result == result]
        return records[-1] if records else None

    def _launches(self) -> list[Launch]:
        return [
            Launch(self._places[each.version], each.result)
            for each in self.ledger.records
            if each.version in self._places
        ]

    def _step(self, max_error: float) -> Next | End:
        versions = self.versions
        return bisect_search.step(
            len(versions.versions), self._launches(), good_known=versions.good_known, max_error=max_error
        )

    def _judge(self, step: Next, pool: ThreadPoolExecutor, cluster: ExitStack) -> None:
        """Launch a version. Meanwhile, prepare the versions that may be launched next."""
        version = self.versions.versions[step.position]
        self._context.progress(f"{self._purpose(step)}: {self.versions.package} {version.label}")
        try:
            candidate = self._prepare(version, pool).result()
        except UsageError as error:
            check_index(self.versions, version, self._context)
            self._note(Record(version=version.id, result="skip", reason=error.message))
            return
        if not self._has_cluster:
            cluster.enter_context(self._cluster(self._context))
            self._has_cluster = True
        self._prepare_following(step, pool)
        attempt = 1 + sum(each.version == version.id for each in self.ledger.records)
        for number in range(1, _MAX_WITHOUT_VERDICT + 1):
            outcome = self._launcher.launch(Cell((candidate,)), attempt)
            if outcome.cause is not None or outcome.result != "UNKNOWN":
                break
            if number == _MAX_WITHOUT_VERDICT:
                raise HarnessError(
                    f"{number} launches of {version.label} ended without a verdict; the last one: "
                    f"{outcome.explanation}",
                    hint=f"read {outcome.log}, then run the same command again to continue the search",
                )
        self._note(classified(version.id, outcome, self.cause))

    def _prepare(self, version: Version, pool: ThreadPoolExecutor) -> Future[Candidate]:
        if version.id not in self._prepared:
            self._prepared[version.id] = pool.submit(prepared, self.versions, version, self._context)
        return self._prepared[version.id]

    def _prepare_following(self, step: Next, pool: ThreadPoolExecutor) -> None:
        versions = self.versions
        for place in bisect_search.ahead(
            len(versions.versions), self._launches(), step, good_known=versions.good_known
        ):
            self._prepare(versions.versions[place], pool)

    def _purpose(self, step: Next) -> str:
        if step.purpose == "newest":
            return "checking the bad version"
        if step.purpose == "oldest":
            return "checking the good version" if self.versions.good_known else "looking for a good version"
        if step.purpose == "confirm":
            return "confirming the result"
        launches = bisect_search.remaining(step.between)
        return f"{step.between} versions left, about {launches} more launches"

    def _note(self, record: Record) -> None:
        self.ledger.add(record)
        outcome = record.outcome
        text = record.reason if outcome is None else f"{failure(outcome)} in {outcome.seconds:.0f} s"
        word = {"other": "skipped, because it fails in another way", "skip": "skipped"}.get(
            record.result, record.result
        )
        label = next(each.label for each in self.versions.versions if each.id == record.version)
        self._context.progress(f"{label}: {word} ({text})")


def failure(outcome: Outcome) -> str:
    """Return the verdict and its cause, such as "FAIL rank.crashed"."""
    return " ".join(filter(None, (outcome.result, outcome.cause)))


def classified(version: str, outcome: Outcome, cause: str | None) -> Record:
    """Return the record of a launch: "good" for PASS, and "bad" for the failure being searched for.

    `cause` is a cause, a verdict with a cause, or ANY. None matches every failure.
    """
    if outcome.result == "not installable":
        return Record(version=version, result="skip", reason=outcome.explanation, outcome=outcome)
    if outcome.passed:
        return Record(version=version, result="good", outcome=outcome)
    same = cause in (None, ANY, failure(outcome)) or (outcome.cause is not None and cause == outcome.cause)
    if same and outcome.result != "PASS":
        return Record(version=version, result="bad", outcome=outcome)
    reason = f"{failure(outcome)} instead of {cause}"
    return Record(version=version, result="other", reason=reason, outcome=outcome)


def skipped(records: Sequence[Record]) -> dict[str, str]:
    """Return the reasons why versions have no result, keyed by version."""
    judged_versions = {each.version for each in records if each.result in ("good", "bad")}
    return {each.version: each.reason for each in records if each.version not in judged_versions}
