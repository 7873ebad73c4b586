"""Time work on a device after a warm-up. On GPUs, the time is measured with CUDA events."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from .devices import Device


@dataclass(frozen=True)
class Span:
    """The duration of the warm-up and the minimum duration of the measurement, in seconds."""

    warm: float
    measure: float


SPANS = {
    ("cpu", "quick"): Span(0.02, 0.1),
    ("cpu", "full"): Span(0.5, 2.0),
    ("cuda", "quick"): Span(0.5, 0.5),
    ("cuda", "full"): Span(10.0, 10.0),
}
"""Maps (device, mode) to the durations of the warm-up and the measurement. It takes seconds until a GPU has
the same clocks and temperature as during real work."""
BATCHES = 5


def seconds_per_call(call: Callable[[], object], device: Device, span: Span) -> float:
    """Return the duration of one call in seconds.

    This is the median of BATCHES batches. For each batch, the mean duration of its calls counts. A batch
    takes about `span.measure` / BATCHES seconds, and consists of at least one call.
    """
    per_call = max(_batch(call, device, 1), 1e-7)
    deadline = time.monotonic() + span.warm
    while time.monotonic() < deadline:
        per_call = max(_batch(call, device, max(1, int(0.05 / per_call))), 1e-7)
    calls = max(1, int(span.measure / BATCHES / per_call))
    return statistics.median(_batch(call, device, calls) for _ in range(BATCHES))


def _batch(call: Callable[[], object], device: Device, calls: int) -> float:
    """Run `calls` calls, and return the mean time per call in seconds."""
    if device.kind == "cpu":
        start_seconds = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start_seconds) / calls
    import torch

    with torch.cuda.device(device.index):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        milliseconds: float = start.elapsed_time(end)
    return milliseconds / 1000 / calls
