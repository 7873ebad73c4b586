"""Wrong queues and jobs on a real cluster: each is answered in one sentence, on the object itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import wrong_objects
from kubernetes.client.exceptions import ApiException
from torchrun_team import CODE, LISTED, Controller, Team
from wrong_objects import Answer, Case

from harness.core.deadlines import Deadline
from harness.core.kubernetes import Object
from harness.core.kubernetes_retries import pause
from harness.provision.cluster import Ready
from harness.settings import Settings
from harness.torchrun_controller.api import names
from harness.torchrun_controller.runtime.executor import STRICT

pytestmark = [pytest.mark.controller, pytest.mark.nightly]
ANSWERED_SECONDS = 60.0
PASSING = (
    "is being created",
    "is being checked",
    "are being created",
    "has not seen its LocalQueue",
    "waits for",
)
"""Of messages that another one follows."""
Describe = Callable[[str], dict[str, str]]
OVERRIDES = {
    **LISTED,
    "images": ["*"],
    "priorityClasses": ["nosuch"],
    "labels": ["a b"],
    "fields": ["scheduling.affinity", "storage.checkpoints", "volumes.additionalMounts"],
}
"""What the wrong jobs set beside their mistake, so that the answer is about the mistake."""


@pytest.fixture(scope="module")
def describe(cluster: Ready, harness_settings: Settings, team: Team) -> Describe:
    """Return object → message of `kubectl describe` for all queues or jobs of the namespace."""

    def described(plural: str) -> dict[str, str]:
        command = [harness_settings.kubectl_bin, "--kubeconfig", str(cluster.cluster.kubeconfig)]
        command += ["--namespace", team.namespace, "describe", plural]
        ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        return wrong_objects.described(ran.stdout)

    return described


def refused(team: Team, kind: str, case: Case, usual: dict[str, Any]) -> str:
    """Create an object as kubectl does: unknown fields are refused. Return the API server's sentence."""
    merged = {**usual, **case.spec}
    document: Object = {
        "apiVersion": names.API,
        "kind": kind,
        "metadata": {"name": case.object_name, "namespace": team.namespace},
        "spec": {field: value for field, value in merged.items() if value is not None},
    }
    try:
        team.kube.resource(names.API, kind).create(
            body=document, namespace=team.namespace, query_params=[STRICT]
        )
    except ApiException as error:
        return str(wrong_objects.sentence(error))
    return ""


def answered(team: Team, describe: Describe) -> dict[str, Answer]:
    """Apply every case, and return each answer as soon as it does not change any more."""
    queue = {"image": team.image, "nodeResources": {"cpus": "250m", "memory": "512Mi"}}
    job = {"jobQueue": "cpu", "command": "python /code/add.py", "numNodes": 2, "volumes": CODE}
    found: dict[str, Answer] = {}
    waiting: dict[str, dict[str, str]] = {"torchrunqueues": {}, "torchrunjobs": {}}
    cases = wrong_objects.cases()
    for plural, kind, group, usual in (
        ("torchrunqueues", names.QUEUE_KIND, cases["queues"], queue),
        ("torchrunjobs", names.JOB_KIND, cases["jobs"], job),
    ):
        for case in group:
            says = refused(team, kind, case, usual)
            if says:
                found[case.case] = Answer(by="kubectl apply", says=wrong_objects.normal(says, team.namespace))
            else:
                waiting[plural][case.object_name] = case.case
    deadline = Deadline.after(ANSWERED_SECONDS)
    while any(waiting.values()):
        assert not deadline.passed, f"no answer: {waiting}"
        for plural, left in waiting.items():
            messages = describe(plural) if left else {}
            for name in list(left):
                message = messages.get(name, "")
                if message and not message.endswith(PASSING[:3]) and not message.startswith(PASSING[3:]):
                    says = wrong_objects.normal(message, team.namespace)
                    found[left.pop(name)] = Answer(by="kubectl describe", says=says)
        if any(waiting.values()):
            pause(deadline)
    return found


def test_each_wrong_object_is_answered(team: Team, controller: Controller, describe: Describe) -> None:
    """Contract: docs/torchrun-wrong-objects.md has what the cluster answers to each wrong object."""
    team.queue(overrides=OVERRIDES)
    team.queue("strict", overrides={"allowed": []})
    for name in ("cpu", "strict"):
        team.until_queue_ready(name)
    found = answered(team, describe)
    if os.environ.get("RECORD_ANSWERS"):
        wrong_objects.record(found)
    recorded = wrong_objects.answers()
    with suppress(FileNotFoundError):
        assert "Traceback" not in controller.log.read_text()
    assert {case: answer.says for case, answer in found.items()} == {
        case: answer.says for case, answer in recorded.items()
    }
