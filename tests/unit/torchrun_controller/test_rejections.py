"""What the API server refuses is a message of the job or queue; so is an error of the controller itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from torchrun_api import Api, Watching
from torchrun_objects import job, queue
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from harness.torchrun_controller.api import names
from harness.torchrun_controller.decide.decisions import Check
from harness.torchrun_controller.runtime.reconcile import Key

Object = dict[str, Any]
START = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
QUEUE = Key("queue", "team", "cpu")
ACCOUNT = 'pods "demo" is forbidden: error looking up service account team/x: serviceaccount "x" not found'
QUOTA = 'pods "demo" is forbidden: exceeded quota: q, requested: cpu=2, used: cpu=0, limited: cpu=1'
POLICY = "pods \"demo\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: label it"
INVALID = 'Pod "demo" is invalid: spec.containers[0].env[0].name: Invalid value: "A=B"'


def answer(status: int, reason: str, message: str, *causes: Object) -> ApiException:
    error = ApiException(status=status, reason=reason)
    details = {"causes": list(causes)}
    error.body = json.dumps({"kind": "Status", "reason": reason, "message": message, "details": details})
    return error


FORBIDDEN = answer(403, "Forbidden", ACCOUNT)


def refusing(kind: str, error: Exception) -> Callable[[Object], None]:
    def refuse(item: Object) -> None:
        if item["kind"] == kind:
            raise error

    return refuse


LIMIT = 20.0


class Cluster:
    """An API server with a queue and a job, and a controller that hears of everything."""

    def __init__(self, **queue_parts: Any) -> None:
        self.api, self.now = Api(), START
        self.api.put({**queue(), **queue_parts})
        self.api.put(job())
        self.controller = Watching(self.api, lambda: self.now)
        self.controller.list_rest()

    def look(self, key: Key | None = None) -> float | None:
        self.controller.hear_all()
        return self.controller.look(key) if key else self.controller.look()

    def status(self, kind: str = names.JOB_KIND, name: str = "demo") -> Object:
        found = self.api.there(kind, name)
        assert found is not None
        return dict(found["status"])

    def condition(self, kind: str, of: str = names.JOB_KIND, name: str = "demo") -> Object:
        [found] = [each for each in self.status(of, name)["conditions"] if each["type"] == kind]
        return dict(found)

    def events(self, reason: str) -> list[Object]:
        return [
            item
            for (kind, _), item in self.api.objects.items()
            if kind == "Event" and item["reason"] == reason
        ]


@pytest.mark.parametrize("refused", ["Pod", "JobSet"])
@pytest.mark.parametrize(("status", "reason"), [(400, "BadRequest"), (422, "Invalid")])
def test_object_that_is_invalid_for_ever_ends_job(refused: str, status: int, reason: str) -> None:
    """Contract: the job is Failed with the server's sentence, and nothing was created."""
    cluster = Cluster()
    cluster.api.refuse = refusing(refused, answer(status, reason, INVALID, {"field": "spec"}))
    cluster.look()
    assert cluster.status()["phase"] == "Failed"
    assert INVALID in cluster.status()["message"]
    assert cluster.condition("Failed")["reason"] == "Rejected"
    assert cluster.api.there("JobSet") is None
    assert [event["type"] for event in cluster.events("Refused")] == ["Warning"]


@pytest.mark.parametrize("refused", ["Pod", "JobSet"])
@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (403, "Forbidden", ACCOUNT),
        (422, "Invalid", POLICY),
        (403, "Forbidden", QUOTA),
        (500, "InternalError", "failed calling webhook"),
    ],
)
def test_a_refusal_that_may_pass_is_waited_for(refused: str, status: int, reason: str, message: str) -> None:
    """Contract: the job stays Pending with the server's sentence, and starts once it is accepted."""
    cluster = Cluster()
    cluster.api.refuse = refusing(refused, answer(status, reason, message))
    cluster.look()
    assert cluster.status()["phase"] == "Pending"
    assert message in cluster.status()["message"]
    assert cluster.condition("Accepted")["reason"] == reason
    assert [event["message"] for event in cluster.events("Rejected")] == [
        cluster.condition("Accepted")["message"]
    ]
    before = cluster.api.version
    cluster.look()
    assert cluster.api.version == before  # the same refusal changes nothing
    cluster.api.refuse = lambda item: None
    cluster.now += timedelta(seconds=5)
    cluster.look()
    cluster.look()
    assert cluster.api.there("JobSet") is not None
    assert cluster.condition("Accepted")["status"] == "True"
    assert message not in str(cluster.status().get("message"))


