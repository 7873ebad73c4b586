"""Write and read atomic checkpoints, which are complete or absent, no matter when a process is killed.

    OUT/RUN/epoch-0001-step-00000120/
        rank-0/model.safetensors      the weights, equal on every rank
        rank-0/training.pt            the states of the optimizer and the gradient scaler
        rank-K/generators.pt          the states of rank K's random generators
        manifest.json                 size and SHA-256 of each file, position in the data, world size, losses
    OUT/RUN/best                      a link to the checkpoint with the lowest validation loss
    OUT/RUN/best.txt                  the name of that checkpoint, for file systems and copies without links
    OUT/RUN/trackers/id               a random identifier of the run (trackers.py)
    OUT/RUN/.lock                     the lock of the run's only writer (run_lock.py)

Every rank writes its files into a folder whose name begins with a dot, and flushes them to disk. Rank 0 then
writes the manifest, and renames the folder. A folder without a manifest, or with files that do not match the
manifest, is not a checkpoint. A resumed run reports such a folder, and uses the previous checkpoint
(resume.py).

This module does not use torch.distributed.checkpoint. Under DDP, every rank has the same state, so there is
nothing to assemble. In addition, torch.distributed.checkpoint does not store the sizes or hashes of its
files, so a damaged file would be detected only when it is loaded.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VERSION = 1
MANIFEST = "manifest.json"
BEST, BEST_NAME = "best", "best.txt"
TRACKERS, IDENTITY, RUN_NAME = "trackers", "id", "run"
"""The subfolder of a run for trackers.py, and the names of two files in it. `id` contains the run's
identifier in the trackers, and `run` the name of the run for which that identifier was created."""
DEFAULT_KEPT = 3
"""Default number of checkpoints to keep (`--keep`)."""
KEPT = 2
"""Minimum number of checkpoints to keep. The previous one is needed if the newest one is damaged."""
NAME = re.compile(r"epoch-\d{4,}-step-(\d{8,})")
"""Matches the name of a checkpoint's folder, and captures the step. It does not match a user's backup, such
as `epoch-0001-step-00000034.bak`."""
_NO_LINKS = {errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""Errors from symlink(2) on file systems without symlinks, such as CIFS, FAT and some FUSE file systems."""


@dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint's manifest."""

    epoch: int
    """The epoch in which training continues, counted from 0."""
    step: int
    """The number of completed steps over all epochs."""
    place: int
    """The number of sequences in this epoch on which the model has already been trained."""
    world: int
    order: dict[str, int]
    """The values that determine the data order: seed, sequences, batch, context and texts."""
    options: dict[str, Any] = field(default_factory=dict)
    """All training options, keyed by name (options.py)."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Maps the path of each file in the folder to its `size` in bytes and its `sha256`."""
    losses: dict[str, float] = field(default_factory=dict)
    """The losses that were known at this step, keyed by name, such as `val/loss`, and the fingerprint of the
    validation texts on which they were measured (resume.py)."""
    version: int = VERSION

    @property
    def name(self) -> str:
        """Return the name of the checkpoint's folder."""
        return f"epoch-{self.epoch:04d}-step-{self.step:08d}"


class Torn(Exception):
    """Raised if a folder is not an intact checkpoint. The message gives the reason."""


class Unreadable(Torn):
    """Raised if the current user is not allowed to read a checkpoint. The checkpoint may be intact."""


class Unusable(ValueError):
    """Raised if a run cannot be resumed.

    A retry would fail too. The message names the reason and the remedy.
    """


def manifest_of(folder: Path) -> Manifest:
    """Return a checkpoint's manifest without checking the other files.

    Raises Torn if the manifest is invalid.
    """
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_text())
        version = document.get("version", VERSION)
        if version != VERSION:
            raise Torn(f"{folder.name} has version {version}; expected {VERSION}")
        manifest = Manifest(**document)
        sizes = [int(entry["size"]) for entry in manifest.files.values() if entry["sha256"]]
    except PermissionError as error:
        raise Unreadable(f"user {os.getuid()} cannot read {error.filename}") from error
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise Torn(f"{folder.name}: {MANIFEST} cannot be read: {error}") from error
    if not sizes:
        raise Torn(f"{folder.name}: {MANIFEST} names no files")
    return manifest


def verified(folder: Path) -> Manifest:
    """Verify a checkpoint's files, and return its manifest. Raises Torn if the checkpoint is damaged."""
    manifest = manifest_of(folder)
    if NAME.fullmatch(folder.name) and folder.name != manifest.name:
        raise Torn(f"{folder.name} holds the checkpoint {manifest.name}")
    for name, entry in manifest.files.items():
        path = folder / name
        try:
            if not path.is_file():
                raise Torn(f"{folder.name}: {name} is missing")
            if path.stat().st_size != entry["size"]:
                raise Torn(f"{folder.name}: {name} has {path.stat().st_size} bytes; expected {entry['size']}")
            if digest(path) != entry["sha256"]:
                raise Torn(f"{folder.name}: {name} does not match its digest in the manifest")
        except PermissionError as error:
            raise Unreadable(f"user {os.getuid()} cannot read {path}") from error
        except OSError as error:
            raise Torn(f"{folder.name}: {name} cannot be read: {error.strerror}") from error
    return manifest


def newest(run: Path, say: Callable[[str], None]) -> tuple[Path, Manifest] | None:
    """Return a run's newest intact checkpoint, or None. Report defects of newer checkpoints through `say`.

    If the current user is not allowed to read a checkpoint, raises Unreadable instead of skipping it.
    """
    for folder in sorted(all_of(run), key=step_of, reverse=True):
        try:
            return folder, verified(folder)
        except Unreadable:
            raise
        except Torn as error:
            say(f"{error}; this checkpoint is not used")
    return None


