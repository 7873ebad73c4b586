"""The canonical bytes of rows in columns, as harness/workers/truth_frames.py has them for one row, at once.

A rank's digest is over these bytes. msgspec writes doubles as Python does, but for very small and very large
ones, and for those that are no numbers.
"""

from __future__ import annotations

import json
from itertools import cycle, islice

import msgspec

from harness.evidence.columns import Columns
from harness.workers.truth_frames import encode_value

_encode = msgspec.json.Encoder().encode_lines
SMALL, LARGE = 1e-4, 1e16
"""From the one to the other, both write a double without an exponent."""


def row_bytes(columns: Columns) -> bytes:
    """Return `truth_frames.row_bytes` of each row, one after another."""
    names = [msgspec.Raw(json.dumps(name).encode()) for name in columns.names]
    metrics = (
        islice(cycle(names), len(columns)) if columns.which is None else map(names.__getitem__, columns.which)
    )
    values = [v if SMALL <= v < LARGE or -LARGE < v <= -SMALL else _raw(v) for v in columns.values]
    return _encode(list(zip(metrics, columns.steps, values, strict=True)))


def _raw(value: float) -> float | msgspec.Raw:
    return msgspec.Raw(json.dumps(encode_value(value)).encode())
