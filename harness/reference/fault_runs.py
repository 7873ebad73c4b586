"""Document where each fault is injected and judged: docs/reference/faults.md."""

from __future__ import annotations

import re
from pathlib import Path

from harness.faults.classification import moment, ways
from harness.faults.fault_file import Fault, catalogue
from harness.faults.results import expected
from harness.reference.note import WRITTEN

TESTS = Path(__file__).parents[2] / "tests"
RECORDED = TESTS / "recorded"


def runs(fault: Fault) -> str:
    """Return the first `make` target that injects the fault into a real launch, or the reason why none
    does."""
    if fault.expect is None:
        return f"nowhere: {fault.cannot}"
    if fault.nightly:
        return "`make faults`"
    return "`make test`" if fault.name in _smoke() else "`make test-cluster`"


def _smoke() -> list[str]:
    """Return the faults that `make test` injects."""
    return re.findall(r"^\S+\[([\w-]+)\]$", (TESTS / "smoke.txt").read_text(), re.MULTILINE)


def judged(fault: Fault) -> str:
    """Return how `make test` covers the fault without a cluster, for example with a recorded bundle."""
    if (RECORDED / f"{fault.name}.tar.xz").is_file():
        return "recorded bundle"
    if fault.expect is not None and fault.expect.exit == 64:
        return "no bundle; its job file is rejected in tests/unit/faults/test_refused.py"
    return "no recorded bundle"


def markdown() -> str:
    """Return the text of docs/reference/faults.md."""
    faults = list(catalogue().values())
    tested = [fault for fault in faults if fault.expect is not None and not fault.nightly]
    lines = [
        "# Where each fault runs",
        "",
        WRITTEN,
        "",
        f"{len(faults)} faults. `make test` and `make test-cluster` inject {len(tested)} of them into real",
        "launches: at least one for each target, way of injecting, family of causes and kind of verdict.",
        "`make faults`, in the nightly workflow, injects all of them. `make test` judges each fault's",
        "recorded bundle again ([which test runs where](../tests.md), [the results](../faults.md)).",
        "",
        "| fault | injected by | when | expected | judged without a cluster |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {fault.name} | {runs(fault)} | {moment(fault)} | {expected(fault)} | {judged(fault)} |"
        for fault in faults
    ]
    lines += [
        "",
        "## Ways of injecting",
        "",
        "| way | in `make test` and `make test-cluster` | more in `make faults` |",
        "| --- | --- | --- |",
    ]
    all_ways = sorted({way for fault in faults if fault.expect for way in ways(fault)})
    for way in all_ways:
        own_faults = [fault for fault in faults if fault.expect and way in ways(fault)]
        names = [fault.name for fault in own_faults if not fault.nightly]
        lines.append(f"| {way} | {', '.join(names)} | {len(own_faults) - len(names)} |")
    return "\n".join(lines) + "\n"
