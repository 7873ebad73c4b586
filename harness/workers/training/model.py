"""Define the default model, a small GPT that needs no download, and a wrapper for Hugging Face models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Shape:
    """The model's size. `context` is the maximum sequence length in tokens."""

    vocabulary: int
    context: int = 128
    layers: int = 2
    heads: int = 4
    width: int = 64
    dropout: float = 0.0


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each preceded by layer normalisation."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.dropout = shape.heads, shape.dropout
        self.before_attention = nn.LayerNorm(shape.width)
        self.queries_keys_values = nn.Linear(shape.width, 3 * shape.width)
        self.attended = nn.Linear(shape.width, shape.width)
        self.before_feed_forward = nn.LayerNorm(shape.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        projected = self.queries_keys_values(self.before_attention(x))
        queries, keys, values = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in projected.split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(queries, keys, values, None, dropout, is_causal=True)
        x = x + self._drop(self.attended(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self._drop(self.feed_forward(self.before_feed_forward(x)))

    def _drop(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, self.dropout, self.training)


class Gpt(nn.Module):
    """A GPT that maps token ids (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, shape: Shape, *, recompute: bool = False) -> None:
        """Create the model. If `recompute` is true, activations are recomputed to save memory."""
        super().__init__()
        self.shape, self.recompute = shape, recompute
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.logits = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.apply(_begin)
        for name, parameter in self.named_parameters():
            # Each block adds to the residual stream twice, so the variance is scaled by the number of layers.
            if name.endswith(("attended.weight", "feed_forward.2.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * shape.layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits: torch.Tensor = self.logits(self.norm(x))
        return logits


class HuggingFace(nn.Module):
    """A causal language model from transformers, whose `forward` has the same signature as Gpt's."""

    def __init__(self, folder: str, *, local_only: bool, recompute: bool) -> None:
        """Load the model from a folder, or by name from the hub. Raises OSError if the model is missing."""
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        super().__init__()
        logging.disable_progress_bar()  # Progress bars of all ranks would fill the job's log.
        self.inner: Any = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=local_only, dtype=torch.float32
        )
        # from_pretrained returns the model in eval mode, without dropout.
        self.inner.train()
        if recompute:
            self.inner.gradient_checkpointing_enable({"use_reentrant": False})

    def check(self, vocabulary: int, context: int) -> None:
        """Raise ValueError if the vocabulary or the context is too large for the model."""
        config = self.inner.config
        if vocabulary > config.vocab_size:
            raise ValueError(
                f"the tokenizer has {vocabulary} tokens, but the model has {config.vocab_size}: "
                "--tokenizer-local-dir belongs to a different model"
            )
        max_context = getattr(config, "max_position_embeddings", None) or context
        if context > max_context:
            raise ValueError(f"--context can be at most {max_context} for this model; found {context}")

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.inner(input_ids=tokens, use_cache=False).logits
        return logits


def _begin(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
