"""Make tokenizer and model as the options say."""

from __future__ import annotations

import argparse
import os

import torch
from torch import nn

from . import texts
from .model import Gpt, HuggingFace, Shape
from .texts import Tokenizer


def tokenizer(options: argparse.Namespace) -> Tokenizer:
    """Return the tokenizer of the model, or bytes."""
    _use_token()
    folder = options.tokenizer_local_dir or options.model_local_dir or options.model
    if folder is None:
        return texts.Bytes()
    return texts.HuggingFaceTokenizer(folder, local_only=options.local_files_only)


def model(options: argparse.Namespace, tokenizer: Tokenizer) -> nn.Module:
    """Return the model: one of Hugging Face, or the small GPT."""
    _use_token()
    folder = options.model_local_dir or options.model
    if folder is not None:
        made = HuggingFace(folder, local_only=options.local_files_only, recompute=options.recompute)
        made.check(tokenizer.size, options.context)
        return made
    shape = Shape(
        tokenizer.size, options.context, options.layers, options.heads, options.width, options.dropout
    )
    return Gpt(shape, recompute=options.recompute)


def _use_token() -> None:
    """Give the hub's client the guide's variable under the name that it reads, which is HF_TOKEN alone."""
    if token := os.environ.get("HUGGINGFACE_HUB_TOKEN"):
        os.environ.setdefault("HF_TOKEN", token)


def gated(error: BaseException | None) -> bool:
    """Return whether the hub refused a gated model. transformers hides its client's error behind others."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if type(error).__name__ == "GatedRepoError":
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


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
