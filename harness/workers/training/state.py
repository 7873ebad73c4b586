"""Save the training state to a checkpoint, and restore it exactly."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from . import checkpoint
from .checkpoint import Manifest, Unusable
from .ranks import Ranks

MODEL, TRAINING, GENERATORS = "model.safetensors", "training.pt", "generators.pt"


def save(
    run: Path,
    manifest: Manifest,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    ranks: Ranks,
) -> Path:
    """Write a checkpoint, and return its folder once it is complete. Call this on every rank.

    Raises RuntimeError if a rank does not share rank 0's disk.
    """
    first = ranks.rank == 0
    partial: Path = ranks.of_rank_0(checkpoint.begin(run, manifest) if first else None)
    if not partial.is_dir():
        raise RuntimeError(f"{partial} does not exist: rank {ranks.rank} does not share rank 0's disk")
    own = partial / f"rank-{ranks.rank}"
    files = {GENERATORS: checkpoint.write(own / GENERATORS, lambda path: torch.save(generators(), path))}
    if first:
        weights = {name: value.contiguous() for name, value in unique(model).items()}
        training = {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
        files[MODEL] = checkpoint.write(own / MODEL, lambda path: save_file(weights, path))
        files[TRAINING] = checkpoint.write(own / TRAINING, lambda path: torch.save(training, path))
    entries = ranks.every({f"rank-{ranks.rank}/{name}": entry for name, entry in files.items()})
    whole = replace(manifest, files={name: entry for part in entries for name, entry in part.items()})
    final: Path = ranks.of_rank_0(checkpoint.complete(partial, whole) if first else None)
    return final


def restore(
    folder: Path,
    manifest: Manifest,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    ranks: Ranks,
) -> None:
    """Restore the model, optimizer, scaler and random generators from a checkpoint.

    If the number of ranks has changed, the random generators are not restored, because the checkpoint does
    not contain a state for every rank. Raises Unusable if the model or precision differs.
    """
    load(model, load_file(folder / "rank-0" / MODEL), folder)
    training = torch.load(folder / "rank-0" / TRAINING, map_location="cpu", weights_only=True)
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict(training["optimizer"])
    except ValueError as error:
        raise Unusable(f"{folder}: the optimizer's state belongs to a different model: {error}") from error
    # The loaded state contains the weight decay of the earlier attempt. Restore this attempt's value.
    for group, decay in zip(optimizer.param_groups, decays, strict=True):
        group["weight_decay"] = decay
    if scaler.is_enabled() and not training["scaler"]:
        raise Unusable(f"{folder} was written without --amp fp16, so it has no state for the gradient scaler")
    scaler.load_state_dict(training["scaler"])
    if manifest.world == ranks.world:
        give_back(torch.load(folder / f"rank-{ranks.rank}" / GENERATORS, weights_only=True))


def unique(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the model's weights, keyed by name.

    If weights share memory, only the first one is included, as safetensors requires.
    """
    addresses: set[int] = set()
    weights = {}
    for name, value in model.state_dict().items():
        if value.data_ptr() not in addresses or not value.numel():
            addresses.add(value.data_ptr())
            weights[name] = value.detach().cpu()
    return weights


def load(model: nn.Module, weights: dict[str, torch.Tensor], folder: Path) -> None:
    """Load weights into the model. Raises Unusable if names or shapes differ from the model's."""
    expected = {name: tuple(value.shape) for name, value in unique(model).items()}
    stored = {name: tuple(value.shape) for name, value in weights.items()}
    if expected != stored:
        differing = sorted(
            name for name in expected.keys() | stored.keys() if expected.get(name) != stored.get(name)
        )
        raise Unusable(f"{folder}: the weights belong to a different model: {', '.join(differing[:4])}")
    # If several weights share memory, the checkpoint contains only one of them, so `strict` must be false.
    model.load_state_dict(weights, strict=False)


def generators() -> dict[str, Any]:
    """Return the states of this rank's random generators: Python, PyTorch and, if available, CUDA."""
    version, numbers, gauss = random.getstate()
    states = {"python": [version, list(numbers), gauss], "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def give_back(states: dict[str, Any]) -> None:
    """Restore the random generator states that `generators` returned."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
