"""Values of wrong types in recorded objects are absent, and each is named once."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from harness.evidence import Bundle
from harness.evidence.kubernetes.typed_objects import typed

POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {
        "name": "a-0",
        "uid": "u",
        "labels": {"phase": "x", "status": "y"},
        "ownerReferences": [{"uid": "j"}],
    },
    "spec": {"containers": [{"name": "c", "args": ["a"], "resources": {"limits": {"cpu": "1", "x/y": 2}}}]},
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "c", "restartCount": 0, "user": {"linux": {"uid": 0}}}],
    },
}


def test_what_kubernetes_writes_is_left_as_it_is() -> None:
    """Contract: names of labels are free, a status is a mapping or a text, a uid of Linux is a number."""
    pod = copy.deepcopy(POD)
    assert list(typed(pod)) == []
    assert pod == POD


def test_exit_codes_of_a_pod_failure_policy_are_numbers() -> None:
    """Contract: a Job with one is whole evidence; the values of label selectors are texts."""
    codes = {"containerName": "c", "operator": "In", "values": [2, 42]}
    job: dict[str, Any] = {
        "spec": {"podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": codes}]}}
    }
    whole = copy.deepcopy(job)
    assert list(typed(job)) == []
    assert job == whole
    assert list(typed({"spec": {"matchExpressions": [{"key": "a", "values": [2]}]}}))


def test_exit_codes_in_restart_rules_of_container_are_numbers() -> None:
    """Contract: a pod with container restart rules (Kubernetes 1.34) is whole evidence."""
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    pod: dict[str, Any] = {"spec": {"containers": [{"name": "c", "restartPolicyRules": [rule]}]}}
    whole = copy.deepcopy(pod)
    assert list(typed(pod)) == []
    assert pod == whole


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("status.phase", ["x"], "status.phase is a list, but must be a string"),
        ("status", "Running", "status is a string, but must be a mapping"),
        ("status.containerStatuses.0.restartCount", "3", "is a string, but must be a number"),
        ("status.containerStatuses.0.restartCount", True, "is a boolean, but must be a number"),
        ("status.containerStatuses.0.restartCount", 10**30, "is a number out of range"),
        (
            "status.containerStatuses.0",
            7,
            "status.containerStatuses[0] is a number, but must be a mapping",
        ),
        ("status.conditions.0.status", {}, "status.conditions.status is a mapping, but must be a string"),
        ("metadata.uid", 7, "metadata.uid is a number, but must be a string"),
        ("metadata.labels.phase", 7, "metadata.labels.phase is a number, but must be a string"),
        ("spec.containers.0.args.0", {}, "spec.containers.args[0] is a mapping, but must be a string"),
    ],
)
def test_value_of_wrong_type_is_absent_and_named(path: str, value: Any, problem: str) -> None:
    pod = copy.deepcopy(POD)
    *parents, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    place: Any = pod
    for key in parents:
        place = place[key]
    place[last] = value
    (message,) = typed(pod)
    assert problem in message
    assert value not in (place if isinstance(place, list) else place.values())


def test_a_null_is_absent_and_no_problem() -> None:
    event = {"kind": "Event", "eventTime": None, "count": 1}
    assert list(typed(event)) == []
    assert event == {"kind": "Event", "count": 1}


def test_a_field_is_named_once_in_a_bundle(tmp_path: Path) -> None:
    """Contract: a wrong field in a thousand states is one line, and the bundle counts as damaged."""
    (tmp_path / "objects").mkdir()
    state = {
        "received_at": "2026-11-21T05:00:00Z",
        "type": "ADDED",
        "object": {**POD, "status": {"phase": []}},
    }
    (tmp_path / "objects/pod.jsonl").write_text(f"{json.dumps(state)}\n" * 1000)
    bundle = Bundle(tmp_path)
    assert len(bundle.history("pod")) == 1000
    assert bundle.damaged == ["objects/pod.jsonl:1 status.phase is a list, but must be a string"]
