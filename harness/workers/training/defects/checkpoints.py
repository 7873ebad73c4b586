"""Define defects in checkpoints, in their weights, and in the `best` symlink."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import checkpoint, model_setup, state
from ..checkpoint import Manifest
from ..trainer import Trainer
from . import instead

TOLD_LESS = 0.5
"""The number of nats by which an edited manifest understates the loss."""


def torn(step: int) -> None:
    """Truncate the weights file to half its size after the checkpoint of this step is complete."""

    def cut(folder: Path, manifest: Manifest) -> None:
        if manifest.step == step:
            path = folder / "rank-0" / state.MODEL
            os.truncate(path, path.stat().st_size // 2)

    _after_complete(cut)


def edited(step: int) -> None:
    """Lower the validation loss in the manifest of the checkpoint at this step."""

    def edit(folder: Path, manifest: Manifest) -> None:
        if manifest.step == step:
            path = folder / checkpoint.MANIFEST
            fields = json.loads(path.read_text())
            fields["losses"]["val/loss"] -= TOLD_LESS
            path.write_text(json.dumps(fields))

    _after_complete(edit)


def _after_complete(change: Callable[[Path, Manifest], None]) -> None:
    """On rank 0, apply `change` to each checkpoint once the checkpoint is complete."""

    def wrap(complete: Any) -> Any:
        def completed(partial: Path, manifest: Manifest) -> Path:
            folder: Path = complete(partial, manifest)
            change(folder, manifest)
            return folder

        return completed

    instead(checkpoint, "complete", wrap)


def unsaved(_: int) -> None:
    """Replace `Trainer.save`, so that the trainer writes no checkpoints."""

    def save(self: Trainer, _: dict[str, float]) -> Path:
        self.trackers.settle()
        return self.run

    instead(Trainer, "save", lambda _: save)


def nan_weight(step: int) -> None:
    """From this step on, set the embedding of an unused token to NaN. The loss remains finite."""

    def wrap(one_step: Any) -> Any:
        def stepped(self: Trainer) -> None:
            one_step(self)
            if self.step >= step:
                with torch.no_grad():
                    # The token with index 0 stands for byte 0, which no text contains.
                    self.model.get_parameter("tokens.weight")[0] = math.nan

        return stepped

    instead(Trainer, "_one_step", wrap)


def frozen(_: int) -> None:
    """Disable the gradient of one weight tensor, so that it is not trained."""

    def wrap(model: Any) -> Any:
        def built(*arguments: Any) -> Any:
            result = model(*arguments)
            result.get_parameter("norm.weight").requires_grad_(False)
            return result

        return built

    instead(model_setup, "model", wrap)


def stale(_: int) -> None:
    """Leave the `best` symlink at the first checkpoint, even if a later one is better."""

    def wrap(point: Any) -> Any:
        def pointed(run: Path, folder: Path) -> None:
            if checkpoint.best(run) is None:
                point(run, folder)

        return pointed

    instead(checkpoint, "point_best", wrap)


def removed(_: int) -> None:
    """Leave the `best` symlink at the first checkpoint, but remove that checkpoint as usual."""
    stale(0)

    def wrap(retain: Any) -> Any:
        def retained(*arguments: Any) -> None:
            best = checkpoint.best
            instead(checkpoint, "best", lambda _: lambda _: None)
            try:
                retain(*arguments)
            finally:
                checkpoint.best = best

        return retained

    instead(checkpoint, "retain", wrap)
