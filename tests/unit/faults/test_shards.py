"""The division of the catalogue into shards."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import UsageError
from harness.faults.commands import faults
from harness.faults.fault_file import catalogue
from harness.faults.shards import TABLE, Shard, cost, divided, recorded_seconds

KNOWN = list(catalogue().values())
WORKFLOW = TABLE.parents[1] / ".github" / "workflows" / "e2e.yml"
SHARD_SECONDS = 3600.0
SET_UP_SECONDS = 300.0
"""Of a runner: the cluster of the matrix."""


@pytest.mark.parametrize("count", [1, 2, 4, 7, 300])
def test_every_fault_is_in_exactly_one_shard(count: int) -> None:
    known = [fault for fault in KNOWN if fault.cannot is None]
    shards = divided(KNOWN, count, recorded_seconds())
    assert len(shards) == count
    assert sorted(fault.name for shard in shards for fault in shard) == sorted(fault.name for fault in known)


@settings(max_examples=20)
@given(
    st.integers(min_value=1, max_value=12),
    st.dictionaries(st.sampled_from([fault.name for fault in KNOWN]), st.floats(1, 900)),
)
def test_shard_loads_differ_by_at_most_one_fault(count: int, seconds: dict[str, float]) -> None:
    loads = [sum(cost(fault, seconds) for fault in shard) for shard in divided(KNOWN, count, seconds)]
    assert max(loads) - min(loads) <= max(cost(fault, seconds) for fault in KNOWN) + 1e-6


def test_the_table_has_the_seconds_of_most_faults() -> None:
    assert len(recorded_seconds().keys() & {fault.name for fault in KNOWN}) > len(KNOWN) / 2
    assert recorded_seconds(TABLE.with_name("absent.md")) == {}


def test_nightly_shards_cover_all_faults_within_an_hour() -> None:
    matrix = yaml.safe_load(WORKFLOW.read_text())["jobs"]["nightly"]["strategy"]["matrix"]["include"]
    shards = [Shard.parse(one["shard"]) for one in matrix if one["target"] == "faults"]
    (count,) = {shard.count for shard in shards}
    assert sorted(shard.number for shard in shards) == list(range(1, count + 1))
    seconds = recorded_seconds()
    for shard in shards:
        assert (
            sum(cost(fault, seconds) for fault in shard.of(KNOWN, seconds)) < SHARD_SECONDS - SET_UP_SECONDS
        )


def test_a_shard_is_chosen_by_its_number() -> None:
    chosen = [fault.name for number in (1, 2) for fault in faults([], 0, 0, 0, f"{number}/2")]
    assert sorted(chosen) == sorted(fault.name for fault in KNOWN if fault.cannot is None)
    assert [fault.name for fault in faults(["rank-killed"], 0, 0, 0, "1/1")] == ["rank-killed"]


@pytest.mark.parametrize("text", ["", "0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="I/N"):
        Shard.parse(text)
