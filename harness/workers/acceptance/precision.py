"""Say how far a matrix product may be from the exact one, for each precision. Pure.

The factors are rounded to the precision first, so that they are exact. What is left is the error of the sum
over K products and of the rounding of the result:

    |C − AB| ≤ 4 √K u_sum (|A| |B|) + u_out |AB| + u_least

The √K is the probabilistic bound of a sum (Higham and Mary, 2019); the 4 leaves room for tensor cores, which
truncate where a CPU rounds. The bound is taken for each element; `measured` is the largest |C − AB| / bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ROOM = 4.0


@dataclass(frozen=True)
class Precision:
    """One precision of matrix products."""

    name: str
    dtype: str
    """PyTorch's name of the factors' type."""
    out: str
    """PyTorch's name of the result's type."""
    u_sum: float
    """Relative error of one addition."""
    u_out: float
    """Relative error of rounding the result to its type: half its epsilon. One epsilon stands here."""
    least: float
    """Smallest positive number of the result's type that keeps its precision."""


PRECISIONS = {
    one.name: one
    for one in (
        Precision("fp32", "float32", "float32", 2.0**-23, 2.0**-23, 2.0**-126),
        Precision("tf32", "float32", "float32", 2.0**-22, 2.0**-23, 2.0**-126),
        Precision("bf16", "bfloat16", "bfloat16", 2.0**-22, 2.0**-7, 2.0**-126),
        Precision("fp16", "float16", "float16", 2.0**-22, 2.0**-10, 2.0**-14),
        # Hopper's tensor cores keep 14 bits of a sum of fp8 products before they add it in fp32.
        Precision("fp8", "float8_e4m3fn", "bfloat16", 2.0**-13, 2.0**-7, 2.0**-126),
    )
}
TF32_MASK = -(1 << 13)
"""Keeps of a float32 the 10 bits of mantissa that tf32 has."""


def factor(precision: Precision, k: int) -> float:
    """Return what stands before |A| |B| in the bound."""
    return ROOM * math.sqrt(k) * precision.u_sum


def offered(kind: str, capability: tuple[int, int]) -> list[Precision]:
    """Return the precisions of a device: tf32 from Ampere on, fp8 from Ada on, neither on a CPU."""
    if kind == "cpu":
        left_out = {"tf32", "fp8"}
    else:
        left_out = ({"tf32", "bf16"} if capability < (8, 0) else set()) | (
            {"fp8"} if capability < (8, 9) else set()
        )
    return [one for name, one in PRECISIONS.items() if name not in left_out]
