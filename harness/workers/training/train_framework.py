"""Train a causal language model with DDP. After a crash or a kill, resume from the last checkpoint.

    torchrun … -m training.train_framework --data-dir /data --out-dir /out --run-name NAME

See docs/training.md.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial

import torch
from torch import nn

from . import checkpoint, documents, mlflow_client, model_setup, token_sequences
from .options import parsed, plain
from .ranks import Refused, ended_with, meet, same_bits
from .token_sequences import Stream
from .trainer import Trainer


def main(arguments: list[str] | None = None) -> int:
    """Train the model, and return the exit code."""
    options = parsed(arguments)
    torch.set_num_threads(options.threads)
    ranks = meet(options.device, options.meeting, options.timeout)
    if options.deterministic and ranks.device.type == "cuda":
        same_bits()
    if options.compile and (reason := model_setup.cannot_compile(ranks.device)):
        requirements = "a C++ compiler, PyTorch's headers and networkx, and on a GPU also Triton"
        raise Refused(f"--compile does not work in this image: it needs {requirements}. {reason}")
    if (uri := os.environ.get("MLFLOW_TRACKING_URI")) and (reason := mlflow_client.problem(uri)):
        raise Refused(reason)
    train, val, model = _inputs(options)
    own = [(len(split.tokens), token_sequences.fingerprint(split)) for split in (train, val)]
    if reason := token_sequences.other_texts(ranks.every(own), options.data_dir):
        raise Refused(reason)
    trainer = Trainer(options, ranks, model, train, val)
    _tell(trainer, train, val)
    try:
        loss = trainer.train_all()
    except BaseException:
        trainer.trackers.finish(ok=False)
        trainer.close()
        raise
    unsent = ranks.sum(trainer.trackers.finish(ok=True, artifacts=_artifacts(trainer)))
    trainer.close()
    ranks.tell(
        "DONE",
        f"{trainer.steps} steps, validation loss {loss.mean:.6f} nats, perplexity {loss.perplexity:.4f}, "
        f"weights {trainer.weights()}",
    )
    if unsent:
        ranks.tell("DONE", f"{unsent:.0f} values are not in any tracker: run again to send them. Exit code 1")
    return 1 if unsent else 0


def _artifacts(trainer: Trainer) -> dict[str, str]:
    """Return the files that a tracker stores with the run: the manifest of `best` and all options."""
    best = checkpoint.best(trainer.run)
    manifest = best / checkpoint.MANIFEST if best else None
    texts = {"config.json": json.dumps(plain(trainer.options), indent=1)}
    return texts | ({"best/manifest.json": manifest.read_text()} if manifest and manifest.is_file() else {})


def _inputs(options: argparse.Namespace) -> tuple[Stream, Stream, nn.Module]:
    """Return the training texts, the validation texts and the model. Raises Refused if they are invalid.

    A temporary failure of a disk or the hub raises a different error, after which the ranks are restarted.
    """
    try:
        tokenizer = model_setup.tokenizer(options)
        folder, field = options.data_dir, options.text_field
        memory, split = token_sequences.memory_of_rank(), partial(documents.files, folder)
        train = token_sequences.read(
            split("train"), tokenizer, options.context, field, whole=True, memory=memory
        )
        val = token_sequences.read(split("val"), tokenizer, options.context, field, memory=memory)
        torch.manual_seed(options.seed)
        model = model_setup.model(options, tokenizer)
    except (ValueError, PermissionError) as error:
        raise Refused(f"{error}") from error
    except OSError as error:
        if options.model and model_setup.gated(error):
            hint = "accept the model's license, and pass the token with `harness train --secret hf-token`"
            raise Refused(
                f"--model {options.model} is gated, and no token with access to it was found: {hint}"
            ) from error
        if error.errno is None and (options.local_files_only or not options.model):
            # transformers raises this error if a file in the folder is missing.
            raise Refused(f"{error}") from error
        raise
    return train, val, model


def _tell(trainer: Trainer, train: Stream, val: Stream) -> None:
    for split in documents.SPLITS if trainer.ranks.rank == 0 else ():
        if warning := documents.gap(documents.files(trainer.options.data_dir, split)):
            trainer.ranks.tell("TRAIN", f"warning: {warning}")
    parameters = sum(value.numel() for value in trainer.model.parameters())
    trainer.ranks.tell(
        "TRAIN",
        f"{parameters} weights; {len(train.tokens)} training tokens in {train.whole} sequences, "
        f"{len(val.tokens)} validation tokens; {trainer.per_epoch} steps per epoch",
    )


if __name__ == "__main__":
    ended_with(main)
