"""Manage a directory of bundles: list and remove bundles, measure their size, and maintain `latest`.

A bundle is locked by its writer from `BundleWriter.create` to `release`. If a bundle is not locked and its
manifest has no end time, its state is "cut off", which means that its writer was killed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel

from harness.core import disk_use
from harness.core.errors import HarnessError, UsageError
from harness.core.locks import in_use
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Manifest, Verdict
from harness.settings import KEEP_RUNS

LATEST = "latest"
State = Literal["judged", "running", "cut off", "damaged", "not judged"]
NAME = re.compile(r"(\d{8}T\d{6}Z)-(\w+)", re.ASCII)
"""Matches the names of bundles that `BundleWriter.create` generates. A name consists of a time and a
nonce."""
_DOOMED = ".removing-"


@dataclass(frozen=True)
class Past:
    """A bundle in the runs directory. It may be damaged, or belong to a launch that is still running."""

    path: Path

    @cached_property
    def _bundle(self) -> Bundle:
        return Bundle(self.path)

    @property
    def manifest(self) -> Manifest | None:
        return self._bundle.manifest

    @property
    def verdict(self) -> Verdict | None:
        """Return the recorded verdict, or None if no verdict was recorded."""
        return self._bundle.recorded_verdict

    @cached_property
    def state(self) -> State:
        """Return the bundle's state. A bundle is damaged if its manifest or its verdict cannot be read."""
        if self.verdict is None and self.is_locked:
            return "running"
        if self.manifest is None or (self.verdict is None and self._bundle.has("verdict.json")):
            return "damaged"
        if self.verdict is not None:
            return "judged"
        return "not judged" if self.manifest.ended_at else "cut off"

    @property
    def is_locked(self) -> bool:
        """Return whether a process holds the bundle's write lock.

        Returns False if the current user does not have permission to open the bundle.
        """
        try:
            return in_use(self.path)
        except PermissionError:
            return False

    @property
    def started(self) -> datetime:
        """Return the launch's start time from the manifest.

        If the manifest cannot be read, the time comes from the bundle's name or, failing that, from the
        directory's modification time.
        """
        if self.manifest is not None and (moment := _moment(self.manifest.started_at)) is not None:
            return moment
        if (match := NAME.fullmatch(self.path.name)) and (moment := _moment(match[1])) is not None:
            return moment
        return datetime.fromtimestamp(self.path.lstat().st_mtime, UTC)

    @property
    def seconds(self) -> float | None:
        """Return the launch's duration in seconds, or None if the manifest has no end time."""
        ended_at = _moment(self.manifest.ended_at or "") if self.manifest else None
        return (ended_at - self.started).total_seconds() if ended_at else None

    @property
    def job(self) -> str:
        """Return the job's name in the job file, or "" if nothing was launched.

        In a bundle from an older harness, it is the launched object's name.
        """
        if self.manifest is None:
            return ""
        launch = self.manifest.launch
        return self.manifest.job or (launch.object_name if launch else None) or ""

    @property
    def own(self) -> bool:
        """Return whether the harness created the bundle and nobody has renamed it since.

        A user who renames a bundle wants to keep it.
        """
        match = NAME.fullmatch(self.path.name)
        return bool(match and self.manifest is not None and match[2] == self.manifest.nonce)


def past(runs_dir: Path) -> list[Past]:
    """Return all bundles in the runs directory, oldest first. Symbolic links to bundles are ignored."""
    bundles = [Past(path) for path in _folders(runs_dir)]
    return sorted(bundles, key=lambda one: (one.started, one.path.name))


def _folders(runs_dir: Path) -> Iterator[Path]:
    for path in runs_dir.glob("*"):
        if path.is_symlink() or not path.is_dir() or path.name.startswith("."):
            continue
        if NAME.fullmatch(path.name) or (path / "manifest.json").is_file():
            yield path


def remove(bundle: Path) -> int:
    """Remove a bundle and return its size in bytes.

    The bundle is renamed first, so that nobody reads a partially removed bundle. Raises HarnessError if the
    operating system does not allow the removal.
    """
    size = disk_use.bytes_used(bundle)
    trash = bundle.with_name(f"{_DOOMED}{bundle.name}")
    try:
        bundle.rename(trash)
        shutil.rmtree(trash)
    except FileNotFoundError:  # Another process is removing the bundle.
        size = 0
    except OSError as error:
        raise HarnessError(
            f"{bundle} could not be removed: {error.strerror}", hint=f"rm -r {trash}"
        ) from error
    mend_latest(bundle.parent)
    return size


