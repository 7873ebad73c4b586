"""Define the error bound for a matrix product in each precision.

The factors are first rounded to the precision under test, so that they are exact. The remaining error comes
from the sum of K products and from rounding the result:

    |C − AB| ≤ 4 √K u_sum (|A| |B|) + u_out |AB| + u_least

The factor √K comes from the probabilistic error bound for a sum (Higham and Mary, 2019). The factor 4 is a
margin, because tensor cores truncate where a CPU rounds. The bound applies to each element. A check's
`measured` value is the largest ratio of |C − AB| to this bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MARGIN = 4.0


@dataclass(frozen=True)
class Precision:
    """A floating-point precision in which matrix products are tested."""

    name: str
    dtype: str
    """The name of the factors' data type in PyTorch."""
    out: str
    """The name of the result's data type in PyTorch."""
    u_sum: float
    """The relative error of one addition in the sum of K products."""
    u_out: float
    """A bound for the relative error from rounding the result: one epsilon, which is twice the exact
    bound."""
    least: float
    """Smallest positive normal number of the result's data type."""


PRECISIONS = {
    one.name: one
    for one in (
        Precision("fp32", "float32", "float32", 2.0**-23, 2.0**-23, 2.0**-126),
        Precision("tf32", "float32", "float32", 2.0**-22, 2.0**-23, 2.0**-126),
        Precision("bf16", "bfloat16", "bfloat16", 2.0**-22, 2.0**-7, 2.0**-126),
        Precision("fp16", "float16", "float16", 2.0**-22, 2.0**-10, 2.0**-14),
        # Hopper's tensor cores keep only 14 bits of a sum of fp8 products before they add it to the fp32
        # result.
        Precision("fp8", "float8_e4m3fn", "bfloat16", 2.0**-13, 2.0**-7, 2.0**-126),
    )
}
TF32_MASK = -(1 << 13)
"""Bit mask that reduces a float32 to the 10 mantissa bits of tf32."""


def factor(precision: Precision, k: int) -> float:
    """Return the factor for |A| |B| in the error bound."""
    return MARGIN * math.sqrt(k) * precision.u_sum


def offered(kind: str, capability: tuple[int, int]) -> list[Precision]:
    """Return the precisions that a device supports.

    On GPUs, tf32 and bf16 require Ampere or later, and fp8 requires Ada or later. On CPUs, tf32 and fp8 are
    not tested.
    """
    if kind == "cpu":
        left_out = {"tf32", "fp8"}
    else:
        left_out = ({"tf32", "bf16"} if capability < (8, 0) else set()) | (
            {"fp8"} if capability < (8, 9) else set()
        )
    return [one for name, one in PRECISIONS.items() if name not in left_out]
