"""Marks on nodes: they change what is theirs, and are taken back exactly."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import HarnessError
from harness.provision.node_marks import BEFORE, LABEL, TAINT, marking, restoring

OTHERS = st.dictionaries(st.sampled_from(["a", "b/c", "kubernetes.io/hostname"]), st.text(max_size=3))
TAINTS = st.lists(
    st.builds(
        lambda key, value, effect: {"key": key, "value": value, "effect": effect},
        st.sampled_from(["nvidia.com/gpu", "x", TAINT]),
        st.sampled_from(["", "FAIL", "else"]),
        st.sampled_from(["NoSchedule", "NoExecute"]),
    ),
    max_size=3,
    unique_by=lambda one: (one["key"], one["effect"]),
).map(lambda taints: sorted(taints, key=lambda one: one["key"] == TAINT))
VERDICTS = st.sampled_from(["PASS", "WARN", "FAIL", "UNKNOWN"])
NODES = st.builds(
    lambda labels, annotations, taints: {
        "metadata": {"name": "n", "resourceVersion": "7", "labels": labels, "annotations": annotations},
        "spec": {"podCIDR": "10.0.0.0/24", **({"taints": taints} if taints else {})},
    },
    st.builds(
        lambda others, own: others | own, OTHERS, st.sampled_from([{}, {LABEL: "PASS"}, {LABEL: "by hand"}])
    ),
    OTHERS,
    TAINTS,
)


def merged(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396), as the API server does."""
    if not isinstance(patch, dict):
        return patch
    made = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(made.get(key), value)
    return made


@given(NODES, st.lists(st.tuples(VERDICTS, st.booleans()), min_size=1, max_size=3))
def test_undo_restores_exactly(node: dict[str, Any], marks: list[tuple[Any, bool]]) -> None:
    """Contract: after any marks in a row, a node is as it was before the first of them."""
    before, now = copy.deepcopy(node), node
    for verdict, taint in marks:
        now = merged(now, marking(now, verdict, taint=taint) or {})
        assert now["metadata"]["labels"][LABEL] == verdict
        own = [one for one in now["spec"].get("taints", []) if one["key"] == TAINT]
        assert bool(own) is (taint and verdict == "FAIL")
        assert marking(now, verdict, taint=taint) is None
    assert merged(now, restoring(now)) == before


@given(NODES, VERDICTS, st.booleans())
def test_what_others_write_meanwhile_stays(node: dict[str, Any], verdict: Any, taint: bool) -> None:
    """Contract: labels, annotations and taints of others are neither changed nor brought back."""
    now = merged(node, marking(node, verdict, taint=taint))
    now["metadata"]["labels"]["theirs"] = "new"
    now["spec"]["taints"] = [*now["spec"].get("taints", []), {"key": "drain", "effect": "NoSchedule"}]
    after = merged(now, restoring(now))
    assert after["metadata"]["labels"]["theirs"] == "new"
    assert {"key": "drain", "effect": "NoSchedule"} in after["spec"]["taints"]
    others = [one for one in after["spec"]["taints"] if one["key"] != TAINT]
    assert others[:-1] == [one for one in node["spec"].get("taints", []) if one["key"] != TAINT]
    assert BEFORE not in after["metadata"]["annotations"]


def test_a_change_is_made_from_one_version() -> None:
    """Contract: the API server refuses it when somebody wrote in between."""
    patch = marking({"metadata": {"resourceVersion": "41"}}, "FAIL", taint=True)
    assert patch is not None
    assert patch["metadata"]["resourceVersion"] == "41"


@pytest.mark.parametrize("text", ["", "no JSON", "[]", json.dumps({"label": None})])
def test_an_annotation_that_others_wrote_is_refused(text: str) -> None:
    with pytest.raises(HarnessError, match="cannot be read"):
        restoring({"metadata": {"name": "n", "annotations": {BEFORE: text}}})


def test_a_node_without_marks_is_left() -> None:
    assert restoring({"metadata": {"name": "n"}}) is None