def test_a_busy_api_server_says_nothing_about_the_job() -> None:
    """Contract: 429, 503 and 504 are tried again; neither the job's message nor its conditions change."""
    for status in (429, 503, 504):
        cluster = Cluster()
        cluster.api.refuse = refusing("JobSet", answer(status, "Busy", "later"))
        with pytest.raises(ApiException):
            cluster.look()
        assert cluster.status()["message"] == "waiting for Kueue to admit the job"
        types = {each["type"] for each in cluster.status()["conditions"]}
        assert types == {"Suspended", "QueueReady", "Admitted"}


def no_response() -> Exception:
    error: Exception = ReadTimeoutError(None, "/", "host: Read timed out.")  # type: ignore[arg-type]
    return error


def timed_out() -> Exception:
    return answer(504, "Timeout", "request did not complete")


@pytest.mark.parametrize("kind", ["Pod", "JobSet"])
@pytest.mark.parametrize("error", [no_response, timed_out])
def test_a_webhook_that_never_responds_is_reported(error: Callable[[], Exception], kind: str) -> None:
    """kubernetes/kubernetes#67662, ray-project/kuberay#3980: an object was retried for ever without a status.

    Contract: an error that may pass is reported once it has lasted for a minute, with the request and what to
    check. The report is written once, and the next success clears it.
    """
    cluster = Cluster()
    for seconds in (0, 59, 1, 30):
        cluster.api.refuse = refusing(kind, error())
        cluster.now += timedelta(seconds=seconds)
        with pytest.raises(type(error())):
            cluster.look()
        is_due = cluster.now - START >= timedelta(seconds=60)
        assert (
            "the controller could not process this object" in str(cluster.status().get("message"))
        ) == is_due
    message = cluster.status()["message"]
    assert f"the failed request was to {'check' if kind == 'Pod' else 'create'} {kind} demo" in message
    assert f"check the admission webhooks for {kind}s" in message
    assert cluster.status()["phase"] == ("Pending" if kind == "Pod" else "Queued")
    assert len(cluster.events("ReconcileError")) == 1
    cluster.api.refuse = lambda item: None
    cluster.look()
    assert cluster.condition("Reconciled")["status"] == "True"
    assert cluster.api.there("JobSet") is not None


def test_unreachable_api_server_is_no_fault_of_job() -> None:
    """Contract: without a connection, no status is written, however long it lasts."""
    cluster = Cluster()
    cluster.api.refuse = refusing("Pod", ProtocolError("Connection aborted."))
    for _ in range(3):
        cluster.now += timedelta(minutes=2)
        with pytest.raises(ProtocolError):
            cluster.look()
    assert cluster.status() == {}


def test_an_error_of_the_controller_is_a_condition() -> None:
    """Contract: a look that raises is a condition, a message and one Event; the next good look clears it."""
    cluster = Cluster()
    cluster.api.refuse = refusing("JobSet", TypeError("string indices must be integers"))
    for _ in range(2):
        with pytest.raises(TypeError):
            cluster.look()
    assert cluster.condition("Reconciled")["reason"] == "TypeError"
    assert "string indices must be integers" in cluster.status()["message"]
    assert len(cluster.events("ReconcileError")) == 1
    cluster.api.refuse = lambda item: None
    cluster.look()
    assert cluster.condition("Reconciled")["status"] == "True"
    assert cluster.api.there("JobSet") is not None


def test_an_error_while_reconciling_a_queue_is_a_condition() -> None:
    """Contract: the same holds of a queue."""
    cluster = Cluster(status={})
    cluster.api.refuse = refusing("Pod", TypeError("no"))
    with pytest.raises(TypeError):
        cluster.look(QUEUE)
    assert cluster.condition("Reconciled", names.QUEUE_KIND, "cpu")["reason"] == "TypeError"


def test_a_queue_is_checked_once_for_each_change() -> None:
    """Contract: one dry run of its pod when the queue is new or has changed, and no other request for it."""
    cluster = Cluster(status={})
    for _ in range(3):
        cluster.look(QUEUE)
    assert cluster.api.checks == 1
    assert cluster.condition("PodTemplateValid", names.QUEUE_KIND, "cpu")["status"] == "True"
    found = cluster.api.there(names.QUEUE_KIND, "cpu")
    assert found is not None
    cluster.api.put({**found, "metadata": {**found["metadata"], "generation": 2}})
    for _ in range(3):
        cluster.look(QUEUE)
    assert cluster.api.checks == 2


def test_refused_queue_is_not_ready_and_its_jobs_wait() -> None:
    """Contract: Ready is False with the server's sentence; a job of the queue repeats it and waits."""
    cluster = Cluster(status={})
    cluster.api.refuse = refusing("Pod", FORBIDDEN)
    cluster.look()
    assert cluster.status()["message"] == "TorchrunQueue cpu is new or has changed, and is being checked"
    assert cluster.look(QUEUE) is not None  # it looks again
    ready = cluster.condition("Ready", names.QUEUE_KIND, "cpu")
    assert (ready["status"], ready["reason"]) == ("False", "PodTemplateInvalid")
    assert ACCOUNT in ready["message"]
    cluster.look()
    assert ACCOUNT in cluster.status()["message"]
    assert cluster.api.there("JobSet") is None
    cluster.api.refuse = lambda item: None
    cluster.now += timedelta(seconds=5)
    cluster.look(QUEUE)
    cluster.look()
    assert cluster.api.there("JobSet") is not None


