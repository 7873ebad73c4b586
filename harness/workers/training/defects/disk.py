"""Defects of checkpoints, of the weights in them, and of `best`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import build, checkpoint, state
from ..checkpoint import Manifest
from ..trainer import Trainer
from . import instead

TOLD_LESS = 0.5
"""Nats that an edited manifest claims less."""


def torn(step: int) -> None:
    """The weights of the checkpoint of this step are cut in half after they got their name."""

    def cut(folder: Path, manifest: Manifest) -> None:
        if manifest.step == step:
            path = folder / "rank-0" / state.MODEL
            os.truncate(path, path.stat().st_size // 2)

    _after_complete(cut)


def edited(step: int) -> None:
    """The manifest of the checkpoint of this step claims a lower validation loss than was found."""

    def edit(folder: Path, manifest: Manifest) -> None:
        if manifest.step == step:
            path = folder / checkpoint.MANIFEST
            said = json.loads(path.read_text())
            said["losses"]["val/loss"] -= TOLD_LESS
            path.write_text(json.dumps(said))

    _after_complete(edit)


def _after_complete(change: Callable[[Path, Manifest], None]) -> None:
    """Have rank 0 change each checkpoint once it is complete."""

    def made(complete: Any) -> Any:
        def completed(partial: Path, manifest: Manifest) -> Path:
            folder: Path = complete(partial, manifest)
            change(folder, manifest)
            return folder

        return completed

    instead(checkpoint, "complete", made)


def unsaved(_: int) -> None:
    """No checkpoint is written."""

    def save(self: Trainer, _: dict[str, float]) -> Path:
        self.trackers.settle()
        return self.run

    instead(Trainer, "save", lambda _: save)


def nan_weight(step: int) -> None:
    """From this step on a weight is NaN that no text uses: the loss stays finite."""

    def made(one_step: Any) -> Any:
        def stepped(self: Trainer) -> None:
            one_step(self)
            if self.step >= step:
                with torch.no_grad():
                    self.model.get_parameter("tokens.weight")[0] = math.nan  # the byte 0

        return stepped

    instead(Trainer, "_one_step", made)


def frozen(_: int) -> None:
    """One weight requires no gradient."""

    def made(model: Any) -> Any:
        def built(*given: Any) -> Any:
            found = model(*given)
            found.get_parameter("norm.weight").requires_grad_(False)
            return found

        return built

    instead(build, "model", made)


def stale(_: int) -> None:
    """`best` stays at the first checkpoint that it led to."""

    def made(point: Any) -> Any:
        def pointed(run: Path, folder: Path) -> None:
            if checkpoint.best(run) is None:
                point(run, folder)

        return pointed

    instead(checkpoint, "point_best", made)


def removed(_: int) -> None:
    """`best` is stale, and its checkpoint is removed as any other that is old."""
    stale(0)

    def made(retain: Any) -> Any:
        def retained(run: Path, kept: int) -> None:
            best = checkpoint.best
            instead(checkpoint, "best", lambda _: lambda _: None)
            try:
                retain(run, kept)
            finally:
                checkpoint.best = best

        return retained

    instead(checkpoint, "retain", made)
