"""Define the command-line options of train_framework.py."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import checkpoint, documents

MAX_NAME = 200
"""The maximum length of a run's name in bytes. A file name can have 255 bytes, and a download adds a prefix
to the run's name."""
_COUNT = ("1 or more", lambda value: value >= 1)
_RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("context", "layers", "heads", "width", "epochs", "batch", "micro_batch"), _COUNT),
    **dict.fromkeys(("save_every", "max_steps", "log_every", "threads"), _COUNT),
    "warmup": ("0 or more", lambda value: value >= 0),
    **dict.fromkeys(("lr", "meeting", "timeout"), ("more than 0", lambda value: 0 < value < math.inf)),
    **dict.fromkeys(("weight_decay", "clip"), ("0 or more", lambda value: 0 <= value < math.inf)),
    "dropout": ("at least 0 and less than 1", lambda value: 0 <= value < 1),
}
"""Maps each numeric option to a description of its range, and to a function that tests whether a value
is in the range. The functions also reject NaN."""
_WITHOUT_EFFECT = {
    *("data_dir", "out_dir", "run", "save_every", "keep", "threads", "log_every", "meeting", "timeout"),
    *("tracker_seconds", "local_files_only", "model_local_dir", "tokenizer_local_dir", "device"),
}
"""Options that may differ from those of a checkpoint. They do not affect the result, or they name a folder,
which may be different in a copy of the run."""


