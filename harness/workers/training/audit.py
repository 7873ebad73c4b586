"""Inspect the files of a training run, and print the findings as one JSON document.

    python -m training.audit --run-dir OUT/RUN --data-dir DIR

For each checkpoint, the document shows whether the files match the manifest, whether a model can be loaded
from them, and the digest of the weights. For the `best` link, the document shows the checkpoint that it
points to, the losses in that checkpoint's manifest, and the validation loss that this command recomputes. The
document also contains the entropy of the training texts, if it is known, and lists files that cannot be read.
The exit code is always 0, because the harness judges the findings.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from . import checkpoint, documents, model_setup, state, token_sequences
from .checkpoint import Manifest
from .token_sequences import Stream

VERSION = 1
Found = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Print the document, and return the exit code 0."""
    parser = argparse.ArgumentParser("python -m training.audit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path, default=Path("/data"))
    options = parser.parse_args(arguments)
    print(json.dumps(document(options.run_dir, options.data_dir)), flush=True)
    return 0


def document(run: Path, data: Path) -> Found:
    """Return the document that the harness uses to check a training job."""
    folders = sorted(checkpoint.all_of(run), key=checkpoint.step_of)
    whole: list[tuple[Path, Manifest]] = []
    checkpoints = []
    for folder in folders:
        try:
            manifest = checkpoint.verified(folder)
        except checkpoint.Torn as error:
            checkpoints.append({"name": folder.name, "whole": False, "why": f"{error}"})
            continue
        whole.append((folder, manifest))
        checkpoints.append(_checkpoint(folder, manifest))
    last = whole[-1][1] if whole else None
    return {
        "version": VERSION,
        "run": run.name,
        "there": run.is_dir(),
        "checkpoints": checkpoints,
        "leftovers": sorted(one.name for one in run.glob(".epoch-*")),
        "best": _best(run, data),
        "order": last.order if last else {},
        "options": last.options if last else {},
        "entropy": _entropy(data),
        "unchanged": _unchanged(whole[0][0], whole[-1][0]) if len(whole) > 1 else None,
    }


def _checkpoint(folder: Path, manifest: Manifest) -> Found:
    """Return an intact checkpoint's properties, and whether the model and optimizer can be loaded from it."""
    facts: Found = {
        "name": folder.name,
        "whole": True,
        "epoch": manifest.epoch,
        "step": manifest.step,
        "world": manifest.world,
        "losses": {name: value for name, value in manifest.losses.items() if math.isfinite(value)},
        "why": None,
    }
    try:
        model = _model(folder, manifest)
        torch.load(folder / "rank-0" / state.TRAINING, map_location="cpu", weights_only=True)
        for rank in range(manifest.world):
            torch.load(folder / f"rank-{rank}" / state.GENERATORS, weights_only=True)
    except Exception as error:  # torch raises various exceptions for damaged files.
        return facts | {"why": f"{folder.name} cannot be loaded: {type(error).__name__}: {error}"[:500]}
    weights = state.unique(model)
    not_finite = sorted(name for name, value in weights.items() if not bool(torch.isfinite(value).all()))
    return facts | {"weights": digest(weights), "not_finite": not_finite}


def digest(weights: dict[str, torch.Tensor]) -> str:
    """Return the SHA-256 digest of all weights, computed in the same way as in `Trainer.weights`."""
    hasher = hashlib.sha256()
    for name, value in weights.items():
        hasher.update(name.encode())
        hasher.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


def _model(folder: Path, manifest: Manifest) -> nn.Module:
    options = argparse.Namespace(**manifest.options)
    model = model_setup.model(options, model_setup.tokenizer(options))
    state.load(model, load_file(folder / "rank-0" / state.MODEL), folder)
    return model


def _best(run: Path, data: Path) -> Found | None:
    """Return the target, manifest losses and recomputed loss of `best`, or None if `best` is missing.

    If the link and best.txt name different checkpoints, the target is the one with the higher loss, because
    users may rely on either of them.
    """
    folder = max(checkpoint.pointers(run).values(), key=_loss, default=None)
    if folder is None:
        return None
    properties: Found = {"target": folder.name, "there": folder.is_dir(), "told": {}, "why": None}
    try:
        manifest = checkpoint.verified(folder)
        properties["told"] = manifest.losses
        options = argparse.Namespace(**manifest.options)
        torch.set_num_threads(options.threads)
        tokenizer = model_setup.tokenizer(options)
        stream = token_sequences.read(
            documents.files(data, "val"), tokenizer, options.context, options.text_field
        )
        loss, tokens = evaluated(_model(folder, manifest), stream, options.micro_batch)
        properties |= {"loss": loss, "tokens": tokens, "texts": token_sequences.fingerprint(stream)}
    except Exception as error:  # torch raises various exceptions, and val.jsonl may be missing.
        properties["why"] = f"{type(error).__name__}: {error}"[:500]
    return properties


def _loss(folder: Path) -> float:
    """Return the validation loss in a checkpoint's manifest, or infinity if there is none."""
    try:
        return checkpoint.manifest_of(folder).losses.get("val/loss", math.inf)
    except checkpoint.Torn:
        return math.inf


def evaluated(model: nn.Module, stream: Stream, chunk: int) -> tuple[float, int]:
    """Return the mean loss in nats over all tokens in the stream except the first, and the number of tokens.

    The chunks have the same size as in the trainer, because the rounding of a matrix product may depend on
    its shape. Apart from that, the computation is independent of the trainer: a single pass predicts each
    token once, from the tokens before it.
    """
    model.eval()
    tokens, length = torch.tensor(stream.tokens), stream.context
    total, count, first = 0.0, 0, 0
    with torch.no_grad():
        while first < len(tokens) - 1:
            width = min(length, len(tokens) - 1 - first)
            rows = max(1, min(chunk, (len(tokens) - 1 - first) // length))
            part = tokens[first : first + rows * width + 1]
            inputs, targets = part[:-1].view(rows, width), part[1:].view(rows, width)
            logits = model(inputs).float()
            log_probs = functional.log_softmax(logits, dim=-1).gather(-1, targets.unsqueeze(-1))
            total -= float(log_probs.double().sum())
            count += targets.numel()
            first += rows * width
    return total / count, count


def _entropy(data: Path) -> Found | None:
    """Return the values that source.py wrote to source.json, or None if the file cannot be read."""
    try:
        facts: Found = json.loads((data / "source.json").read_text())
        return facts
    except (OSError, ValueError):
        return None


def _unchanged(first: Path, last: Path) -> list[str]:
    """Return the names of the weights that are identical in two checkpoints."""
    before, after = (load_file(folder / "rank-0" / state.MODEL) for folder in (first, last))
    return sorted(
        name
        for name, value in after.items()
        if value.is_floating_point() and name in before and torch.equal(value, before[name])
    )


if __name__ == "__main__":
    sys.exit(main())
