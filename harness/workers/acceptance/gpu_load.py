"""Keep GPUs busy so that nvidia-smi reports their state under load."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

import torch

from .compat import paired
from .devices import Device

SIZE = 8192
SECONDS_BEFORE = 2.0
"""Seconds of load until the clocks and the PCIe link have reached their state under load."""
_START_SECONDS = 60.0
_PRODUCTS = 16


@contextlib.contextmanager
def busy(devices: Sequence[Device]) -> Iterator[None]:
    """Keep every device busy with matrix products within the block.

    Raises RuntimeError if a device fails.
    """
    stop, failed = threading.Event(), []
    running = [threading.Event() for _ in devices]

    def work(device: Device, ready: threading.Event) -> None:
        try:
            a = torch.randn(SIZE, SIZE, device=device.torch, dtype=torch.bfloat16)
            out = torch.empty_like(a)
            while not stop.is_set():
                for _ in range(_PRODUCTS):
                    torch.mm(a, a, out=out)
                torch.cuda.synchronize(device.index)
                ready.set()
        except Exception as error:
            failed.append(f"GPU {device.index}: {error}")
        finally:
            ready.set()

    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in paired(devices, running)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + _START_SECONDS
        for device, ready in paired(devices, running):
            if not ready.wait(max(0.0, deadline - time.monotonic())):
                failed.append(f"GPU {device.index} did not start computing within {_START_SECONDS:.0f} s")
        time.sleep(SECONDS_BEFORE)
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(_START_SECONDS)
    if failed:
        raise RuntimeError("; ".join(failed))