def sweep(runs_dir: Path) -> None:
    """Finish the removal of bundles that a killed process had begun to remove."""
    for trash in runs_dir.glob(f"{_DOOMED}*"):
        if not trash.is_symlink() and NAME.fullmatch(trash.name.removeprefix(_DOOMED)):
            shutil.rmtree(trash, ignore_errors=True)


def name_latest(bundle: Path) -> None:
    """Point the symlink `latest` in the bundle's parent directory to the bundle.

    The symlink is replaced atomically, so it always exists.
    """
    link = bundle.with_name(f".{LATEST}-{bundle.name}")
    link.unlink(missing_ok=True)
    link.symlink_to(bundle.name)
    link.replace(bundle.with_name(LATEST))


def mend_latest(runs_dir: Path) -> None:
    """Point `latest` to the newest bundle if its target no longer exists.

    If the directory does not contain any bundles, the symlink is removed.
    """
    latest = runs_dir / LATEST
    if latest.is_symlink() and not latest.exists():
        bundles = past(runs_dir)
        if bundles:
            name_latest(bundles[-1].path)
        else:
            latest.unlink(missing_ok=True)


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else None


_T = TypeVar("_T")


class Keep(BaseModel):
    """The setting that determines how many bundles with a PASS verdict are kept. The newest are kept."""

    last: int | None
    """The number of bundles to keep. None means all."""

    @classmethod
    def parse(cls, text: str) -> Keep:
        """Parse `all`, `failed` (remove all bundles that passed) or `last:N`.

        Raises UsageError for any other text.
        """
        if not re.fullmatch(KEEP_RUNS, text, re.ASCII):
            raise UsageError(f"bundles to keep: expected all, failed or last:N, found {text!r}")
        if text == "all":
            return cls(last=None)
        return cls(last=int(text.partition(":")[2] or 0))

    def surplus(self, passed: Sequence[_T]) -> list[_T]:
        """Return the bundles to remove. `passed` contains all bundles with a PASS verdict, oldest first."""
        return [] if self.last is None else list(passed[: max(0, len(passed) - self.last)])


@dataclass(frozen=True)
class Removed:
    """A removed bundle, and its size in bytes."""

    bundle: Path
    bytes: int


def prune(runs_dir: Path, keep: Keep, spare: Collection[Path] = ()) -> list[Removed]:
    """Remove the bundles that exceed `keep`, except the target of `latest` and the bundles in `spare`.

    A bundle is removed only if the harness created it, its verdict is PASS, and no process is writing to it.
    Symbolic links, renamed or damaged bundles, and bundles whose writer was killed are kept. Raises
    HarnessError if the operating system does not allow the removal.
    """
    if keep.last is None:
        return []
    sweep(runs_dir)
    spared = {path.resolve() for path in (*spare, runs_dir / LATEST)}
    passed = [one.path for one in past(runs_dir) if _passed(one)]
    return [
        Removed(bundle, remove(bundle)) for bundle in keep.surplus(passed) if bundle.resolve() not in spared
    ]


def _passed(one: Past) -> bool:
    has_ended = one.manifest is not None and one.manifest.ended_at is not None
    has_passed = one.verdict is not None and one.verdict.verdict == "PASS"
    return one.own and has_ended and has_passed and not one.is_locked


MANIFEST = "manifest.json"


def opened(path: Path, runs_dir: Path = Path("runs")) -> Bundle:
    """Open the bundle at `path`, or the bundle in `runs_dir` whose name contains `path`.

    Raises UsageError unless exactly one bundle matches.
    """
    for folder in (path, runs_dir / path):
        if (folder / MANIFEST).is_file():
            return Bundle.open(folder)
    parts = [] if len(path.parts) > 1 else sorted(runs_dir.glob(f"*{path.name}*/{MANIFEST}"))
    matches = [part.parent for part in parts if not part.parent.is_symlink()]
    if len(matches) == 1:
        return Bundle.open(matches[0])
    if matches:
        raise UsageError(f"{path} matches more than one bundle: {', '.join(p.name for p in matches)}")
    message = (
        f"{path} is not a bundle: it has no {MANIFEST}"
        if path.exists() or len(path.parts) > 1
        else f"no bundle in {runs_dir} has a name that contains {path}"
    )
    raise UsageError(message, hint="list the bundles with `harness runs`")
