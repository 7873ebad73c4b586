"""Check that the same computation produces the same bits in each run and on all GPUs of the same model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from .check import Check
from .devices import Device

TAG = "COMPUTE"


def checks(id: str, results: Mapping[Device, Sequence[str]], cause: str) -> Iterator[Check]:
    """Yield one check per device. `results` maps each device to the digests of its runs.

    All digests of a device must be equal, and the same as those of the other GPUs of the same model. With
    three or more GPUs, those that differ from the majority are blamed. If there are only two and they differ,
    both are blamed, because it is unknown which one is wrong.
    """
    for device, digests in results.items():
        distinct = set(digests)
        other_results = [
            other_digests[0]
            for other, other_digests in results.items()
            if other != device and other.name == device.name and len(set(other_digests)) == 1
        ]
        verdict, check_cause = "PASS", ""
        if not digests:
            verdict, text = "UNKNOWN", "no result"
        elif len(distinct) > 1:
            verdict, text, check_cause = (
                "FAIL",
                f"{len(digests)} runs gave {len(distinct)} different results",
                cause,
            )
        elif other_results and _differs(digests[0], other_results):
            count = sum(other != digests[0] for other in other_results)
            verdict, text, check_cause = (
                "FAIL",
                f"{count} of the {len(other_results)} other GPUs gave a different result",
                cause,
            )
        else:
            text = f"{len(digests)} runs gave bit-identical results"
            text += f", and so did {other_results.count(digests[0])} other GPUs" if other_results else ""
        yield Check(id=id, tag=TAG, verdict=verdict, text=text, cause=check_cause or None, **device.where)  # type: ignore[arg-type]


def _differs(result: str, other_results: Sequence[str]) -> bool:
    """Return whether `result` differs from the result that most devices have."""
    count = Counter([result, *other_results])
    return count[result] * 2 <= count.total()
