"""Create the tokenizer and the model according to the command-line options."""

from __future__ import annotations

import argparse
import os

import torch
from torch import nn

from . import token_sequences
from .model import Gpt, HuggingFace, Shape
from .token_sequences import Tokenizer


def tokenizer(options: argparse.Namespace) -> Tokenizer:
    """Return the tokenizer that the options name, or the byte tokenizer if they name none."""
    _use_token()
    folder = options.tokenizer_local_dir or options.model_local_dir or options.model
    if folder is None:
        return token_sequences.Bytes()
    return token_sequences.HuggingFaceTokenizer(folder, local_only=options.local_files_only)


def model(options: argparse.Namespace, tokenizer: Tokenizer) -> nn.Module:
    """Return the Hugging Face model that the options name, or the small GPT if they name none."""
    _use_token()
    folder = options.model_local_dir or options.model
    if folder is not None:
        result = HuggingFace(folder, local_only=options.local_files_only, recompute=options.recompute)
        result.check(tokenizer.size, options.context)
        return result
    shape = Shape(
        tokenizer.size, options.context, options.layers, options.heads, options.width, options.dropout
    )
    return Gpt(shape, recompute=options.recompute)


def _use_token() -> None:
    """Copy the user's HUGGINGFACE_HUB_TOKEN to HF_TOKEN, which the hub's client reads."""
    if token := os.environ.get("HUGGINGFACE_HUB_TOKEN"):
        os.environ.setdefault("HF_TOKEN", token)


def gated(error: BaseException | None) -> bool:
    """Return whether the error or one of its causes means that the hub denied access to a gated model."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        if type(error).__name__ == "GatedRepoError":
            return True
        visited.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def cannot_compile(device: torch.device) -> str:
    """Compile a small model and its backward pass. Return the error message, or "" on success."""
    try:
        # Compile the backward pass too, because it can fail to compile even if the forward pass compiles.
        layer = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.GELU()).to(device))
        layer(torch.ones(2, 4, device=device)).sum().backward()
    except Exception as error:  # torch.compile's exceptions are private, and differ between versions.
        lines = [line for line in str(error).splitlines() if line.strip()]
        return " ".join(lines[:2])[:300] or type(error).__name__
    return ""
