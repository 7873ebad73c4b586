"""Test the correctness and speed of matrix products in each precision that the device supports."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .check import Check
from .compat import lacks
from .devices import Device
from .error_bounds import TF32_MASK, Precision, factor, offered
from .limits import Limits, judged
from .timing import SPANS, seconds_per_call

TAG = "COMPUTE"
RIGHT_SHAPE = {"cpu": (128, 128, 512), "cuda": (1024, 1024, 2048)}
"""Maps the kind of device to the dimensions (M, N, K) of the product that is compared with a float64
reference. The CPU computes the reference."""
FAST_SIZE = {"cpu": 256, "cuda": 8192}
"""Maps the kind of device to the dimension (M = N = K) of the product that is timed."""
EQUAL_SIZE = {"cpu": 256, "cuda": 4096}
EQUAL_RUNS = 3


def precisions(device: Device) -> list[Precision]:
    """Return the precisions that this device supports."""
    capability = torch.cuda.get_device_capability(device.index) if device.kind == "cuda" else (0, 0)
    return offered(device.kind, capability)


def right(precision: Precision, device: Device) -> Check:
    """Compare every element of a product with a float64 reference, within the bound from error_bounds.py."""
    m, n, k = RIGHT_SHAPE[device.kind]
    a, b = _factors(precision, m, n, k, device)
    with exactly(precision):
        product = _product(precision, a, b)().double().cpu()
    left_factor, right_factor = a.cpu().float().double(), b.cpu().float().double()
    exact, size = left_factor @ right_factor, left_factor.abs() @ right_factor.abs()
    bounds = factor(precision, k) * size + precision.u_out * exact.abs() + precision.least
    shares = (product - exact).abs() / bounds
    # Replace NaN by infinity, because a NaN error must not be ignored.
    share = float(torch.nan_to_num(shares, nan=float("inf")).max())
    wrong_count = int((~(shares <= 1)).sum())
    text = f"{m}×{n}×{k}: the largest error is {share:.3g} × its bound"
    return Check(
        id=f"compute.gemm.{precision.name}.correct",
        tag=TAG,
        verdict="FAIL" if wrong_count else "PASS",
        text=f"{text}; {wrong_count} of {m * n} elements are wrong" if wrong_count else text,
        cause="compute.wrong" if wrong_count else None,
        measured=share,
        unit="of the bound",
        limit=1.0,
        relation="<=",
        limit_kind="limit",
        limit_source="4 √K u (|A||B|) + u_out |AB| against float64 (error_bounds.py)",
        **device.where,
    )


def fast(precision: Precision, device: Device, mode: str, limits: Limits) -> Check:
    """Time a product. The time does not include generating the factors and reading the result."""
    n = FAST_SIZE[device.kind]
    a, b = _factors(precision, n, n, n, device)
    with exactly(precision):
        seconds = seconds_per_call(_product(precision, a, b), device, SPANS[device.kind, mode])
    rate = 2 * n**3 / seconds / 1e12
    id = f"compute.gemm.{precision.name}"
    row = limits.row(model=device.name, check=id)
    text = f"{rate:.4g} TFLOP/s ({n}×{n}×{n}, {seconds * 1e3:.3g} ms)"
    return judged(id, TAG, rate, "TFLOP/s", row, "compute.slow", text, **device.where)


def digests(device: Device) -> list[str]:
    """Compute a product EQUAL_RUNS times.

    Return a digest of each result. The factors are the same on every device.
    """
    n = EQUAL_SIZE[device.kind]
    generator = torch.Generator().manual_seed(20)
    a, b = (torch.randn(n, n, generator=generator).to(torch.bfloat16).to(device.torch) for _ in range(2))
    return [_digest(a @ b) for _ in range(EQUAL_RUNS)]


@contextmanager
def exactly(precision: Precision) -> Iterator[None]:
    """Compute matrix products within the block in exactly this precision, and never in a lower one."""
    matmul = torch.backends.cuda.matmul
    names = ("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = {name: getattr(matmul, name) for name in names}
    try:
        for name in names:
            setattr(matmul, name, name == "allow_tf32" and precision.name == "tf32")
        yield
    finally:
        for name, value in before.items():
            setattr(matmul, name, value)


def _factors(precision: Precision, m: int, n: int, k: int, device: Device) -> tuple[Any, Any]:
    """Return random factors A (M×K) and B (K×N) that are exact in this precision. The seed is fixed."""
    generator = torch.Generator(device.torch).manual_seed(7)
    if not hasattr(torch, precision.dtype):
        raise lacks(precision.dtype, "2.1")
    factors = []
    for shape in ((m, k), (k, n)):
        whole = torch.randn(shape, generator=generator, device=device.torch)
        if precision.name == "tf32":
            whole = (whole.view(torch.int32) & TF32_MASK).view(torch.float32)
        factors.append(whole.to(getattr(torch, precision.dtype)))
    return factors[0], factors[1]


def _product(precision: Precision, a: Any, b: Any) -> Callable[[], Any]:
    """Return a function that computes the product of two factors on the device."""
    if precision.name != "fp8":
        out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)

        def product() -> Any:
            try:
                return torch.mm(a, b, out=out)
            except RuntimeError as error:
                if "not implemented" not in str(error):
                    raise
                raise lacks(f"matrix product in {precision.name} on CPUs", "2.6") from None

        return product
    one = torch.ones((), device=a.device)
    columns = b.t().contiguous().t()  # cuBLAS needs the second factor in column-major order.
    options = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": True}
    # Before PyTorch 2.5, this product returns a tuple.
    if isinstance(torch._scaled_mm(a, columns, **options), tuple):
        raise lacks("fp8 product that returns only the result", "2.5")
    return lambda: torch._scaled_mm(a, columns, **options)


def _digest(matrix: Any) -> str:
    return hashlib.sha256(matrix.cpu().view(torch.uint8).numpy()).hexdigest()[:16]
