"""Find the checkpoint from which a run resumes, and repair links and files that a copy of the run lacks.

A run may have been copied with `cp`, `kubectl cp`, rsync or an object store. Such a copy may lack symlinks,
or contain a folder or a text file instead, and its files may belong to a different user. Defects are repaired
if no data is lost. Any other defect raises Unusable before the first step, because every attempt would fail
in the same way.
"""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import checkpoint
from .checkpoint import BEST, BEST_NAME, MANIFEST, TRACKERS, Manifest, Torn, Unreadable, Unusable

_LASTING = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
}
"""Errors that a restart does not resolve. Other errors, such as a full disk, may be temporary."""
Say = Callable[[str], None]
VAL_LOSS, VAL_BEST = "val/loss", "val/best"
VAL_TEXTS, VAL_SINCE = "val/texts", "val/since"
"""Entries of Manifest.losses: the fingerprint of the validation texts on which the losses were measured, and
the step since which the run has used these texts."""


class Resumed(NamedTuple):
    """The checkpoint from which a run resumes."""

    folder: Path
    manifest: Manifest
    best: float
    """The lowest validation loss so far on the current validation texts. Infinity if there is none."""
    best_since: int
    """The step since which the run has used these texts."""


def open_run(run: Path) -> None:
    """Create a run's folder, or raise Unusable if the current user cannot modify everything in it."""
    try:
        run.mkdir(parents=True, exist_ok=True)
        probe = run / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        if error.errno in _LASTING:
            raise Unusable(_not_writable(run, error)) from error
        raise
    for folder in (run / TRACKERS, *checkpoint.entries(run)):
        if not folder.is_dir() and folder.name != TRACKERS:
            raise Unusable(_no_folder(folder))
        if folder.is_symlink() and folder.is_dir() and folder.name != TRACKERS:
            continue  # A resumed run may remove the link, but never changes its target.
        for each in (folder, *(path for path in folder.glob("*") if path.is_dir())):
            if os.path.lexists(each) and not (each.is_dir() and os.access(each, os.R_OK | os.W_OK | os.X_OK)):
                raise Unusable(_not_writable(each, None))


def _not_writable(path: Path, error: OSError | None) -> str:
    """Return the error message for a path that is not a folder, or that the current user cannot modify."""
    expected = f"{path}: expected a folder that user {os.getuid()} can read and write"
    try:
        status = path.stat()
    except OSError:
        parent = next((each for each in path.parents if each.is_dir()), path)
        link_error = f"{path} is a broken link" if path.is_symlink() else ""
        reason = link_error or f"{error.strerror if error else 'it cannot be read'} in {parent}"
        action = (
            "Remove the link, or use another run name"
            if link_error
            else "Correct the path or its permissions"
        )
        return f"{expected}; found: {reason}. {action}"
    if not stat.S_ISDIR(status.st_mode):
        return f"{expected}; found a file. Remove it, or use another run name"
    if error is not None and error.errno == errno.EROFS:
        return f"{expected}; found a read-only file system. Mount the volume for writing"
    owner = f"user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}"
    return f"{expected}; found a folder of {owner}. Run as that user, or change the owner with `chown -R`"


def _no_folder(path: Path) -> str:
    """Return the error message for a file or broken link that is named like a checkpoint.

    A checkpoint may have been moved to a volume that is not mounted here, and Git, rsync and zip may replace
    a link with a file. If the run skipped the checkpoint, it would repeat steps, or start from the beginning.
    """
    found = "a file"
    if path.is_symlink():
        found = f"a broken link to {os.readlink(path)}"
    return (
        f"{path}: expected the folder of a checkpoint, found {found}. Put the folder back, or remove this "
        "path to continue without the checkpoint"
    )


def resumable(run: Path, say: Say, val_texts: int | None = None) -> Resumed | None:
    """Return the checkpoint from which a run resumes, or None for a new run. Repair `best` and best.txt.

    `val_texts` is the fingerprint of the current validation texts. Losses that were measured on other texts
    are not compared with later ones. Call this on only one rank, while no other attempt is writing. Raises
    Unusable if the run has checkpoints, but none can be used, or if a repair would lose data.
    """
    try:
        _replace_best(run, say)
        defects: list[str] = []
        newest = checkpoint.newest(run, defects.append)
    except Unreadable as error:
        raise Unusable(f"{error}. Run as the file's owner, or change the owner with `chown -R`") from error
    if newest is None and defects:
        defect = defects[0].removesuffix("; this checkpoint is not used")
        raise Unusable(
            f"{run} has {len(defects)} checkpoints, and none can be used ({defect}): restore a checkpoint "
            "from a copy, or remove the run to start over"
        )
    for defect in defects:
        say(defect)
    _report_nested(run, newest and newest[1].step, say)
    if newest is None:
        return None
    _repair_pointers(run, newest, say, val_texts)
    return Resumed(*newest, *_lowest_loss(run, newest[1], say, val_texts))


def _lowest_loss(run: Path, newest: Manifest, say: Say, val_texts: int | None) -> tuple[float, int]:
    """Return the lowest loss on the current validation texts, and the step since which they have been used.

    Losses on different texts are not comparable, because any model has a lower loss on easier texts. If the
    texts have changed since the newest checkpoint, only other checkpoints that were measured on the current
    texts count.
    """
    if not _is_of(newest, val_texts):
        say(
            f"the validation texts have changed since step {newest.step}: losses of other texts are not "
            "compared, and `best` becomes the checkpoint with the lowest loss on the current texts"
        )
        losses = (loss for loss, _, _, manifest in _measured(run, newest.step) if _is_of(manifest, val_texts))
        return min(losses, default=math.inf), newest.step
    return newest.losses.get(VAL_BEST, math.inf), int(newest.losses.get(VAL_SINCE, 0))


