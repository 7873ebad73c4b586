"""Measure memory and copy bandwidth (host to GPU, GPU to host, GPU to GPU), and verify the copied data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .check import Check
from .devices import Device
from .limits import Limits, judged
from .timing import SPANS, seconds_per_call

TAG = "COMPUTE"
BYTES = {
    ("cpu", "quick"): 32 << 20,
    ("cpu", "full"): 256 << 20,
    ("cuda", "quick"): 1 << 30,
    ("cuda", "full"): 4 << 30,
}
"""Maps (device, mode) to the size of each array in bytes. The arrays are much larger than the device's
caches."""
HOST_BYTES = {"quick": 256 << 20, "full": 1 << 30}


def memory(device: Device, mode: str, limits: Limits) -> Iterator[Check]:
    """Measure memory bandwidth with the copy (a = b) and triad (a = b + s c) kernels.

    The transferred bytes include both reads and writes.
    """
    count = BYTES[device.kind, mode] // 4
    b = torch.arange(count, dtype=torch.float32, device=device.torch)
    a, c = torch.empty_like(b), torch.full_like(b, 2.0)

    def triad() -> None:
        torch.add(b, c, alpha=0.5, out=a)

    yield _measured("memory.copy", lambda: a.copy_(b), 2, a, lambda: torch.equal(a, b), device, mode, limits)
    yield _measured("memory.triad", triad, 3, a, lambda: torch.equal(a, b + 1), device, mode, limits)


def host(device: Device, mode: str, limits: Limits) -> Iterator[Check]:
    """Measure copies between pinned host memory and a GPU, in both directions."""
    count = HOST_BYTES[mode] // 4
    on_host = torch.arange(count, dtype=torch.float32).pin_memory()
    copied_back = torch.zeros(count, dtype=torch.float32).pin_memory()
    on_gpu = torch.zeros(count, dtype=torch.float32, device=device.torch)

    def same() -> bool:
        return bool(torch.equal(on_gpu.cpu(), on_host))

    yield _measured(
        "copy.h2d", lambda: on_gpu.copy_(on_host, non_blocking=True), 1, on_gpu, same, device, mode, limits
    )
    yield _measured(
        "copy.d2h",
        lambda: copied_back.copy_(on_gpu, non_blocking=True),
        1,
        copied_back,
        lambda: torch.equal(copied_back, on_host),
        device,
        mode,
        limits,
    )


def peers(devices: Sequence[Device], mode: str, limits: Limits) -> Iterator[Check]:
    """Measure copies from each GPU to the next GPU. In `full` mode, measure copies to all other GPUs.

    The check of each GPU is based on its slowest copy.
    """
    for place, device in enumerate(devices):
        targets = [*devices[place + 1 :], *devices[:place]]
        rates = [(_rate_to(device, target, mode), target.index) for target in targets[: _targets(mode)]]
        failed = [index for rate, index in rates if rate is None]
        if failed:
            yield _wrong(
                "copy.peer",
                "the data copied from this GPU is wrong on " + ", ".join(f"GPU {index}" for index in failed),
                device,
            )
            continue
        slowest = min(((rate, index) for rate, index in rates if rate is not None), default=None)
        if slowest:
            row = limits.row(model=device.name, check="copy.peer")
            text = f"{slowest[0]:.4g} GB/s to GPU {slowest[1]}"
            text += f", the slowest of {len(rates)} copies" if len(rates) > 1 else ""
            yield judged("copy.peer", TAG, slowest[0], "GB/s", row, "copy.slow", text, **device.where)


def _targets(mode: str) -> int | None:
    return None if mode == "full" else 1


def _rate_to(device: Device, target: Device, mode: str) -> float | None:
    """Return the bandwidth from one GPU to another in GB/s, or None if the received data is wrong."""
    count = BYTES["cuda", mode] // 4
    source = torch.arange(count, dtype=torch.float32, device=device.torch)
    copy = torch.zeros(count, dtype=torch.float32, device=target.torch)
    seconds = seconds_per_call(lambda: copy.copy_(source, non_blocking=True), device, SPANS["cuda", "quick"])
    return 4 * count / seconds / 1e9 if torch.equal(copy.cpu(), source.cpu()) else None


def _measured(
    id: str,
    call: Callable[[], object],
    times: int,
    target: Any,
    same: Callable[[], bool],
    device: Device,
    mode: str,
    limits: Limits,
) -> Check:
    """Time a call, verify the data, and return the check.

    The call transfers the size of `target`, multiplied by `times`.
    """
    seconds = seconds_per_call(call, device, SPANS[device.kind, mode])
    if not same():
        return _wrong(id, "the copied data is wrong", device)
    size = target.numel() * target.element_size()
    rate = times * size / seconds / 1e9
    row = limits.row(model=device.name, check=id)
    cause = "memory.slow" if id.startswith("memory.") else "copy.slow"
    text = f"{rate:.4g} GB/s ({size >> 20} MiB, {seconds * 1e3:.3g} ms)"
    return judged(id, TAG, rate, "GB/s", row, cause, text, **device.where)


def _wrong(id: str, text: str, device: Device) -> Check:
    return Check(id=id, tag=TAG, verdict="FAIL", text=text, cause="compute.wrong", **device.where)
