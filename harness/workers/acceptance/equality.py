"""Judge whether the same work gave the same bits, each time and on every GPU of a kind. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from .check import Check
from .devices import Device

TAG = "COMPUTE"


def checks(id: str, said: Mapping[Device, Sequence[str]], cause: str) -> Iterator[Check]:
    """Judge the digests of each device's runs: all alike, and like those of the others of its model.

    Of three devices or more, one that differs from the majority is accused. Of two that differ, one is
    wrong and nobody knows which: both are.
    """
    for device, digests in said.items():
        seen = set(digests)
        others = [
            other_digests[0]
            for other, other_digests in said.items()
            if other != device and other.name == device.name and len(set(other_digests)) == 1
        ]
        verdict, why = "PASS", ""
        if not digests:
            verdict, text = "UNKNOWN", "no result"
        elif len(seen) > 1:
            verdict, text, why = "FAIL", f"{len(digests)} runs gave {len(seen)} results", cause
        elif others and _differs(digests[0], others):
            count = sum(other != digests[0] for other in others)
            verdict, text, why = "FAIL", f"{count} of the {len(others)} other GPUs got another result", cause
        else:
            text = f"{len(digests)} runs gave the same bits"
            text += f", and so did {others.count(digests[0])} other GPUs" if others else ""
        yield Check(id=id, tag=TAG, verdict=verdict, text=text, cause=why or None, **device.where)  # type: ignore[arg-type]


def _differs(own: str, others: Sequence[str]) -> bool:
    """Return whether the majority, own result counted, is of another opinion, or there is none."""
    count = Counter([own, *others])
    return count[own] * 2 <= count.total()
