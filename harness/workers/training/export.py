"""Export a checkpoint of a Hugging Face model, with its tokenizer, in the transformers format.

    python3 -m training.export --checkpoint OUT/RUN/best --to FOLDER

The exit code is 1 if the checkpoint is damaged, or if its model is the small GPT, which transformers cannot
load.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from . import checkpoint, model_setup, state


def main(arguments: list[str] | None = None) -> int:
    """Export the checkpoint, and return the exit code."""
    parser = argparse.ArgumentParser("python -m training.export", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True, help="checkpoint folder, or `best`")
    parser.add_argument("--to", type=Path, required=True, help="a new folder")
    args = parser.parse_args(arguments)
    if args.to.exists():
        parser.error(f"--to must be a new folder; {args.to} already exists")
    folder = checkpoint.named(args.checkpoint)
    try:
        manifest = checkpoint.verified(folder)
    except checkpoint.Torn as error:
        print(error, file=sys.stderr)
        return 1
    options = argparse.Namespace(**manifest.options)
    if not (options.model or options.model_local_dir):
        weights = folder / "rank-0" / state.MODEL
        print(
            f"{folder.name} contains the small GPT, which cannot be exported: its weights are in {weights}",
            file=sys.stderr,
        )
        return 1
    tokenizer = model_setup.tokenizer(options)
    model: Any = model_setup.model(options, tokenizer)
    state.load(model, load_file(folder / "rank-0" / state.MODEL), folder)
    # The folder has a temporary name until it is complete.
    partial = args.to.with_name(f".{args.to.name}-partial")
    model.inner.save_pretrained(partial, safe_serialization=True)
    tokenizer.save(partial)  # type: ignore[attr-defined]
    partial.rename(args.to)
    print(
        f"{args.to}: {folder.name}, step {manifest.step}, validation loss {manifest.losses.get('val/loss')}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