def parser(kind: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return the command's parser.

    Options from the published training guide (docs/guides.md) have the guide's names and defaults.
    """
    result = kind(
        "python -m training.train_framework",
        description="Train a causal language model on JSONL with DDP. Run the command again to resume.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    data = result.add_argument_group("data")
    data.add_argument(
        "--data-dir",
        type=Path,
        default=Path("/data"),
        help="folder with train.jsonl and val.jsonl, or their shards",
    )
    data.add_argument("--text-field", default="text", help="key of the text in each JSON line")
    data.add_argument("--context", type=int, default=128, help="sequence length in tokens")
    model = result.add_argument_group("model")
    model.add_argument(
        "--model", help="model name on the Hugging Face hub (a gated model needs HUGGINGFACE_HUB_TOKEN)"
    )
    model.add_argument("--model-local-dir", help="folder with a Hugging Face model; default: a small GPT")
    model.add_argument(
        "--tokenizer-local-dir",
        help="folder with the tokenizer; default: the model's tokenizer, or bytes for the small GPT",
    )
    model.add_argument("--local-files-only", action="store_true", help="do not download anything")
    model.add_argument("--layers", type=int, default=2, help="number of layers of the small GPT")
    model.add_argument("--heads", type=int, default=4, help="number of attention heads of the small GPT")
    model.add_argument("--width", type=int, default=64, help="width of the small GPT")
    model.add_argument("--dropout", type=float, default=0.0, help="dropout of the small GPT")
    model.add_argument("--recompute", action="store_true", help="use activation checkpointing to save memory")
    model.add_argument("--compile", action="store_true", help="use torch.compile")
    steps = result.add_argument_group("training")
    steps.add_argument("--epochs", type=int, default=2)
    steps.add_argument("--batch", type=int, default=32, help="sequences per step over all ranks")
    steps.add_argument("--micro-batch", type=int, default=8, help="sequences that a rank processes at once")
    steps.add_argument("--lr", type=float, default=3e-3, help="peak learning rate")
    steps.add_argument("--warmup", type=int, default=20, help="steps until the peak learning rate")
    steps.add_argument("--weight-decay", type=float, default=0.1)
    steps.add_argument("--clip", type=float, default=1.0, help="maximum gradient norm; 0 means no limit")
    steps.add_argument("--amp", choices=("off", "bf16", "fp16"), default="off", help="mixed precision")
    steps.add_argument("--seed", type=int, default=42)
    steps.add_argument("--max-steps", type=int, help="stop after this number of steps over all epochs")
    out = result.add_argument_group("checkpoints")
    out.add_argument(
        "--out-dir", type=Path, default=Path("/out"), help="output folder, on a disk that all ranks share"
    )
    # Before Python 3.12.7, torchrun rejects its script's option --run as ambiguous (--run-path).
    out.add_argument(
        "--run-name",
        "--run",
        dest="run",
        default=os.environ.get("RUN_ID", "run"),
        help="name of the run and of its folder in --out-dir",
    )
    out.add_argument(
        "--save-every",
        type=int,
        default=50,
        help="steps between checkpoints; one is also written after each epoch",
    )
    out.add_argument(
        "--keep", type=int, default=checkpoint.DEFAULT_KEPT, help="number of checkpoints to keep, at least 2"
    )
    machine = result.add_argument_group("machine")
    machine.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    machine.add_argument(
        "--threads",
        type=int,
        default=1,
        help="CPU threads per rank; their number affects the last bits of results",
    )
    machine.add_argument(
        "--deterministic",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="on GPUs, produce bit-identical results in every run, even after a restart",
    )
    machine.add_argument("--log-every", type=int, default=10, help="steps between [TRAIN] lines")
    machine.add_argument("--meeting", type=float, default=60, help="seconds for all ranks to join")
    machine.add_argument(
        "--timeout", type=float, default=300, help="seconds that a rank waits for other ranks in a step"
    )
    machine.add_argument(
        "--tracker-seconds",
        type=float,
        default=60,
        help="maximum seconds that a rank waits for a tracker that does not respond",
    )
    return result


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options. If they are invalid, exit with code 2 and a message."""
    command_parser = parser()
    options = sensible(command_parser, arguments)
    for split in documents.SPLITS:
        try:
            documents.files(options.data_dir, split)
        except ValueError as error:
            command_parser.error(f"{error}")
        except (FileNotFoundError, PermissionError) as error:
            command_parser.error(f"{error.filename} cannot be read: {error.strerror}")
    for name in ("model_local_dir", "tokenizer_local_dir"):
        folder = getattr(options, name)
        if folder and not Path(folder).is_dir():
            command_parser.error(f"--{name.replace('_', '-')} must be a folder; {folder} is not a folder")
    return options


def sensible(command_parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options after all checks that do not need files.

    Errors are passed to the parser's `error`.
    """
    options = command_parser.parse_args(arguments)
    for name, (expected, is_valid) in _RANGES.items():
        value = getattr(options, name)
        if value is not None and not is_valid(value):
            hint = ". Omit the option for no limit" if name == "max_steps" else ""
            command_parser.error(f"--{name.replace('_', '-')} must be {expected}; found {value}{hint}")
    if options.width % options.heads:
        command_parser.error(
            f"--width must be a multiple of --heads; found {options.width} and {options.heads}"
        )
    if not 0 <= options.tracker_seconds < options.timeout:
        command_parser.error(
            f"--tracker-seconds must be less than --timeout ({options.timeout:g}), because the other "
            f"ranks wait too; found {options.tracker_seconds:g}"
        )
    # An empty name, for example from an unset variable, would make --out-dir itself the run's folder.
    if "/" in options.run or options.run.startswith(".") or not options.run.strip():
        command_parser.error(f"--run-name must be the name of a single folder; found {options.run!r}")
    if not options.run.isprintable() or len(os.fsencode(options.run)) > MAX_NAME:
        command_parser.error(
            f"--run-name must have at most {MAX_NAME} bytes and no control characters; found {options.run!r}"
        )
    if options.model and options.model_local_dir:
        command_parser.error("--model and --model-local-dir cannot be used together")
    if (options.model or options.model_local_dir) and options.dropout:
        command_parser.error(
            "--dropout applies only to the small GPT; Hugging Face models have their own dropout"
        )
    return options


def plain(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options as plain values for JSON and the trackers."""
    plain_types = (int, float, str, bool, type(None))
    return {
        name: value if isinstance(value, plain_types) else str(value) for name, value in vars(options).items()
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the options that differ from those of a checkpoint and affect the result, or "" for none."""
    return ", ".join(
        f"--{name.replace('_', '-')} {before[name]} → {now[name]}"
        for name in sorted(before.keys() & now.keys() - _WITHOUT_EFFECT)
        if before[name] != now[name]
    )