def _is_of(manifest: Manifest, val_texts: float | None) -> bool:
    """Return whether a checkpoint's losses were measured on the validation texts with this fingerprint.

    For a checkpoint without a fingerprint, the result is True, because earlier versions did not record one.
    """
    known = manifest.losses.get(VAL_TEXTS)
    return known is None or val_texts is None or known == val_texts


def _measured(run: Path, last_step: int) -> list[tuple[float, int, Path, Manifest]]:
    """Return loss, step, folder and manifest of each checkpoint with a validation loss, lowest loss first."""
    measured: list[tuple[float, int, Path, Manifest]] = []
    for folder in checkpoint.all_of(run):
        try:
            manifest = checkpoint.manifest_of(folder)
        except Torn:
            continue
        loss = manifest.losses.get(VAL_LOSS, math.nan)
        if math.isfinite(loss) and manifest.step <= last_step:
            measured.append((loss, manifest.step, folder, manifest))
    return sorted(measured, key=lambda one: one[:3])


def _report_nested(run: Path, newest: int | None, say: Say) -> None:
    """Report a subfolder of a run that contains later checkpoints than the run itself.

    A copy of the run may be in a subfolder, because `cp -r` and `kubectl cp` copy into a folder that already
    exists, and tar keeps the folders above the run. Raises Unusable if the subfolder seems to be such a copy.
    Otherwise, a user may have put the checkpoints aside to resume from an earlier step.
    """
    manifests = [
        path
        for above in ("*", "*/*", "*/*/*")
        for path in run.glob(f"{above}/epoch-*-step-*/{MANIFEST}")
        if checkpoint.NAME.fullmatch(path.parent.name)
    ]
    last = max(manifests, key=lambda path: checkpoint.step_of(path.parent), default=None)
    if last is None or (newest is not None and checkpoint.step_of(last.parent) <= newest):
        return
    nested, step = last.parent.parent, checkpoint.step_of(last.parent)
    has = "no checkpoints" if newest is None else f"checkpoints up to step {newest}"
    found = f"{run} has {has}, but its subfolder {nested.relative_to(run)} has one of step {step}"
    if newest is None or nested.name == run.name:
        raise Unusable(
            f"{found}, as after a copy into an existing folder: move the content of {nested} to {run} to "
            "resume from it, or move the subfolder out of the run"
        )
    say(f"{found}, which is not used")


def _replace_best(run: Path, say: Say) -> None:
    """Replace `best` if it is a file or a folder instead of a symlink, as in a copy of the run.

    Raises Unusable if data would be lost.
    """
    path = run / BEST
    if os.path.lexists(run / BEST_NAME) and not (run / BEST_NAME).is_file():
        raise Unusable(
            f"{run / BEST_NAME}: expected a file with the name of a checkpoint. Remove or rename it"
        )
    if path.is_symlink() or not os.path.lexists(path):
        return
    if path.is_file():
        # rsync, zip and Git may replace a symlink with a file that contains the path of its target.
        if checkpoint.NAME.fullmatch(Path(path.read_bytes()[:200].decode(errors="replace").strip()).name):
            path.unlink()
            return
        raise Unusable(f"{path}: expected a link to a checkpoint, found another file. Remove or rename it")
    if not path.is_dir():
        raise Unusable(
            f"{path}: expected a link to a checkpoint, found neither a file nor a folder. Remove it"
        )
    try:
        manifest = checkpoint.verified(path)
    except Unreadable:
        raise
    except Torn as error:
        raise Unusable(
            f"{path}: expected a link to a checkpoint, found a folder that is not a complete checkpoint "
            f"({error}). Remove or rename it"
        ) from error
    if other_files := sorted(_files(path) - {MANIFEST, *manifest.files}):
        raise Unusable(
            f"{path} is a copy of {manifest.name}, but {other_files[0]} is not part of it: "
            "move that file elsewhere"
        )
    original = run / manifest.name
    if _intact(original):
        checkpoint.discard(path)
        say(f"{path} was a copy of {manifest.name}, and has been replaced with a link to it")
        return
    if original.exists():
        checkpoint.discard(original)
    path.rename(original)
    checkpoint.flush(run)
    say(f"{path} was the only intact copy of {manifest.name}, and has been renamed to that name")


def _files(folder: Path) -> set[str]:
    return {f"{path.relative_to(folder)}" for path in folder.rglob("*") if not path.is_dir()}


def _intact(folder: Path) -> bool:
    try:
        checkpoint.verified(folder)
    except Unreadable:
        raise
    except Torn:
        return False
    return True


def _repair_pointers(run: Path, newest: tuple[Path, Manifest], say: Say, val_texts: int | None) -> None:
    """Point `best` to the intact checkpoint with the lowest loss on the current validation texts.

    If no checkpoint was measured on them, use the texts of the last measured checkpoint. The losses are read
    from the manifests, because a copy may have lost the pointers, and an attempt may have been killed before
    it updated the pointers.
    """
    measured = _measured(run, newest[1].step)
    if measured and not any(_is_of(manifest, val_texts) for *_, manifest in measured):
        last = max(measured, key=lambda one: one[1])[3]
        texts: float | None = last.losses[VAL_TEXTS]
    else:
        texts = val_texts
    pointers = checkpoint.pointers(run)
    for _, _, folder, manifest in measured:
        if not _is_of(manifest, texts):
            continue
        complete = pointers == {BEST: folder, BEST_NAME: folder} and folder.is_dir()
        if complete and not Path(os.readlink(run / BEST)).is_absolute():
            return
        if folder == newest[0] or _intact(folder):
            checkpoint.point_best(run, folder)
            if pointers and pointers.get(BEST) != folder:
                say(f"`best` now points to {folder.name}, which has the lowest validation loss")
            return
