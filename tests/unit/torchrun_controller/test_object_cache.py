"""A copy never goes back in time, and has what this process wrote."""

from __future__ import annotations

from typing import Any

import pytest

from harness.torchrun_controller.runtime.kinds import JOBSETS, PODS
from harness.torchrun_controller.runtime.object_cache import Change, Store

Object = dict[str, Any]


def item(name: str, version: int, label: str | None = None) -> Object:
    labels = {"of": label} if label else {}
    metadata = {"name": name, "namespace": "team", "resourceVersion": str(version), "labels": labels}
    return {"metadata": metadata}


def test_own_write_is_read_before_the_watch_tells_it() -> None:
    """Contract: what was written is there at once, and is no news when the watch comes to it."""
    store = Store()
    store.replace([], 10)
    store.wrote(item("a", 11))
    assert store.get("team", "a") == item("a", 11)
    assert store.changed(item("a", 11)) is None
    assert store.changed(item("a", 12)) == Change(item("a", 11), item("a", 12))


def test_answer_that_comes_late_brings_nothing_back() -> None:
    """Contract: made and deleted again before the answer to the creation was read: it stays gone."""
    store = Store()
    store.replace([], 10)
    store.changed(item("a", 11))
    store.deleted(item("a", 12))
    store.wrote(item("a", 11))
    assert store.get("team", "a") is None


def test_older_event_does_not_undo_an_own_write() -> None:
    """Contract: a watch that is behind tells an older state, or an older object's end: neither counts."""
    store = Store()
    store.replace([item("a", 5)], 10)
    store.wrote(item("a", 20))
    assert store.changed(item("a", 15)) is None
    assert store.deleted(item("a", 16)) is None
    assert store.get("team", "a") == item("a", 20)


def test_list_keeps_what_was_written_after_it() -> None:
    """Contract: a list is of its version: what was written later is not missing in it."""
    store = Store()
    store.replace([item("old", 5)], 10)
    store.wrote(item("new", 21))
    assert store.replace([], 20) == [Change(item("old", 5), None)]
    assert store.all() == [item("new", 21)]
    with pytest.raises(ValueError, match="version 19"):
        store.replace([], 19)


def test_label_that_changes() -> None:
    """Contract: objects are found by the label that they have now."""
    store = Store("of")
    store.replace([item("a", 1, "x"), item("b", 2, "x"), item("c", 3)], 10)
    assert store.of("team", "x") == [item("a", 1, "x"), item("b", 2, "x")]
    store.changed(item("a", 11, "y"))
    store.deleted(item("b", 12, "x"))
    assert (store.of("team", "x"), store.of("team", "y")) == ([], [item("a", 11, "y")])
    assert store.of("other", "y") == []


def test_what_a_decision_reads_is_kept() -> None:
    """Contract: managed fields and specs are left out; conditions that decide are there, with their times."""
    condition = {"type": "Completed", "status": "True", "reason": "r", "lastTransitionTime": "t"}
    found = JOBSETS.trim(
        {
            "metadata": {"name": "a", "resourceVersion": "1", "managedFields": [{}]},
            "spec": {"suspend": False, "replicatedJobs": [{}]},
            "status": {"restarts": 2, "restartsCountTowardsMax": 1, "conditions": [condition, {"type": "X"}]},
        }
    )
    assert found == {
        "apiVersion": JOBSETS.api,
        "kind": "JobSet",
        "metadata": {"name": "a", "resourceVersion": "1"},
        "spec": {"suspend": False},
        "status": {
            "restarts": 2,
            "conditions": [condition],
        },
    }
    assert PODS.path("team") == "/api/v1/namespaces/team/pods"
    assert JOBSETS.path(None) == "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
