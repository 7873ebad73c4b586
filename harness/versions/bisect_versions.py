"""List the versions among which `harness bisect` searches, from the good version to the bad version.

Releases are ordered according to PEP 440, in which 1.0.dev1 < 1.0a1 < 1.0. Commits are ordered along first
parents (harness/versions/commits.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from packaging.version import InvalidVersion
from packaging.version import Version as Parsed

from harness.context import RunContext
from harness.core import processes
from harness.core.errors import ToolError, UsageError
from harness.core.input_limits import shown
from harness.core.replacements import parse, python_package
from harness.launch import replaced_packages
from harness.provision.replaced_wheels import PYTHON, SECONDS, reason, uv_program
from harness.versions.candidates import (
    LOCKED,
    Candidate,
    candidates,
    exact,
    published,
    target_options,
)
from harness.versions.commits import commits

_SHORT = 12


@dataclass(frozen=True)
class Version:
    """A version or a commit that can be launched."""

    id: str
    """The version, or the SHA of the commit."""
    label: str
    """The version, or the abbreviated SHA and the subject of the commit."""
    spec: str
    """The SPEC of `--replace` that selects this version."""
    date: str = ""
    """The date of the release or the commit, in the format YYYY-MM-DD."""

    @property
    def short(self) -> str:
        """Return the version, or the abbreviated SHA."""
        return self.id if self.id == self.label else self.id[:_SHORT]


@dataclass(frozen=True)
class Versions:
    """The versions of a package in search order. The last version is bad."""

    package: str
    versions: tuple[Version, ...]
    good_known: bool
    """Whether the user expects the first version to be good."""
    fix: bool = False
    """Whether the good version is newer than the bad one, so that the search finds the fix."""
    repository: Path | None = None


def of_index(name: str, good: str | None, bad: str, context: RunContext) -> Versions:
    """Return the versions in the index from the good to the bad end. Raises UsageError if an end does not
    exist.

    Yanked versions, and those without a wheel for this Python and platform, are left out. Pre-releases are
    included if one of the ends is a pre-release, or if there are no other versions.
    """
    return with_versions_between(ends_of_index(name, good, bad, context), context)


def ends_of_index(name: str, good: str | None, bad: str, context: RunContext) -> Versions:
    """Return only the good version, if given, and the bad version.

    Raises UsageError if either does not exist.
    """
    last = _end(name, bad, "--bad", context)
    first = _end(name, good, "--good", context) if good is not None else None
    if first is not None and first.version == last.version:
        raise UsageError(
            f"--good {good} and --bad {bad} are the same version of {last.package}, {last.version}"
        )
    end_versions = tuple(_as_version(one) for one in (first, last) if one is not None)
    fix = first is not None and Parsed(first.version) > Parsed(last.version)
    return Versions(last.package, end_versions, first is not None, fix)


def with_versions_between(end_versions: Versions, context: RunContext) -> Versions:
    """Return all versions from the good end to the bad end. A missing good end means the oldest version."""
    context.progress(f"listing the versions of {end_versions.package} in the package index")
    sorted_ends = sorted(end_versions.versions, key=lambda one: Parsed(one.id))
    upper_bound = f"<={Parsed(sorted_ends[-1].id).public}"
    specifiers = (
        f">={Parsed(sorted_ends[0].id).public},{upper_bound}" if end_versions.good_known else upper_bound
    )
    by_version = {
        one.version: _as_version(one) for one in published(end_versions.package, specifiers, context)
    }
    by_version |= {one.id: one for one in sorted_ends}
    ordered = sorted(by_version.values(), key=lambda one: Parsed(one.id))
    for newer, older in _misordered(ordered):
        context.progress(
            f"the search orders versions by number, so {older.id} ({older.date}) comes after {newer.id} "
            f"({newer.date}). Choose --good and --bad so that {older.id} is not between them"
        )
    return replace(end_versions, versions=tuple(reversed(ordered) if end_versions.fix else ordered))


def _misordered(versions: Sequence[Version]) -> Iterator[tuple[Version, Version]]:
    """Yield pairs of adjacent builds of a release whose dates are in the opposite order, such as
    1.0.dev20260601 and 1.0.dev2026053101. Releases are not compared, because 1.0.1 can be newer than 2.0.
    """
    for one, other in pairwise(versions):
        builds = Parsed(one.id).is_devrelease and Parsed(other.id).is_devrelease
        if builds and Parsed(one.id).release == Parsed(other.id).release and "" < other.date < one.date:
            yield one, other


def of_repository(name: str, repository: Path, good: str | None, bad: str) -> Versions:
    """Return a local repository's commits from `good` to `bad`. Raises UsageError if a ref does not exist."""
    root, commit_list = commits(repository, good, bad)
    package = python_package(name)
    result = tuple(
        Version(each.sha, f"{each.sha[:_SHORT]} {each.subject}", each.spec(root), each.date)
        for each in commit_list
    )
    for each in result[:1]:
        parse(name, each.spec)  # Raises UsageError if --replace does not accept the repository's path.
    fix = (
        good is not None and commit_list[0].parents != () and commit_list[1].sha == commit_list[0].parents[0]
    )
    return Versions(package, result, good is not None, fix, root)


