"""Every verdict of four pods (test_netcheck.py) holds in a job of 16 pods, with the same ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from namespaces import World, world
from test_netcheck import CASES, Case, finding_of, play

pytestmark = pytest.mark.nightly
SIZE = 16
DEADLINES = {8: 20, 20: 60}
"""Maps the deadlines of cases with four pods to the deadlines in this file, in seconds. They are longer,
because the pods share the CPUs of one machine. The shorter one is below the 30 s for which the DNS server
caches a negative response."""


@pytest.fixture(scope="module")
def sixteen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world"), size=SIZE) as made:
        yield made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_verdict_of_four_pods_holds_in_16(case: Case, sixteen: World) -> None:
    """Contract: the cause, ranks and missing ranks are the same. All ranks that receive rank 0's verdict
    report it."""
    deadline = case.play.get("deadline", 20)
    case.wrong(sixteen)
    try:
        results = play(sixteen, **{**case.play, "deadline": DEADLINES.get(deadline, deadline), "size": SIZE})
    finally:
        sixteen.reset()
    for rank, result in results.items():
        if rank not in case.alone:
            found = (result["verdict"], result["cause"], result["ranks"], result["missing"])
            assert found == ("failed", case.cause, case.ranks, case.missing), result["findings"]
            finding = finding_of(result, case.cause)
            assert re.search(case.text, finding["text"]), finding
