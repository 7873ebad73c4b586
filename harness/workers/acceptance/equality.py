"""Check that the same computation produces the same bits in each run and on all GPUs of the same model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from .check import Check
from .devices import Device

TAG = "COMPUTE"


def checks(id: str, results: Mapping[Device, Sequence[str]], cause: str) -> Iterator[Check]:
    """Yield one check per device. `results` maps each device to the digests of its runs.

    A device's digests must be equal to each other and to those of the other GPUs of the same model. Among
    three or more devices, a device that differs from the majority is blamed. If two devices differ, both are
    blamed, because it is unknown which one is wrong.
    """
    for device, digests in results.items():
        distinct = set(digests)
        others = [
            other_digests[0]
            for other, other_digests in results.items()
            if other != device and other.name == device.name and len(set(other_digests)) == 1
        ]
        verdict, why = "PASS", ""
        if not digests:
            verdict, text = "UNKNOWN", "no result"
        elif len(distinct) > 1:
            verdict, text, why = "FAIL", f"{len(digests)} runs gave {len(distinct)} different results", cause
        elif others and _differs(digests[0], others):
            count = sum(other != digests[0] for other in others)
            verdict, text, why = (
                "FAIL",
                f"{count} of the {len(others)} other GPUs gave a different result",
                cause,
            )
        else:
            text = f"{len(digests)} runs gave the same bits"
            text += f", and so did {others.count(digests[0])} other GPUs" if others else ""
        yield Check(id=id, tag=TAG, verdict=verdict, text=text, cause=why or None, **device.where)  # type: ignore[arg-type]


def _differs(own: str, others: Sequence[str]) -> bool:
    """Return whether the result `own` differs from the majority of all devices."""
    count = Counter([own, *others])
    return count[own] * 2 <= count.total()