def test_answers_that_differ_each_time_are_no_loop() -> None:
    """Contract: a refusal with another port or count in each answer is asked for every 5 s at most, although
    each new status wakes the next look.
    """
    for key, status in ((None, queue()["status"]), (QUEUE, {})):
        cluster, asked = Cluster(status=status), []

        def refuse(item: Object, asked: list[str] = asked) -> None:
            if item["kind"] == "Pod":
                asked.append(item["kind"])
                raise answer(500, "InternalError", f"read tcp 10.0.0.1:{len(asked)}: connection reset")

        cluster.api.refuse = refuse
        for _ in range(10):
            cluster.look(key)
        assert len(asked) == 1
        cluster.now += timedelta(seconds=5)
        cluster.look(key)
        assert len(asked) == 2


def test_a_used_up_quota_does_not_close_a_queue() -> None:
    """Contract: pods that end make room in a quota, so it is the job that waits for it."""
    cluster = Cluster(status={})
    cluster.api.refuse = refusing("Pod", answer(403, "Forbidden", QUOTA))
    cluster.look(QUEUE)
    assert cluster.condition("PodTemplateValid", names.QUEUE_KIND, "cpu")["status"] == "True"
    cluster.look()
    assert QUOTA in cluster.status()["message"]


def test_storage_class_of_queue_has_to_be_there() -> None:
    """Contract: the queue names the class that is missing, and is ready once it is there."""
    storage = {"checkpoints": {"enabled": True, "size": "1Gi", "storageClass": "fast"}}
    cluster = Cluster(spec=queue(storage=storage)["spec"], status={})
    cluster.look(QUEUE)
    ready = cluster.condition("Ready", names.QUEUE_KIND, "cpu")
    assert ready["message"].startswith(
        "StorageClass fast of spec.storage.checkpoints.storageClass does not exist"
    )
    cluster.api.put({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"}})
    cluster.now += timedelta(seconds=10)
    cluster.look(QUEUE)
    assert cluster.condition("PodTemplateValid", names.QUEUE_KIND, "cpu")["status"] == "True"


def test_a_webhook_without_dry_runs_refuses_nothing() -> None:
    """Contract: a webhook that cannot be asked in a dry run says nothing about a queue or a job."""
    cluster = Cluster(status={})
    text = 'admission webhook "old.example.com" does not support dry run'
    cluster.api.refuse = refusing("Pod", answer(400, "BadRequest", text))
    cluster.look(QUEUE)
    cluster.look()
    assert cluster.api.there("JobSet") is not None


def test_pods_of_a_burst_are_checked_once() -> None:
    """Contract: of jobs that differ in their names alone one is checked in five seconds. What was refused is
    checked again, and so is a pod that differs otherwise, be it by a word that is also the job's name.
    """
    cluster, seconds = Cluster(spec=queue(overrides={"images": ["*"]})["spec"]), [0.0]
    cluster.controller.reconciler.cluster.monotonic = lambda: seconds[0]
    cluster.look(QUEUE)
    before = cluster.api.checks

    def checks(name: str, **spec: Any) -> int:
        one = job(**spec)
        cluster.api.put({**one, "metadata": {**one["metadata"], "name": name, "uid": f"uid-{name}"}})
        cluster.look(Key("job", "team", name))
        return cluster.api.checks - before

    assert [checks(name) for name in ("a", "b", "c")] == [1, 1, 1]
    assert checks("a2", image="a2:1") == 2
    assert checks("b2", image="b2:1") == 3
    seconds[0] = 5.0
    assert checks("d") == 4


def test_jobs_of_burst_wait_for_check_of_first() -> None:
    """Contract: equal pods that are checked at the same time cost one dry run, not one for each thread."""
    cluster = Cluster()
    checking, go_on = threading.Event(), threading.Event()

    def refuse(_: Object) -> None:
        checking.set()
        assert go_on.wait(LIMIT)

    cluster.api.refuse = refuse
    alike = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any", "namespace": "team"}}
    threads = [
        threading.Thread(
            target=cluster.controller.reconciler.cluster.do, args=(job(), Check(alike, alike)), daemon=True
        )
        for _ in range(4)
    ]
    threads[0].start()
    assert checking.wait(LIMIT)
    for each in threads[1:]:
        each.start()
    go_on.set()
    for each in threads:
        each.join(LIMIT)
    assert cluster.api.checks == 1
