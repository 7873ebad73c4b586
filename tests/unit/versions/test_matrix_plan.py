"""The cells of a matrix: combinations, exclusions, expected failures and duplicates."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.settings import Settings
from harness.versions.candidates import Candidate, candidates, locked
from harness.versions.cell import cluster_name
from harness.versions.matrix_definition import Definition
from harness.versions.matrix_plan import Axis, Plan, PlannedCell, Value, plan

KONDUKTOR = "konduktor-nightly"


def value(package: str, version: str, requested: str = "", digest: str = "") -> Value:
    one = Candidate(
        package, f"/wheels/{version}" if digest else version, version, requested or version, digest=digest
    )
    return Value(package, requested or version, one)


def axis(package: str, *versions: str) -> Axis:
    return Axis(package, tuple(value(package, version) for version in versions))


def planned(*axes: Axis, **changes: object) -> Plan:
    vary = {each.package: ["latest"] for each in axes}
    return plan(Definition.model_validate({"vary": vary, **changes}), axes)


def names(found: Plan) -> list[str]:
    return [" ".join(each.labels.values()) for each in found.cells]


def test_every_combination_is_a_cell_once() -> None:
    assert names(planned(axis("a", "1", "2"), axis("b", "3", "4"))) == ["1 3", "1 4", "2 3", "2 4"]


def test_each_package_alone_is_beside_the_locked_others() -> None:
    """Contract: the locked cell is launched once, even if both packages request it."""
    pluto, konduktor = (Value(name, "locked", locked(name)) for name in ("pluto-ml", "konduktor"))
    axes = (
        Axis("pluto-ml", (pluto, value("pluto-ml", "0.0.1"))),
        Axis(KONDUKTOR, (konduktor, value(KONDUKTOR, "0.1.dev1"))),
    )
    found = planned(*axes, each=True)
    assert [each.cell.replace for each in found.cells] == [{}, {"pluto-ml": "0.0.1"}, {KONDUKTOR: "0.1.dev1"}]


def test_cells_with_another_controller_have_cluster_of_their_own() -> None:
    """Contract: cells share a cluster exactly if JobSet and Kueue are the same."""
    context: Any = None
    versions = [one for spec in ("locked", "0.11.1") for one in candidates("jobset", spec, context)]
    jobsets = Axis("jobset", tuple(Value("jobset", one.label, one) for one in versions))
    found = planned(jobsets, axis("pluto-ml", "1", "2"))
    clusters = [cluster_name(Settings(cluster_name="c"), each.cell.controllers) for each in found.cells]
    assert clusters == ["c", "c", "c-jobset-v0.11.1", "c-jobset-v0.11.1"]
    assert found.cells[2].cell.options == ["--replace", "jobset=v0.11.1", "--replace", "pluto-ml=1"]
    with pytest.raises(UsageError, match="too long"):
        cluster_name(Settings(cluster_name="c" * 40), {"jobset": "v0.11.1"})
    for spec in ("latest", ">=0.11", "./checkout"):
        with pytest.raises(UsageError, match="expected a version such as"):
            candidates("jobset", spec, context)


def test_package_that_lock_lacks_is_not_installed_beside_others() -> None:
    found = planned(axis("absent", "1"), axis("other", "2"), each=True)
    assert [each.cell.replace for each in found.cells] == [{"absent": "1"}, {"other": "2"}]


def test_excluded_cells_have_reason_and_expected_ones_rule() -> None:
    found = planned(
        axis("a", "1.0", "1.5", "2.0"),
        axis("b", "3", "4"),
        exclude=[{"where": {"a": "<1.5", "b": "4"}, "reason": "too old"}],
        expect=[{"where": {"a": ">=2"}, "cause": "rank.crashed"}],
    )
    assert names(found) == ["1.0 3", "1.5 3", "1.5 4", "2.0 3", "2.0 4"]
    assert [(each.labels, why) for each, why in found.excluded] == [({"a": "1.0", "b": "4"}, "too old")]
    assert [each.expected.outcome if each.expected else "" for each in found.cells] == [
        "", "", "", "FAIL rank.crashed", "FAIL rank.crashed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "matched"),
    [
        ("./checkout", True),
        ("1.0", False),
        (">=0", False),
        ("locked", False),
        ("latest", False),
    ],
)
def test_checkout_is_matched_by_path_not_version(spec: str, matched: bool) -> None:
    """Contract: a rule for the published 1.0 does not excuse a checkout that has this version."""
    axes = Axis("a", (value("a", "1.0", "./checkout", "abc"),))
    found = planned(axes, expect=[{"where": {"a": spec}}])
    assert (found.cells[0].expected is not None) == matched
    assert bool(found.notes) != matched


def test_a_rule_that_matches_nothing_is_noted() -> None:
    found = planned(axis("a", "1"), exclude=[{"where": {"a": "7"}}])
    assert found.notes == ("no cell matches the rule a 7",)


def test_pre_releases_match_ranges_of_rules() -> None:
    found = planned(
        axis(KONDUKTOR, "0.1.0.dev20261001104526"), expect=[{"where": {"konduktor": "0.1.0.dev20261001"}}]
    )
    assert found.cells[0].expected is not None


def test_later_build_with_local_version_is_in_range() -> None:
    """Reported as pypa/packaging#810, which packaging 26.0 still has."""
    found = planned(axis("a", "4.1.dev2+cu12", "4.1.dev1+cu12"), expect=[{"where": {"a": ">4.1.dev1"}}])
    assert [each.expected is not None for each in found.cells] == [True, False]


def test_matrix_without_cells_or_with_too_many_is_refused() -> None:
    with pytest.raises(UsageError, match="no cells"):
        planned(axis("a", "1"), exclude=[{"where": {"a": "1"}}])
    many = axis("a", *map(str, range(40)))
    with pytest.raises(UsageError, match="more than 1000 cells"):
        planned(many, axis("b", *map(str, range(40))))


def test_cell_with_spec_without_version_has_problem() -> None:
    """Contract: it is a cell like the others, so that the rest of the matrix goes on."""
    bad = Value("a", "9", problem="the index has no version 9 of a")
    found = planned(Axis("a", (*axis("a", "1").values, bad)))
    assert [each.problem for each in found.cells] == ["", "the index has no version 9 of a"]


def test_the_options_of_a_cell_select_exactly_its_versions() -> None:
    cell = PlannedCell((value("a", "1"), value("b", "2", "./b", "abc"))).cell
    assert cell.options == ["--replace", "a=1", "--replace", "b=/wheels/2"]
    assert cell.name == "a-1-b-2"
