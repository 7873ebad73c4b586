"""Make tokenizer and model as the options say."""

from __future__ import annotations

import argparse

import torch
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
        made = HuggingFace(folder, local_only=options.local_files_only, recompute=options.recompute)
        made.check(tokenizer.size, options.context)
        return made
    shape = Shape(
        tokenizer.size, options.context, options.layers, options.heads, options.width, options.dropout
    )
    return Gpt(shape, recompute=options.recompute)


def cannot_compile(device: torch.device) -> str:
    """Return why torch.compile does not work here, or "". It compiles something small, forth and back."""
    try:
        # The backward pass needs more than the forward pass: it is cut out of both.
        layer = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.GELU()).to(device))
        layer(torch.ones(2, 4, device=device)).sum().backward()
    except Exception as error:  # its own exceptions are private, and differ by version
        lines = [line for line in str(error).splitlines() if line.strip()]
        return " ".join(lines[:2])[:300] or type(error).__name__
    return ""
