"""Names that users choose become labels and names of other objects, which have shorter limits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from torchrun_objects import job, queue

from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import JobSpec, QueueSpec
from harness.torchrun_controller.decide.queue import kai_document
from harness.torchrun_controller.objects import archive_pod, dry_run_pods
from harness.torchrun_controller.objects.pod_template import pod, resolve
from harness.torchrun_controller.plan.gpu_layout import Refused

Object = dict[str, Any]
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
HASH = "-" + 10 * "f"
LONG_JOB = "a" * 44 + "-" + "b" * 5


@pytest.mark.parametrize("name", ["demo", "a" * 47, "a" * 48, "a" * 50, LONG_JOB])
def test_code_pod_of_long_job_can_be_created(name: str) -> None:
    """kubernetes/kubernetes#64023: a StatefulSet with a long name was accepted, and never had a pod.

    Contract: the label with the StatefulSet's revision fits for each name that a job may have. Short names
    are as they are documented.
    """
    storage = {"workspace": {"enabled": True, "accessMode": "ReadWriteOnce", "size": "1Gi"}}
    annotations = {names.WORKSPACE_ANNOTATION: "digest", names.PARTS_ANNOTATION: "1"}
    one = job(annotations=annotations)
    one["metadata"]["name"] = name
    resolved = resolve(
        name,
        JobSpec.model_validate(one["spec"]),
        annotations,
        QueueSpec.model_validate(queue(storage=storage)["spec"]),
    )
    documents = archive_pod.documents(one, resolved)
    assert [each["kind"] for each in documents] == ["Service", "StatefulSet"]
    for document in documents:
        revision = document["metadata"]["name"] + HASH
        assert LABEL.fullmatch(revision), revision
    if len(name) < 48:
        assert documents[1]["metadata"]["name"] == f"{name}-sync"
    server = f"{names.archive_server(name)}-0.{names.archive_server(name)}:"
    assert server in str(pod(resolved, kai=False)["spec"]["initContainers"])


def test_similar_long_jobs_have_separate_code_pods() -> None:
    """Contract: two names that differ in their last letter give two names."""
    assert names.archive_server("a" * 49 + "b") != names.archive_server("a" * 50)


@pytest.mark.parametrize("name", ["cpu", "a" * 62 + "-b", "a" * 62 + ".b", "a" * 253])
def test_the_label_of_a_long_queue_is_valid(name: str) -> None:
    """kubernetes-sigs/kueue#10098: a name of up to 253 characters was used as a label value.

    Contract: what the controller creates for a queue or for a job has labels that the API server accepts.
    """
    one = queue(localQueue="short", kaiQueue="short")
    one["metadata"]["name"] = name
    del one["spec"]["localQueue"]
    spec = QueueSpec.model_validate(one["spec"])
    found = dry_run_pods.of_queue(one, spec, kai=True)
    for labels in (found["metadata"]["labels"], kai_document(one, spec)["metadata"]["labels"]):
        assert all(LABEL.fullmatch(value) for value in labels.values()), labels


@pytest.mark.parametrize(("kai", "field"), [(False, "localQueue"), (True, "kaiQueue")])
def test_queue_with_name_unusable_in_labels_is_not_ready(kai: bool, field: str) -> None:
    """kubernetes-sigs/kueue#9872: jobs and workloads could not name each other in labels.

    Contract: the queue says that its name is too long and what to set. Otherwise, each of its jobs is Failed
    with an error about a label that its user never wrote.
    """
    one = queue()
    one["metadata"]["name"] = "a" * 64
    with pytest.raises(Refused, match=f"has 64 characters.*or set {field}"):
        dry_run_pods.of_queue(one, QueueSpec.model_validate(one["spec"]), kai=kai)
    spec = QueueSpec.model_validate(queue(**{field: "short"})["spec"])
    assert dry_run_pods.of_queue(one, spec, kai=kai)["kind"] == "Pod"
