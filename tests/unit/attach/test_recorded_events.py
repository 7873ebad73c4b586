"""Which Events an attached session records: those about the job, and about what its pods wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.attach.rank_pods import describe
from harness.attach.recorded_objects import Recording
from harness.attach.resources import JOB
from harness.evidence import Bundle, BundleWriter, Redactor

Object = dict[str, Any]
VOLUMES = [
    {"name": "data", "persistentVolumeClaim": {"claimName": "corpus"}},
    {"name": "scratch", "ephemeral": {}},
]
SPEC = {"containers": [{"name": "main", "command": ["torchrun", "t.py"]}], "volumes": VOLUMES}


def event(kind: str, name: str) -> Object:
    about = {"kind": kind, "name": name, "uid": f"uid-{name}"}
    metadata = {"name": f"about-{name}", "uid": f"event-{kind}-{name}"}
    return {"kind": "Event", "metadata": metadata, "involvedObject": about, "reason": "FailedBinding"}


@pytest.mark.parametrize("pods_first", [True, False])
@pytest.mark.parametrize(
    ("kind", "name", "recorded"),
    [
        ("PersistentVolumeClaim", "corpus", True),
        ("PersistentVolumeClaim", "train-0-scratch", True),
        ("PersistentVolumeClaim", "other", False),
        ("PodGroup", "gang", True),
        ("PodGroup", "other", False),
        ("ConfigMap", "corpus", False),
    ],
)
def test_an_event_about_what_a_pod_uses_is_recorded(
    tmp_path: Path, kind: str, name: str, recorded: bool, pods_first: bool
) -> None:
    """Contract: a pod that waits for its claim or its group is explained in attached jobs too."""
    template = {"spec": SPEC, "metadata": {}}
    item = {"metadata": {"name": "train", "uid": "job"}, "spec": {"completions": 1, "template": template}}
    owner = [{"kind": "Job", "name": "train", "uid": "job", "controller": True}]
    annotations = {"scheduling.k8s.io/group-name": "gang", "batch.kubernetes.io/job-completion-index": "0"}
    metadata = {"name": "train-0", "uid": "pod", "ownerReferences": owner, "annotations": annotations}
    pod = {"kind": "Pod", "metadata": metadata, "spec": SPEC, "status": {}}
    writer = BundleWriter(tmp_path, "nonce", Redactor())
    recording = Recording(describe(JOB, "team", "train", item, [pod]), writer)
    for kind_name, each in [("pod", pod), ("event", event(kind, name))][:: 1 if pods_first else -1]:
        recording.add(kind_name, each)
    recording.flush()
    writer.close()
    names = [state.name for state in Bundle.open(tmp_path).history("event")]
    assert (f"about-{name}" in names) is recorded
