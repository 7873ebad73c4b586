"""List the versions of a package that can be launched, oldest first, with their release dates.

uv reads the package index, so uv's settings, credentials and proxies apply. uv has no command that lists
versions, so each call resolves the newest version below the previous one. The first call reads the index,
even if uv's cached copy is only a few minutes old. Later calls read the cached copy, which takes 10 ms.

The same rules apply as for `--replace`. Yanked versions are left out unless requested as an exact version.
Versions for another Python or platform, and those without a wheel, are left out. Pre-releases are included
only if the range names one, or contains only pre-releases.
"""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from harness.context import RunContext
from harness.core import processes
from harness.core.errors import ToolError, UsageError
from harness.core.replacements import CONTROLLERS, KONDUKTOR, Replacement, parse, python_package
from harness.provision import konduktor
from harness.provision.images.build import WORKER
from harness.provision.images.locked_packages import pins
from harness.provision.images.replaced_image import target_options as worker_options
from harness.provision.replaced_wheels import PYTHON, SECONDS, digest_of, reason, uv_program, wheel_of
from harness.provision.source import versions as source_versions
from harness.settings import load as load_settings

LOCKED: Final = "locked"
"""The SPEC that selects the version in the lock file."""
_CACHE: Final = ["--offline"]
_NO_SOLUTION: Final = 1
"""uv's exit code if no version matches. If uv cannot reach the index, its exit code is 2."""


@dataclass(frozen=True)
class Candidate:
    """A version of a package with which a job can be launched."""

    package: str
    """The package's normalized name."""
    spec: str
    """The SPEC for `--replace` that selects exactly this version. Empty means the locked version."""
    version: str
    label: str
    """The version, or the path or Git reference as written by the user."""
    released: datetime | None = None
    """The time at which the version's first file was uploaded to the index, or None if the index does not
    report it."""
    digest: str = ""
    """For a path or a Git reference, the SHA-256 digest of the files in its wheel."""

    @property
    def identity(self) -> str:
        """Return a string that identifies the candidate's contents."""
        return f"{self.package} {self.version} {self.digest}".rstrip()


def candidates(name: str, spec: str, context: RunContext, newest: int | None = None) -> list[Candidate]:
    """Return the versions that match a SPEC of `--replace`, oldest first. `newest` limits their number.

    A range matches several versions. Every other SPEC matches one version: an exact version, `latest`,
    `locked`, or the wheel from a path or a Git reference, which is built once. JobSet and Kueue have no
    package index, so their versions must be exact. Raises UsageError if the SPEC is not valid, no version
    matches, the package cannot be built, or the index cannot be reached.
    """
    if spec == LOCKED:
        return [locked(name)]
    one = parse(name, spec)
    if one.name in CONTROLLERS:
        return [Candidate(one.name, one.versions, one.versions, one.versions)]
    if one.kind != "versions":
        return [_build(one, spec, context)]
    limit = 1 if one.spec == "latest" or exact(one.versions) else newest
    return published(one.name, one.versions, context, limit)


def locked(name: str) -> Candidate:
    """Return the version in the lock file. Raises UsageError if the lock file does not contain the
    package."""
    if name in CONTROLLERS:
        version = getattr(source_versions.load(load_settings().model_copy(update={"replace": {}})), name)
        return Candidate(name, "", version, f"{version} ({LOCKED})")
    package = python_package(name)
    lock = konduktor.LOCK if package == KONDUKTOR else WORKER.lock
    version = pins(lock.read_text()).get(package)
    if version is None:
        raise UsageError(f"the lock file does not contain {package}, so there is no version {LOCKED!r}")
    return Candidate(package, "", version, f"{version} ({LOCKED})")


def published(package: str, versions: str, context: RunContext, newest: int | None = None) -> list[Candidate]:
    """Return the versions in the index that match version specifiers such as ">=1,<2", oldest first.

    `package` is a normalized name. `newest` limits the number of versions. None means no limit. Raises
    UsageError if no version matches.
    """
    prereleases = SpecifierSet(versions).prereleases or exact(versions)
    for strategy in ("allow",) if prereleases else ("disallow", "allow"):
        if matches := list(islice(_newest_first(package, versions, strategy, context), newest)):
            return sorted(matches, key=lambda one: Version(one.version))
    raise UsageError(
        f"--replace {package}: the package index has no version {versions or 'at all'} with a wheel for this "
        "Python and platform",
        hint=_prerelease_hint(package, versions, context)
        or _nearest_hint(package, versions, context)
        or "check the name and the range, and the package index that UV_DEFAULT_INDEX or uv.toml sets",
    )


