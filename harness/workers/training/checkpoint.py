"""Atomic checkpoints: each one is complete or absent, no matter when a process is killed.

    OUT/RUN/epoch-0001-step-00000120/
        rank-0/model.safetensors      the weights, equal on every rank
        rank-0/training.pt            the states of the optimizer and the gradient scaler
        rank-K/generators.pt          the states of rank K's random generators
        manifest.json                 size and SHA-256 of each file, position in the data, world size, losses
    OUT/RUN/best                      a link to the checkpoint with the lowest validation loss
    OUT/RUN/best.txt                  the name of that checkpoint, because `kubectl cp` does not copy links
    OUT/RUN/trackers/id               a random identifier of the run (trackers.py)

Every rank writes its files into a folder whose name begins with a dot, and flushes them to the disk. Rank 0
writes the manifest last, and renames the folder. A folder without a manifest, or with files that do not match
the manifest, is not a checkpoint. A resumed run reports such a folder, and uses the previous checkpoint.

torch.distributed.checkpoint is not used. Under DDP every rank holds the same state, so there is nothing to
assemble. Its folders contain no sizes or hashes, so a damaged file would be noticed only when it is
loaded.
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
"""The subfolder of a run for trackers.py, and the file in it that identifies the run in the trackers."""
KEPT = 2
"""Smallest number of checkpoints to keep. If the newest is damaged, the one before is used."""


@dataclass(frozen=True)
class Manifest:
    """The manifest of a checkpoint."""

    epoch: int
    """The epoch in which the training continues, counted from 0."""
    step: int
    """Completed steps, over all epochs."""
    place: int
    """Number of sequences of this epoch that the model was trained on."""
    world: int
    order: dict[str, int]
    """The values that determine the order of the data: seed, sequences, batch, context."""
    options: dict[str, Any] = field(default_factory=dict)
    """All options of the training, by name (options.py)."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Path in the folder → `size` in bytes and `sha256`."""
    losses: dict[str, float] = field(default_factory=dict)
    """The losses known at this step, such as `val/loss`."""
    version: int = VERSION

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return f"epoch-{self.epoch:04d}-step-{self.step:08d}"


class Torn(Exception):
    """Raised if a folder is not an intact checkpoint. The message gives the reason."""


def verified(folder: Path) -> Manifest:
    """Verify the files of a checkpoint, and return its manifest. Raises Torn if it is damaged."""
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
    """Return the newest intact checkpoint of a run, or None. Pass the defects of newer ones to `say`."""
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
    """Write a file with the function `save`, and flush it to disk. Return its size and SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path)
    flush(path)
    return {"size": path.stat().st_size, "sha256": digest(path)}


def complete(partial: Path, manifest: Manifest) -> Path:
    """Turn the folder with the files of all ranks into a checkpoint. Call this on only one rank."""
    path = partial / MANIFEST
    path.write_text(json.dumps(asdict(manifest), indent=1))
    flush(path)
    for folder in (*(each for each in partial.iterdir() if each.is_dir()), partial):
        flush(folder)
    final = partial.parent / manifest.name
    if final.exists():  # it is damaged, or the run would have resumed from it
        discard(final)
    partial.rename(final)
    flush(final.parent)
    return final


def begin(run: Path, manifest: Manifest) -> Path:
    """Create a new folder for the files of all ranks, and return it. Call this on only one rank.

    The folder's name is always new. A rank of an earlier attempt that is still alive does not write into it.
    """
    run.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{manifest.name}-", dir=run))
    partial.chmod(0o755)  # mkdtemp gives access to the owner only
    return partial


def tidy(run: Path) -> None:
    """Remove incomplete folders of earlier attempts. Call this only when no other attempt is writing."""
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
    """Restore the link `best` from best.txt, if a copy of the run lacks it. Call this on only one rank."""
    name = run / BEST_NAME
    if name.is_file() and not os.path.lexists(run / BEST):
        folder = run / Path(name.read_text().strip()).name
        if folder in all_of(run):
            point_best(run, folder)


def best(run: Path) -> Path | None:
    """Return the checkpoint to which the link `best` points, or None if there is no link."""
    link = run / BEST
    return run / os.readlink(link) if link.is_symlink() else None


def retain(run: Path, kept: int) -> None:
    """Remove all checkpoints except the newest `kept` and the best one. Call this on only one rank."""
    spared = best(run)
    folders = sorted(all_of(run), key=lambda one: one.name.rpartition("-")[2])
    for folder in folders[: -max(kept, KEPT)]:
        if folder != spared:
            discard(folder)


def discard(folder: Path) -> None:
    """Remove a checkpoint. Rename it first, so that its remains are never mistaken for a checkpoint."""
    gone = folder.with_name(f".gone-{folder.name}")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
