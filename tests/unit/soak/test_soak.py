"""The soak's ledger, numbers and leak check; the soak itself is `harness soak`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.evidence.io.runs_folder import Keep
from harness.evidence.schema.bundle import Retry
from harness.soak import table
from harness.soak.growth import MIB, Growth, Snapshot, compare, explained
from harness.soak.ledger import Entry, Ledger, numbers, percentiles
from harness.soak.soak import Result


def entry(number: int, verdict: str = "PASS", bundle: Path | None = None, seconds: float = 10) -> Entry:
    if bundle is not None:
        bundle.mkdir()
    return Entry(
        number=number,
        bundle=None if bundle is None else str(bundle),
        verdict=verdict,
        cause=None if verdict == "PASS" else "rank.crashed",
        exit_code=0 if verdict == "PASS" else 1,
        started_at="t",
        seconds=seconds,
        stages={"launch": seconds / 10},
    )


@pytest.mark.parametrize(
    ("keep", "left"), [("all", [1, 2, 3, 4]), ("failed", [2]), ("last:1", [2, 4]), ("last:9", [1, 2, 3, 4])]
)
def test_bundles_of_launches_that_passed_are_kept_as_asked(
    tmp_path: Path, keep: str, left: list[int]
) -> None:
    """Bundles of failed launches always stay. The ledger says which bundles exist, and is complete at any
    time.
    """
    ledger = Ledger(tmp_path / "ledger.jsonl", Keep.parse(keep))
    for number in (1, 2, 3, 4):
        ledger.add(entry(number, "FAIL" if number == 2 else "PASS", tmp_path / f"b{number}"))
        assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == number
    assert [number for number in (1, 2, 3, 4) if (tmp_path / f"b{number}").is_dir()] == left
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [line["number"] for line in lines if line["kept"]] == left


def test_the_table_has_every_launch_and_every_measure(tmp_path: Path) -> None:
    """It shows a failed launch, a retry and a leak."""
    entries = [entry(1), entry(2, "FAIL")]
    entries[0].retries.append(Retry(at="t", what="a watch", reason="cut | off"))
    growth = [Growth(what="namespaces", before="3", after="9", allowed="6", leak="3 more than explained")]
    result = Result(folder="f", asked=2, parallel=2, seconds=20, numbers=numbers(entries), growth=growth)
    table.write(tmp_path / "docs" / "soak.md", result, entries, {"kueue": "v1"})
    text = (tmp_path / "docs" / "soak.md").read_text()
    assert "**1 of 2 launches passed; 1 leaks.**" in text
    assert "| ✗ | namespaces | 3 | 9 | 3 more than explained |" in text
    assert "| ✓ | 1 | PASS | 0 | 10.0 |  | a watch: cut \\| off | none |" in text
    assert "| ✗ | 2 | FAIL rank.crashed | 1 |" in text


def test_numbers_aggregate_verdicts_and_percentiles() -> None:
    found = numbers([entry(n, seconds=n) for n in range(1, 101)] + [entry(101, "FAIL", seconds=500)])
    assert (found.launches, found.passed) == (101, 100)
    assert found.verdicts == {"PASS": 100, "FAIL rank.crashed": 1}
    assert found.seconds["whole"] == {"p50": 51, "p90": 91, "p99": 100, "max": 500}
    assert percentiles([3.0]) == {"p50": 3, "p90": 3, "p99": 3, "max": 3}


def test_a_pass_with_another_exit_code_is_none() -> None:
    assert not entry(1).model_copy(update={"exit_code": 2}).passed


def snapshot(**changes: int | list[str]) -> Snapshot:
    things: dict[str, list[str]] = {"launch namespaces": [], "Docker volumes": ["old"], "processes": []}
    sizes = {"memory of pod kueue-system/kueue/manager": 100 * MIB, "disk of state": MIB}
    for name, value in changes.items():
        if isinstance(value, list):
            things[name.replace("_", " ")] = value
        else:
            sizes[next(size for size in sizes if size.startswith(name.replace("_", " ")))] = value
    return Snapshot(things=things, sizes=sizes)


@pytest.mark.parametrize(
    ("after", "leaks"),
    [
        (snapshot(), []),
        (snapshot(launch_namespaces=["a", "b", "c", "d", "e"]), []),
        (snapshot(launch_namespaces=list("abcdef")), ["launch namespaces: a, b, c, d, e and 1 more"]),
        (snapshot(Docker_volumes=["old", "new"]), ["Docker volumes: new"]),
        (snapshot(Docker_volumes=[]), []),
        (snapshot(processes=["7 sleep"]), ["processes: 7 sleep"]),
        (snapshot(memory_of_pod=140 * MIB), []),
        (snapshot(memory_of_pod=150 * MIB), ["memory of pod kueue-system/kueue/manager grew by 50.0 MiB"]),
        (snapshot(disk_of_state=3 * MIB), ["disk of state grew by 2.0 MiB"]),
    ],
)
def test_growth_needs_an_explanation(after: Snapshot, leaks: list[str]) -> None:
    grown = compare(snapshot(), after, explained(launches=5, parallel=2, namespaces=3))
    assert [each.leak for each in grown if each.leak] == leaks