def all_of(run: Path) -> Iterator[Path]:
    """Yield the folders in a run that are named like checkpoints, including links to folders."""
    yield from (path for path in entries(run) if path.is_dir())


def entries(run: Path) -> Iterator[Path]:
    """Yield everything in a run that is named like a checkpoint, including files and broken links."""
    yield from (path for path in run.glob("epoch-*-step-*") if NAME.fullmatch(path.name))


def step_of(folder: Path) -> int:
    """Return the step in the name of a checkpoint's folder."""
    return int(folder.name.rpartition("-")[2])


def write(path: Path, save: Callable[[Path], object]) -> dict[str, Any]:
    """Write a file by calling `save`, and flush it to disk. Return its size and SHA-256 digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path)
    flush(path)
    return {"size": path.stat().st_size, "sha256": digest(path)}


def complete(partial: Path, manifest: Manifest) -> Path:
    """Turn the folder with all ranks' files into a checkpoint. Call this on only one rank."""
    path = partial / MANIFEST
    path.write_text(json.dumps(asdict(manifest), indent=1))
    flush(path)
    for folder in (*(each for each in partial.iterdir() if each.is_dir()), partial):
        flush(folder)
    final = partial.parent / manifest.name
    # If the folder exists, the checkpoint in it is damaged. Otherwise, the run would have resumed from it.
    if os.path.lexists(final):
        discard(final)
    partial.rename(final)
    flush(final.parent)
    return final


def begin(run: Path, manifest: Manifest) -> Path:
    """Create a new folder for all ranks' files, and return it. Call this on only one rank.

    The folder's name is always new. If a rank of an earlier attempt is still alive, it therefore writes into
    a different folder.
    """
    run.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{manifest.name}-", dir=run))
    partial.chmod(0o755)  # mkdtemp creates folders that only their owner can access.
    return partial


def tidy(run: Path) -> None:
    """Remove incomplete folders left by earlier attempts. Call this only when no other attempt is writing."""
    for path in run.glob(".*"):
        if path.name.startswith((".epoch-", ".gone-")):
            remove(path)


def point_best(run: Path, folder: Path) -> None:
    """Point `best` and best.txt to this checkpoint. Each change is atomic."""
    link = run / f".{BEST}-link"
    link.unlink(missing_ok=True)
    try:
        link.symlink_to(folder.name)
        link.replace(run / BEST)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    name = run / f".{BEST_NAME}"
    name.write_text(f"{folder.name}\n")
    name.replace(run / BEST_NAME)
    flush(run)


def restore_best(run: Path) -> None:
    """Restore the `best` symlink from best.txt if a copy of the run lacks it. Call this on only one rank."""
    if not os.path.lexists(run / BEST) and (folder := best(run)) is not None and folder in all_of(run):
        point_best(run, folder)


def best(run: Path) -> Path | None:
    """Return the checkpoint that `best` points to. Without `best`, return the one in best.txt, or None.

    The checkpoint itself may be missing. Only the last component of the link's target is used, because an
    absolute link in a copy of the run would point to the original run.
    """
    return next(iter(pointers(run).values()), None)


def pointers(run: Path) -> dict[str, Path]:
    """Return the checkpoints that `best` and best.txt name, in this order, keyed by BEST and BEST_NAME."""
    names: dict[str, str] = {}
    with suppress(OSError):
        names[BEST] = Path(os.readlink(run / BEST)).name
    with suppress(OSError, ValueError):
        names[BEST_NAME] = (run / BEST_NAME).read_text().strip()
    return {pointer: run / name for pointer, name in names.items() if NAME.fullmatch(name)}


def named(path: Path) -> Path:
    """Return the folder of the checkpoint at `path`, which may be a run's `best`."""
    folder = best(path.parent) if path.name == BEST and not path.is_dir() else None
    return folder or path.resolve()


def retain(run: Path, count: int, step: int | None = None) -> None:
    """Remove all checkpoints except the newest `count` (at least KEPT) and the best one.

    Call this on only one rank. `step` is the step of the checkpoint that was just written. Checkpoints of
    later steps are damaged. Otherwise, the run would have resumed from them. They are neither counted nor
    removed. Other checkpoints whose files have the wrong size are not counted either. Without these rules,
    damaged checkpoints would displace the one that was just written.
    """
    best_folder, intact_count = best(run), 0
    for folder in sorted(all_of(run), key=step_of, reverse=True):
        if step is not None and step_of(folder) > step:
            continue
        if intact_count < max(count, KEPT):
            intact_count += _has_all_bytes(folder)
        elif folder != best_folder:
            discard(folder)


def _has_all_bytes(folder: Path) -> bool:
    """Return whether the files have the sizes in the manifest. Unlike `verified`, do not read the files."""
    try:
        files = manifest_of(folder).files
        return all((folder / name).stat().st_size == entry["size"] for name, entry in files.items())
    except (OSError, Torn):
        return False


def discard(folder: Path) -> None:
    """Remove a checkpoint. Rename it first, so that leftovers are never mistaken for a checkpoint."""
    renamed = folder.with_name(f".gone-{folder.name}")
    remove(renamed)
    folder.rename(renamed)
    remove(renamed)


def remove(path: Path) -> None:
    """Remove a folder, a file or a link. On NFS, open files remain, and `tidy` removes them later."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def digest(path: Path) -> str:
    """Return a file's SHA-256 digest."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