def prepared(versions: Versions, version: Version, context: RunContext) -> Candidate:
    """Resolve and build a version, install it into the cache, and return it as a candidate for a launch.

    Raises UsageError if the version cannot be built or installed, or conflicts with the lock file.
    """
    if versions.repository is None:
        one = Candidate(versions.package, version.spec, version.id, version.label)
    else:
        one = candidates(versions.package, version.spec, context)[0]
    replacements = context.settings.replace | {one.package: one.spec}
    settings = context.settings.model_copy(update={"replace": replacements})
    replaced_packages.resolved(RunContext(settings=settings, progress=lambda _: None))
    return one


def check_index(versions: Versions, version: Version, context: RunContext) -> None:
    """Raise UsageError if the package index cannot currently be read.

    Without this check, every version that requires the index would be skipped as not installable.
    """
    if versions.repository is not None:
        return
    with tempfile.TemporaryDirectory(prefix="versions-") as folder:
        requirements = Path(folder, "wanted.in")
        requirements.write_text(f"{versions.package}=={version.id}\n")
        command = [
            uv_program(),
            "pip",
            "compile",
            str(requirements),
            "--no-deps",
            "--no-build",
            "--quiet",
            *PYTHON,
        ]
        command += ["--refresh-package", versions.package, "--prerelease", "allow"]
        try:
            processes.run([*command, *target_options(versions.package, context)], timeout=SECONDS)
        except ToolError as error:
            raise UsageError(
                f"{versions.package} {version.id} is no longer in the package index, or the index cannot be "
                f"read: {reason(error.output)}",
                hint="when the index can be read again, run the same command to continue the search",
            ) from None


def _end(name: str, spec: str, option: str, context: RunContext) -> Candidate:
    """Return the version at one end. If the SPEC is a day with several nightlies, return the newest one.

    Raises UsageError if the SPEC does not match exactly one version in the index.
    """
    if spec != LOCKED:
        one = parse(name, spec)
        if one.kind != "versions" or not (one.spec == "latest" or exact(one.versions) or _is_version(spec)):
            raise UsageError(
                f"{option}: expected a version, latest or locked, found {shown(spec)}",
                hint="to search the commits of a checkout, use --repo PATH",
            )
    try:
        return candidates(name, spec, context)[-1]
    except UsageError as error:
        raise UsageError(
            f"{option} {spec}: {error.message.removeprefix('--replace ')}", hint=error.hint
        ) from None


def _as_version(one: Candidate) -> Version:
    return Version(one.version, one.version, one.version, _date(one.released))


def _is_version(spec: str) -> bool:
    try:
        Parsed(spec)
    except InvalidVersion:
        return False
    return True


def _date(released: datetime | None) -> str:
    return f"{released:%Y-%m-%d}" if released else ""
