"""Make tokenizer and model as the options say."""

from __future__ import annotations

import argparse

from torch import nn

from . import texts
from .model import Gpt, HuggingFace, Shape
from .texts import Tokenizer


def tokenizer(options: argparse.Namespace) -> Tokenizer:
    """Return the tokenizer of the model, or bytes."""
    folder = options.tokenizer_local_dir or options.model_local_dir or options.model
    if folder is None:
        return texts.Bytes()
    return texts.HuggingFaceTokenizer(folder, local_only=options.local_files_only)


def model(options: argparse.Namespace, tokenizer: Tokenizer) -> nn.Module:
    """Return the model: one of Hugging Face, or the small GPT."""
    folder = options.model_local_dir or options.model
    if folder is not None:
        return HuggingFace(folder, local_only=options.local_files_only, recompute=options.recompute)
    shape = Shape(
        tokenizer.size, options.context, options.layers, options.heads, options.width, options.dropout
    )
    return Gpt(shape, recompute=options.recompute)