def exact(versions: str) -> bool:
    """Return whether version specifiers select exactly one version."""
    return re.fullmatch(r"===?[^,*]+", versions.replace(" ", "")) is not None


def target_options(package: str, context: RunContext) -> list[str]:
    """Return uv's options for the Python version and platform on which a package will be used."""
    if package == KONDUKTOR:
        return konduktor.target_options()
    return worker_options(context)


def _prerelease_hint(package: str, versions: str, context: RunContext) -> str:
    """Return a hint if `<1.0` excludes pre-releases of 1.0 that the user probably wants, otherwise ""."""
    for one in SpecifierSet(versions):
        if one.operator == "<" and not Version(one.version).is_prerelease:
            builds = [f">={one.version}.dev0", f"<={one.version}", f"!={one.version}"]
            if (newest := _resolved(package, builds, _all_options(package, context))) is not None:
                return (
                    f"{one} excludes pre-releases of {one.version}; to include them, write <={newest.version}"
                )
    return ""


def _nearest_hint(package: str, versions: str, context: RunContext) -> str:
    """Return a hint with the newest version below a range and the oldest version above it, or ""."""
    bounds = sorted(Version(one.version) for one in SpecifierSet(versions) if "*" not in one.version)
    if not bounds:
        return ""
    options = _all_options(package, context)
    before = _resolved(package, [f"<{bounds[0]}"], options)
    after = _resolved(package, [f">{bounds[-1]}"], [*options, "--resolution", "lowest"])
    neighbours = [one.version for one in (before, after) if one is not None]
    return (
        f"the nearest version{'s are' if len(neighbours) > 1 else ' is'} {' and '.join(neighbours)}"
        if neighbours
        else ""
    )


def _all_options(package: str, context: RunContext) -> list[str]:
    return [*target_options(package, context), "--prerelease", "allow"]


def _newest_first(package: str, versions: str, strategy: str, context: RunContext) -> Iterator[Candidate]:
    options = [*target_options(package, context), "--prerelease", strategy]
    below: list[str] = []
    source = [] if os.environ.get("UV_OFFLINE") else ["--refresh-package", package]
    while True:
        candidate = _resolved(package, [versions, *below], [*options, *source])
        if candidate is None and source == _CACHE:
            source = []  # Only the index can prove that no older version exists.
            continue
        if candidate is None:
            return
        yield candidate
        if exact(versions):
            return
        # Ordered comparisons do not allow local versions such as 1.0+g1234, so these are excluded one by one.
        public_version = Version(candidate.version).public
        same = [each for each in below if each.startswith(f"!={public_version}+")]
        below = [f"<={public_version}", *same, f"!={candidate.version}"]
        source = _CACHE


def _resolved(package: str, specifiers: Sequence[str], options: Sequence[str]) -> Candidate | None:
    """Return the newest matching version, or None if no version matches or the index is not cached."""
    with tempfile.TemporaryDirectory(prefix="versions-") as folder:
        requirements = Path(folder, "wanted.in")
        requirements.write_text(f"{package}{','.join(filter(None, specifiers))}\n")
        command = [
            uv_program(),
            "pip",
            "compile",
            str(requirements),
            "--format",
            "pylock.toml",
            *PYTHON,
            *options,
        ]
        command += ["--no-deps", "--no-build", "--no-header", "--no-annotate", "--quiet"]
        try:
            lock = processes.run(command, timeout=SECONDS).stdout
        except ToolError as error:
            if error.returncode == _NO_SOLUTION or options[-1:] == _CACHE:
                return None
            raise UsageError(
                f"--replace {package}: the package index cannot be read: {reason(error.output)}",
                hint="check the index in UV_DEFAULT_INDEX or uv.toml, and the proxy in HTTPS_PROXY",
            ) from None
    (package_entry,) = tomllib.loads(lock)["packages"]
    times = [file["upload-time"] for file in package_entry.get("wheels", ()) if "upload-time" in file]
    version = str(package_entry["version"])
    return Candidate(package, version, version, version, min(times).astimezone(UTC) if times else None)


def _build(one: Replacement, spec: str, context: RunContext) -> Candidate:
    """Return the candidate for a path or a Git reference.

    The wheel is built once and used for all launches, so that editing a checkout does not make launches in
    the same comparison differ.
    """
    wheel = wheel_of(one, context)
    version = str(parse_wheel_filename(wheel.name)[1])
    return Candidate(one.name, str(wheel), version, spec, digest=digest_of(wheel))
