"""Test that a small model learns on a device, and that two training runs produce the same bits."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .check import Check
from .devices import Device

TAG = "TRAIN"
CLASSES = 4
CHANCE = math.log(CLASSES)
"""The loss of a model that assigns the same probability to every class."""
SHARE = 0.5
"""The loss on unseen data must not exceed this fraction of CHANCE."""
STEPS = {"quick": 150, "full": 600}
BATCH = 256
FEATURES = 8


def checks(device: Device, mode: str) -> Iterator[Check]:
    """Train a model twice with the same seed. It must learn, and both runs must end with the same bits."""
    with _deterministic():
        first, second = train(device, STEPS[mode]), train(device, STEPS[mode])
    loss, start, digest = first
    # If the loss is NaN, the check fails, because every comparison with NaN is false.
    has_learnt = loss <= SHARE * CHANCE
    yield Check(
        id="train.learns",
        tag=TAG,
        verdict="PASS" if has_learnt else "FAIL",
        text=f"loss on unseen data {start:.3f} → {loss:.3f} in {STEPS[mode]} steps; "
        f"a uniform guess has a loss of {CHANCE:.3f}",
        cause=None if has_learnt else "training.not_learning",
        measured=loss,
        unit="nats",
        limit=SHARE * CHANCE,
        relation="<=",
        limit_kind="limit",
        limit_source="half the loss of a uniform guess",
        **device.where,
    )
    same = digest == second[2]
    yield Check(
        id="train.reproducible",
        tag=TAG,
        verdict="PASS" if same else "FAIL",
        text="two training runs ended with bit-identical results"
        if same
        else f"two training runs ended with different digests, {digest} and {second[2]}",
        cause=None if same else "training.not_reproducible",
        **device.where,
    )


def train(device: Device, steps: int) -> tuple[float, float, str]:
    """Return the loss on unseen data after training and before it, and a digest of losses and weights.

    The class of an input x depends on the signs of x₀x₁ and x₂x₃. A linear model cannot learn this.
    """
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 128),
        torch.nn.GELU(),
        torch.nn.LayerNorm(128),
        torch.nn.Linear(128, 128),
        torch.nn.GELU(),
        torch.nn.Linear(128, CLASSES),
    ).to(device.torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(4)
    test_data = _data(generator, 2048, device)
    start = _loss(model, test_data)
    history = []
    for _ in range(steps):
        x, y = _data(generator, BATCH, device)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        history.append(loss.detach())
    result = torch.cat(
        [torch.stack(history), *(part.detach().flatten() for part in model.parameters())]
    ).cpu()
    return _loss(model, test_data), start, hashlib.sha256(result.numpy()).hexdigest()[:16]


def _data(generator: torch.Generator, count: int, device: Device) -> tuple[Any, Any]:
    """Return inputs and class labels. They are generated on the CPU, so all devices get the same data."""
    x = torch.randn(count, FEATURES, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] * x[:, 3] > 0).long()
    return x.to(device.torch), y.to(device.torch)


def _loss(model: Any, data: tuple[Any, Any]) -> float:
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(model(data[0]), data[1]))


@contextmanager
def _deterministic() -> Iterator[None]:
    """Allow only deterministic PyTorch algorithms within the block."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
