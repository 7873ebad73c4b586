"""Whatever a user writes into a queue or a job, the controller decides: it never raises."""

from __future__ import annotations

import copy
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError
from torchrun_objects import CHECKED, job, queue

from harness.torchrun_controller.api.models import QueueSpec
from harness.torchrun_controller.decide import job as desired
from harness.torchrun_controller.decide import queue as queues
from harness.torchrun_controller.decide.decisions import QueueSnapshot, Snapshot
from harness.torchrun_controller.objects import dry_run_pods
from harness.torchrun_controller.plan.gpu_layout import Refused

Object = dict[str, Any]
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        ["", " ", "8", "-1", "1e3", "1.5", "64 GB", "10Gi", "trainer", "'", "a=b", "0Gi", "9" * 5000]
    ),
    st.text(max_size=5),
)
VALUES = st.recursive(
    ATOMS,
    lambda part: st.one_of(
        st.lists(part, max_size=3),
        st.dictionaries(
            st.sampled_from(["name", "value", "limits", "nvidia.com/gpu", "mountPath", "x"]), part, max_size=3
        ),
    ),
    max_leaves=6,
)
FULL_QUEUE: Object = {
    "image": "torch:1",
    "nodeResources": {"gpus": 8, "cpus": 96, "memory": "512Gi", "gpuType": "h100"},
    "storage": {
        "shmSizePerGPU": "1Gi",
        "workspace": {"enabled": True, "sizePerGPU": "1Gi"},
        "checkpoints": {
            "enabled": True,
            "size": "1Gi",
            "storageClass": "fast",
            "accessMode": "ReadWriteMany",
        },
    },
    "scheduling": {
        "nodeSelector": {"a": "b"},
        "affinity": {"x": {}},
        "tolerations": [{"key": "a"}],
        "scheduler": "s",
    },
    "env": [{"name": "A", "value": "b"}],
    "resources": [
        {
            "name": "a",
            "template": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"labels": {"a": "b"}}},
        }
    ],
    "overrides": {
        "allowed": ["image", "env", "storage", "volumes", "scheduling", "distributed"],
        "images": ["*"],
        "secrets": ["s"],
        "configMaps": ["c"],
        "priorityClasses": ["p"],
        "tolerations": [{"key": "a"}],
        "volumes": [{"emptyDir": {}}],
        "labels": ["a"],
        "fields": ["storage", "scheduling", "volumes.additionalMounts"],
    },
    "privileges": ["hostNetwork"],
    "podTemplate": {
        "metadata": {"labels": {"a": "b"}, "annotations": {}},
        "spec": {
            "containers": [
                {
                    "name": "trainer",
                    "image": "x",
                    "env": [{"name": "A", "value": "b"}],
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                    "resources": {"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": "1"}},
                },
                {"name": "sidecar"},
            ],
            "initContainers": [{"name": "init", "env": []}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "tolerations": [{"key": "a"}],
            "nodeSelector": {"a": "b"},
            "hostNetwork": True,
        },
    },
}
FULL_JOB: Object = {
    "numGPUs": 16,
    "image": "x",
    "setupCommand": "cd /tmp",
    "distributed": {"backend": "nccl", "rdzvBackend": "c10d", "port": 29500, "rdzvEndpoint": "a:1"},
    "scheduling": {"priorityClassName": "p", "nodeSelector": {"a": "b"}},
    "storage": {"checkpoints": {"enabled": True, "sizePerGPU": "1Gi"}},
    "workspaceStorage": {
        "source": "git",
        "url": "https://x/y",
        "ref": "main",
        "secretName": "s",
        "size": "1Gi",
    },
    "reliability": {"maxRestarts": 1, "activeDeadlineSeconds": 5, "ttlSecondsAfterFinished": 5},
    "env": [{"name": "B", "value": "c"}],
    "volumes": {
        "additionalMounts": [{"name": "v", "mountPath": "/w"}],
        "additionalVolumes": [{"name": "w", "emptyDir": {}}],
    },
    "labels": {"a": "b"},
}


def places(found: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each value inside."""
    inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    return [path for key, value in inner for path in [(*at, key), *places(value, (*at, key))]]


def changed(spec: Object, path: tuple[Any, ...], value: Any) -> Object:
    """Return a spec with another value at a path."""
    result = copy.deepcopy(spec)
    at = result
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return result


def settle(one_job: Object, one_queue: Object) -> None:
    """Decide about both as the controller does, with a queue that was checked and one that was not."""
    with suppress(ValidationError, Refused):
        dry_run_pods.of_queue(one_queue, QueueSpec.model_validate(one_queue["spec"]), kai=False)
    for kai in (False, True):
        queues.desired(one_queue, QueueSnapshot(template=""), NOW, "cluster-queue", kai=kai)
        for status in ({}, {"conditions": [CHECKED]}):
            seen = Snapshot(queue={**one_queue, "status": status}, priority_classes=frozenset({"p"}))
            desired.desired(one_job, seen, NOW, kai=kai)


@given(path=st.sampled_from(places(FULL_QUEUE)), value=VALUES)
@example(path=("podTemplate", "spec", "containers", 0, "env"), value={"A": "b"})
@example(
    path=("podTemplate", "spec", "containers", 0, "resources", "limits", "nvidia.com/gpu"), value="eight"
)
@example(
    path=("podTemplate", "spec", "containers", 0, "resources", "limits", "nvidia.com/gpu"), value="9" * 5000
)
@example(path=("podTemplate", "spec", "containers", 0, "volumeMounts", 0), value={"name": "v"})
@example(path=("podTemplate", "spec", "volumes", 0), value="v")
@example(path=("podTemplate", "spec", "containers"), value=["trainer"])
@example(path=("resources", 0, "template", "metadata"), value=["a"])
@example(path=("env", 0), value={"value": "b"})
@example(path=("nodeResources", "cpus"), value="lots")
def test_any_value_in_a_queue_is_decided(path: tuple[Any, ...], value: Any) -> None:
    """Contract: a value of any type in any place of a queue is a condition, a refusal or a pod."""
    settle(job(**{**FULL_JOB, "numNodes": None}), queue(**changed(FULL_QUEUE, path, value)))


@given(path=st.sampled_from(places(FULL_JOB)), value=VALUES)
@example(path=("env", 0), value={"name": 3})
@example(path=("env", 0), value={})
@example(path=("volumes", "additionalVolumes", 0), value={"emptyDir": {}})
@example(path=("workspaceStorage", "size"), value="lots")
def test_any_value_in_a_job_is_decided(path: tuple[Any, ...], value: Any) -> None:
    """Contract: the same holds of a job."""
    settle(job(**{**changed(FULL_JOB, path, value), "numNodes": None}), queue(**FULL_QUEUE))
