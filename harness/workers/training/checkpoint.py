"""Atomic checkpoints: whole or absent, whichever process is killed at whatever time.

    OUT/RUN/epoch-0001-step-00000120/
        rank-0/model.safetensors      the weights, equal on every rank
        rank-0/training.pt            optimizer, scaler, place in the data
        rank-K/generators.pt          the states of rank K's random generators
        manifest.json                 size and SHA-256 of each file, world size, losses
    OUT/RUN/best                      a link to the checkpoint with the lowest validation loss
    OUT/RUN/best.txt                  its name, for copies that lose links, such as those of `kubectl cp`
    OUT/RUN/trackers/id               a random name of the run (trackers.py)

Every rank writes its files into a folder whose name begins with a dot, and flushes them to the disk. Rank 0
writes the manifest last, and renames the folder. A folder without a manifest, or with files that do not match
it, is not a checkpoint. A resume reports such a folder, and uses the previous checkpoint.

torch.distributed.checkpoint is not used. Under DDP every rank holds the same state, so there is nothing to
assemble. Its folders have no sizes or hashes, so a torn file would be noticed only while it is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

VERSION = 1
MANIFEST = "manifest.json"
BEST, BEST_NAME = "best", "best.txt"
TRACKERS, IDENTITY = "trackers", "id"
"""The folder of trackers.py in the run's folder, and its file that identifies the run in the trackers."""
KEPT = 2
"""Smallest number of checkpoints to keep, because the newest one may be torn."""


@dataclass(frozen=True)
class Manifest:
    """The manifest of a checkpoint."""

    epoch: int
    """The epoch in which the training continues, from 0."""
    step: int
    """Completed steps, over all epochs."""
    place: int
    """Number of sequences of this epoch that were trained on."""
    world: int
    order: dict[str, int]
    """The values that determine the order of the data: seed, sequences, batch, context."""
    options: dict[str, Any] = field(default_factory=dict)
    """All options of the training, by name (options.py)."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Path in the folder → size in bytes and sha256."""
    losses: dict[str, float] = field(default_factory=dict)
    """The losses known at this step, such as `val/loss`."""
    version: int = VERSION

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return f"epoch-{self.epoch:04d}-step-{self.step:08d}"


class Torn(Exception):
    """A folder is not a whole checkpoint. The message has the reason."""


def verified(folder: Path) -> Manifest:
    """Return the manifest of a whole checkpoint. Raises Torn."""
    try:
        read = json.loads((folder / MANIFEST).read_text())
        manifest = Manifest(**read)
    except (OSError, ValueError, TypeError) as error:
        raise Torn(f"{folder.name}: {MANIFEST} cannot be read: {error}") from error
    if manifest.version != VERSION:
        raise Torn(f"{folder.name} has version {manifest.version}; expected {VERSION}")
    for name, entry in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise Torn(f"{folder.name}: {name} is missing")
        if path.stat().st_size != entry["size"]:
            raise Torn(f"{folder.name}: {name} has {path.stat().st_size} bytes of {entry['size']}")
        if digest(path) != entry["sha256"]:
            raise Torn(f"{folder.name}: {name} has other bytes than were written")
    return manifest


def newest(run: Path, say: Callable[[str], None]) -> tuple[Path, Manifest] | None:
    """Return the newest whole checkpoint of a run, or None. Report the defects of newer ones to `say`."""
    for folder in sorted(all_of(run), key=lambda one: one.name.rpartition("-")[2], reverse=True):
        try:
            return folder, verified(folder)
        except Torn as error:
            say(f"{error}: it is not used")
    return None


def all_of(run: Path) -> Iterator[Path]:
    """Yield the folders of a run that have the name of a checkpoint."""
    yield from (path for path in run.glob("epoch-*-step-*") if path.is_dir() and not path.is_symlink())


def write(path: Path, save: Callable[[Path], object]) -> dict[str, Any]:
    """Write a file with `save`, and flush it. Return its size and digest, as read from the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path)
    flush(path)
    return {"size": path.stat().st_size, "sha256": digest(path)}


def complete(partial: Path, manifest: Manifest) -> Path:
    """Turn a folder, in which every rank has written its files, into a checkpoint. Only one rank calls it."""
    path = partial / MANIFEST
    path.write_text(json.dumps(asdict(manifest), indent=1))
    flush(path)
    for folder in (*(each for each in partial.iterdir() if each.is_dir()), partial):
        flush(folder)
    final = partial.parent / manifest.name
    if final.exists():  # it is torn, or the run would have resumed from it
        discard(final)
    partial.rename(final)
    flush(final.parent)
    return final


def begin(run: Path, manifest: Manifest) -> Path:
    """Create a new folder for the files of all ranks, and return it. Only one rank calls it.

    Its name is always new, so that a rank of an earlier attempt that is still alive does not write into it.
    """
    run.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{manifest.name}-", dir=run))
    partial.chmod(0o755)  # mkdtemp gives access only to the owner
    return partial


def tidy(run: Path) -> None:
    """Remove incomplete folders of earlier attempts. No other attempt may be writing."""
    for path in run.glob(".*"):
        if path.name.startswith((".epoch-", ".gone-")):
            shutil.rmtree(path, ignore_errors=True)


def point_best(run: Path, folder: Path) -> None:
    """Point `best` to this checkpoint. The change is atomic."""
    link = run / f".{BEST}-link"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.replace(run / BEST)
    name = run / f".{BEST_NAME}"
    name.write_text(f"{folder.name}\n")
    name.replace(run / BEST_NAME)
    flush(run)


def restore_best(run: Path) -> None:
    """Restore the link `best` from best.txt in a copy of a run that lost it. Only one rank calls it."""
    name = run / BEST_NAME
    if name.is_file() and not os.path.lexists(run / BEST):
        folder = run / Path(name.read_text().strip()).name
        if folder in all_of(run):
            point_best(run, folder)


def best(run: Path) -> Path | None:
    """Return the folder that `best` names, or None."""
    link = run / BEST
    return run / os.readlink(link) if link.is_symlink() else None


def retain(run: Path, kept: int) -> None:
    """Remove all checkpoints but the newest `kept` and the best one. Only one rank calls it."""
    spared = best(run)
    folders = sorted(all_of(run), key=lambda one: one.name.rpartition("-")[2])
    for folder in folders[: -max(kept, KEPT)]:
        if folder != spared:
            discard(folder)


def discard(folder: Path) -> None:
    """Remove a checkpoint. Rename it first, so that a partly removed one is not taken for a checkpoint."""
    gone = folder.with_name(f".gone-{folder.name}")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
