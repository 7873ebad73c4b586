"""Recompute a checkpoint's validation loss with the trainer's formula and any number of ranks.

    [torchrun …] -m training.reevaluate --checkpoint OUT/RUN/best --data-dir DIR

The command prints one line of JSON with the loss from the manifest and the computed loss. The exit code is 1
if the two losses differ by more than --tolerance, or if the checkpoint is damaged.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from . import checkpoint, documents, model_setup, state, token_sequences
from .evaluation import evaluate
from .ranks import ended_with, meet


def main(arguments: list[str] | None = None) -> int:
    """Evaluate the checkpoint, and return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m training.reevaluate", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="checkpoint folder, or `best`")
    parser.add_argument("--data-dir", type=Path, default=Path("/data"), help="folder with val.jsonl")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-9,
        help="maximum difference in nats; on GPUs, a larger one is needed",
    )
    args = parser.parse_args(arguments)
    folder = checkpoint.named(args.checkpoint)
    try:
        manifest = checkpoint.verified(folder)
    except checkpoint.Torn as error:
        print(json.dumps({"checkpoint": folder.name, "torn": str(error)}), flush=True)
        return 1
    options = argparse.Namespace(**manifest.options)
    torch.set_num_threads(options.threads)
    ranks = meet(args.device, options.meeting, options.timeout)
    tokenizer = model_setup.tokenizer(options)
    stream = token_sequences.read(
        documents.files(args.data_dir, "val"), tokenizer, options.context, options.text_field
    )
    model = model_setup.model(options, tokenizer)
    state.load(model, load_file(folder / "rank-0" / state.MODEL), folder)
    model = model.to(ranks.device)
    loss = evaluate(model, stream, options.micro_batch, ranks.rank, ranks.world, ranks.device)
    manifest_loss = manifest.losses.get("val/loss")
    same = manifest_loss is not None and abs(manifest_loss - loss.mean) <= args.tolerance
    if ranks.rank == 0:
        figures = {"loss": loss.mean, "perplexity": loss.perplexity, "tokens": loss.tokens}
        document = {
            "checkpoint": folder.name,
            "step": manifest.step,
            "told": manifest_loss,
            "same": same,
            **figures,
        }
        print(json.dumps(document), flush=True)
    return 0 if same else 1


if __name__ == "__main__":
    ended_with(main)
