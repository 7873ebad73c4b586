"""The result of `harness bisect`: the two versions, their differences, and how to reproduce the failure."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path

from pydantic import BaseModel

from harness.context import RunContext
from harness.core.errors import HarnessError
from harness.evidence.io.reader import Bundle
from harness.provision.replaced_wheels import Change, install
from harness.report.diff.compare import Diff, compare
from harness.report.diff.facts import facts
from harness.versions.bisect_search import End, Ending
from harness.versions.bisect_versions import Version, Versions
from harness.versions.bisection import Bisection, Record, skipped
from harness.versions.candidates import target_options
from harness.versions.commits import changed_files
from harness.versions.distribution_diff import of_folders


class Side(BaseModel):
    """A good or bad version in a search result, and the number of its launches."""

    version: str
    label: str
    date: str = ""
    verdict: str = ""
    """The verdict and its cause, such as "FAIL rank.crashed"."""
    ranks: list[int] = []
    explanation: str = ""
    bundle: str | None = None
    versions: dict[str, str] = {}
    launches: int = 0
    """The number of the version's launches that had this verdict and cause."""
    launches_in_all: int = 0
    """How many times the version was launched."""


class Changed(BaseModel):
    """A file that differs between the two versions. A size of None means that the version lacks the file."""

    name: str
    before: int | None = None
    after: int | None = None
    """`before` and `after` are sizes in bytes. For commits, they are the numbers of deleted and added
    lines."""


class Changes(BaseModel):
    """The differences between the two versions of the package."""

    unit: str = "bytes"
    files: list[Changed] = []
    requirements_added: list[str] = []
    requirements_removed: list[str] = []
    problem: str = ""
    """Why the versions could not be compared, or ""."""


class Result(BaseModel):
    """The result of a search, which is written to result.json."""

    package: str
    ending: Ending
    fix: bool
    """Whether the search looked for the version that fixed the failure, and not for the one that introduced
    it."""
    cause: str | None
    """The verdict and cause of the failure, or the cause given by the user."""
    bad: Side | None = None
    """The first bad version, or the last bad version if `fix` is true."""
    good: Side | None = None
    """The last good version, or the first good version if `fix` is true."""
    suspects: list[str] = []
    """The labels of the versions that may be the first bad version."""
    error: float = 0.0
    """The probability that the result is wrong (harness/versions/bisect_search.py)."""
    launches: int = 0
    candidates: int = 0
    skipped: dict[str, str] = {}
    """Maps the label of each version without a result to the reason why it has none."""
    changes: Changes | None = None
    diff: Diff | None = None
    job: str = ""
    repository: str = ""
    again: str = ""
    """The command that reproduces the failure."""
    folder: str = ""

    @property
    def certain(self) -> bool:
        """Return whether the search identified exactly one version."""
        return self.ending == "found" and len(self.suspects) == 1


def result_of(bisection: Bisection, end: End, job: Path, folder: Path, context: RunContext) -> Result:
    """Return the result of a search that has ended."""
    versions, records = bisection.versions, bisection.ledger.records
    good = _side(bisection, end.good, bisection.record_of(end.good, "good"))
    bad = _side(bisection, end.bad, bisection.record_of(end.bad, "bad"))
    labels = {each.id: each.label for each in versions.versions}
    diff = changes = None
    if good is not None and bad is not None:
        context.progress(f"comparing {good.label} with {bad.label}")
        changes = changes_between(versions, *_pair(versions, end), context)
        if good.bundle and bad.bundle:
            sides = (good, bad)
            diff = compare(*(facts(Bundle.open(Path(str(each.bundle))), each.label) for each in sides))
    replace = context.settings.replace
    options = [f"{name}={spec}" for name, spec in replace.items()]
    side = bad or good
    if side is not None:
        spec = next(each.spec for each in versions.versions if each.id == side.version)
        options.append(f"{versions.package}={spec}")
    return Result(
        package=versions.package,
        ending=end.ending,
        fix=versions.fix,
        cause=bisection.cause,
        bad=bad,
        good=good,
        suspects=[versions.versions[place].label for place in end.suspects],
        error=end.error,
        launches=sum(each.outcome is not None for each in records),
        candidates=len(versions.versions),
        skipped={labels.get(each, each): reason for each, reason in skipped(records).items()},
        changes=changes,
        diff=diff,
        job=str(job),
        repository=str(versions.repository or ""),
        again=" ".join(
            ["harness run", shlex.quote(str(job)), *(f"--replace {shlex.quote(each)}" for each in options)]
        ),
        folder=str(folder),
    )


def changes_between(versions: Versions, before: Version, after: Version, context: RunContext) -> Changes:
    """Return the differences between two versions of a package, from the older to the newer one.

    Both versions are installed into temporary folders, without their dependencies. Their code is not run.
    """
    try:
        if versions.repository is not None:
            rows = changed_files(versions.repository, before.id, after.id)
            files = [
                Changed(name=name, before=deleted_lines, after=added_lines)
                for name, added_lines, deleted_lines in rows
            ]
            return Changes(unit="lines", files=files)
        with tempfile.TemporaryDirectory(prefix="versions-") as folder:
            places = []
            for each in (before, after):
                place = Path(folder, each.id)
                pin = Change(f"{versions.package}=={each.id}\n", (), (versions.package,))
                options = target_options(versions.package, context)
                install(pin, ["--python", sys.executable, *options, "--target", str(place)])
                places.append(place)
            diff = of_folders(*places)
    except (HarnessError, OSError) as error:
        return Changes(problem=str(error).splitlines()[0])
    return Changes(
        files=[Changed(name=each.name, before=each.before, after=each.after) for each in diff.files],
        requirements_added=list(diff.added),
        requirements_removed=list(diff.removed),
    )


def _pair(versions: Versions, end: End) -> tuple[Version, Version]:
    """Return the older and the newer version."""
    assert end.good is not None
    assert end.bad is not None
    good, bad = versions.versions[end.good], versions.versions[end.bad]
    return (bad, good) if versions.fix else (good, bad)


def _side(bisection: Bisection, place: int | None, record: Record | None) -> Side | None:
    if place is None or record is None or record.outcome is None:
        return None
    version, outcome = bisection.versions.versions[place], record.outcome
    launched = [each for each in bisection.ledger.records if each.version == version.id and each.outcome]
    return Side(
        version=version.id,
        label=version.label,
        date=version.date,
        verdict=record.failure,
        ranks=outcome.ranks,
        explanation=outcome.explanation,
        bundle=outcome.bundle,
        versions=outcome.versions,
        launches=sum(each.result == record.result for each in launched),
        launches_in_all=len(launched),
    )
