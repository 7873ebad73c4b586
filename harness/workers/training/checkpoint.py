"""Checkpoints that are whole or not there, whatever is killed when.

    OUT/RUN/epoch-0001-step-00000120/
        rank-0/model.safetensors      the weights, equal on every rank
        rank-0/training.pt            optimizer, scaler, place in the data
        rank-K/generators.pt          the states of rank K's random generators
        manifest.json                 size and SHA-256 of each file, world size, losses
    OUT/RUN/best                      a link to the one with the lowest validation loss
    OUT/RUN/best.txt                  its name, for copies that lose links, as those of `kubectl cp`
    OUT/RUN/trackers/id               a random name of the run (trackers.py)

Every rank writes its files into a folder whose name begins with a dot, and flushes them to the disk. Rank 0
writes the manifest last, and renames the folder. So a folder without a manifest, or whose files are not what
the manifest says, is no checkpoint: a resume says so and takes the one before.

torch.distributed.checkpoint is not used: under DDP every rank holds the same state, so there is nothing to
put together, and its folders carry neither sizes nor hashes: a torn file would be found while it is loaded.
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
"""In the run's folder: the folder of trackers.py, and in it what names the run in the trackers."""
KEPT = 2
"""Checkpoints that are kept at least. The newest may turn out to be torn."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    epoch: int
    """The epoch that goes on, from 0."""
    step: int
    """Steps that were made, over all epochs."""
    place: int
    """Sequences of this epoch that were trained on."""
    world: int
    order: dict[str, int]
    """What the order of the data is made from: seed, sequences, batch, context."""
    options: dict[str, Any] = field(default_factory=dict)
    """All options of the training, by their names in options.py."""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Path in the folder → size in bytes, and sha256."""
    losses: dict[str, float] = field(default_factory=dict)
    """What is known at this step, as `val/loss`."""
    version: int = VERSION

    @property
    def name(self) -> str:
        """Return the folder's name. Names sort as steps do."""
        return f"epoch-{self.epoch:04d}-step-{self.step:08d}"


class Torn(Exception):
    """A folder is not a whole checkpoint. The message says what is wrong with it."""


def verified(folder: Path) -> Manifest:
    """Return the manifest of a whole checkpoint. Raises Torn."""
    try:
        read = json.loads((folder / MANIFEST).read_text())
        manifest = Manifest(**read)
    except (OSError, ValueError, TypeError) as error:
        raise Torn(f"{folder.name}: {MANIFEST} cannot be read: {error}") from error
    if manifest.version != VERSION:
        raise Torn(f"{folder.name} is of version {manifest.version}; {VERSION} is expected")
    for name, told in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise Torn(f"{folder.name}: {name} is missing")
        if path.stat().st_size != told["size"]:
            raise Torn(f"{folder.name}: {name} has {path.stat().st_size} bytes of {told['size']}")
        if digest(path) != told["sha256"]:
            raise Torn(f"{folder.name}: {name} has other bytes than were written")
    return manifest


def newest(run: Path, say: Callable[[str], None]) -> tuple[Path, Manifest] | None:
    """Return the newest whole checkpoint of a run, or None. Says of each newer one why it is none."""
    for folder in sorted(all_of(run), key=lambda one: one.name.rpartition("-")[2], reverse=True):
        try:
            return folder, verified(folder)
        except Torn as error:
            say(f"{error}: it is not used")
    return None


def all_of(run: Path) -> Iterator[Path]:
    """Yield the folders of a run that claim to be checkpoints."""
    yield from (path for path in run.glob("epoch-*-step-*") if path.is_dir() and not path.is_symlink())


def write(path: Path, save: Callable[[Path], object]) -> dict[str, Any]:
    """Have a file written and flushed to the disk. Return its size and digest, as they are on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path)
    flush(path)
    return {"size": path.stat().st_size, "sha256": digest(path)}


def complete(partial: Path, manifest: Manifest) -> Path:
    """Make a folder, in which every rank has written its files, a checkpoint. For one rank alone."""
    path = partial / MANIFEST
    path.write_text(json.dumps(asdict(manifest), indent=1))
    flush(path)
    for folder in (*(each for each in partial.iterdir() if each.is_dir()), partial):
        flush(folder)
    final = partial.parent / manifest.name
    if final.exists():  # torn, or it would have been resumed from
        discard(final)
    partial.rename(final)
    flush(final.parent)
    return final


def begin(run: Path, manifest: Manifest) -> Path:
    """Return a new folder for the ranks to write into. For one rank alone.

    Its name is new each time: a rank of an earlier attempt that still lives must not write into it.
    """
    run.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{manifest.name}-", dir=run))
    partial.chmod(0o755)  # mkdtemp's folders are for their owner alone
    return partial


def tidy(run: Path) -> None:
    """Remove what earlier attempts left half written. Only when no other attempt writes."""
    for path in run.glob(".*"):
        if path.name.startswith((".epoch-", ".gone-")):
            shutil.rmtree(path, ignore_errors=True)


def point_best(run: Path, folder: Path) -> None:
    """Let `best` be this checkpoint. At any moment `best` is the old one or the new one."""
    link = run / f".{BEST}-link"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.replace(run / BEST)
    name = run / f".{BEST_NAME}"
    name.write_text(f"{folder.name}\n")
    name.replace(run / BEST_NAME)
    flush(run)


def restore_best(run: Path) -> None:
    """Make the link `best` again in a copy of a run that lost it. For one rank alone."""
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
    """Remove all but the newest `kept` whole checkpoints, and the best. For one rank alone."""
    spared = best(run)
    folders = sorted(all_of(run), key=lambda one: one.name.rpartition("-")[2])
    for folder in folders[: -max(kept, KEPT)]:
        if folder != spared:
            discard(folder)


def discard(folder: Path) -> None:
    """Remove a checkpoint. First it loses its name, so that no half of it looks like one."""
    gone = folder.with_name(f".gone-{folder.name}")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
