"""Build the audit of a correct training run, for test bundles."""

from __future__ import annotations

from typing import Any

from harness.workers.training import data_order

SEED, BATCH, SEQUENCES, EPOCHS, RANKS = 7, 4, 10, 2, 2
STEPS = data_order.steps(SEQUENCES, BATCH) * EPOCHS
BEGAN = 1_795_237_210_000
LOSSES = {2: 1.5, 5: 1.3}


def audit() -> dict[str, Any]:
    """Return what the audit says of a training that is right."""
    each = [
        {"name": f"epoch-{e}", "whole": True, "epoch": e, "step": 3 * e, "world": 2, "weights": f"w{e}"}
        for e in (1, 2)
    ]
    return {
        "version": 1,
        "run": "train",
        "there": True,
        "checkpoints": each,
        "best": {
            "target": "epoch-2",
            "there": True,
            "told": {"val/loss": 1.3, "val/tokens": 99},
            "loss": 1.3,
            "tokens": 99,
        },
        "order": {"seed": SEED, "batch": BATCH, "sequences": SEQUENCES, "context": 8},
        "options": {"device": "cpu"},
        "entropy": {"entropy": 1.2, "val": 1.25},
        "unchanged": [],
    }
