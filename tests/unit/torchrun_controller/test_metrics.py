"""What Prometheus gets, by a real scrape."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from torchrun_objects import job

from harness.core.errors import UsageError
from harness.torchrun_controller.__main__ import main, serve
from harness.torchrun_controller.api.condition_type import Condition, stamp
from harness.torchrun_controller.api.models import JobStatus
from harness.torchrun_controller.runtime import http as serving
from harness.torchrun_controller.runtime.http import Health, Server
from harness.torchrun_controller.runtime.metrics import Metrics, queue_wait, request_of

CREATED = datetime(2026, 11, 23, 10, 0, tzinfo=UTC)
HOST = "https://10.96.0.1:443"


class Served:
    """A server on a free port, and what it answers."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.health, self.metrics = Health(lambda: self.seconds), Metrics()
        self.server = Server(0, self.health, self.metrics.registry)
        self.server.start()

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        connection.request("GET", path)
        answer = connection.getresponse()
        found = answer.status, answer.read().decode()
        connection.close()
        return found

    def samples(self) -> dict[str, float]:
        """Return name{labels} → value."""
        return {
            f"{sample.name}{sorted(sample.labels.values())}": sample.value
            for family in text_string_to_metric_families(self.get("/metrics")[1])
            for sample in family.samples
        }


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.mark.parametrize(
    ("method", "path", "verb", "resource"),
    [
        ("GET", "/apis/torchrun.ai/v1alpha1/torchrunjobs", "list", "torchrunjobs"),
        ("GET", "/apis/torchrun.ai/v1alpha1/torchrunjobs?watch=true", "watch", "torchrunjobs"),
        ("GET", "/apis/torchrun.ai/v1alpha1/namespaces/a/torchrunjobs/b", "get", "torchrunjobs"),
        (
            "PUT",
            "/apis/torchrun.ai/v1alpha1/namespaces/a/torchrunjobs/b/status",
            "update",
            "torchrunjobs/status",
        ),
        ("GET", "/api/v1/namespaces/a/pods?labelSelector=x", "list", "pods"),
        ("POST", "/api/v1/namespaces/a/events", "create", "events"),
        ("DELETE", "/apis/jobset.x-k8s.io/v1alpha2/namespaces/a/jobsets/b", "delete", "jobsets"),
        ("PATCH", "/apis/torchrun.ai/v1alpha1/namespaces/a/torchrunqueues/b", "patch", "torchrunqueues"),
        ("GET", "/api/v1/namespaces/a", "get", "namespaces"),
        ("GET", "/apis/scheduling.k8s.io/v1/priorityclasses", "list", "priorityclasses"),
        ("GET", "/apis", "get", ""),
        ("GET", "/version", "get", ""),
    ],
)
def test_requests_are_named_as_roles_name_them(method: str, path: str, verb: str, resource: str) -> None:
    """Contract: verb and resource are those of RBAC: no names and no queries are labels."""
    assert request_of(method, HOST + path) == (verb, resource)


def in_phase(namespace: str, phase: str | None) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace}, "status": {"phase": phase} if phase else None}


def test_a_scrape_has_every_metric(served: Served) -> None:
    """Contract: looks, errors, requests, jobs, waits, leadership and build are there, by their names."""
    metrics = served.metrics
    with metrics.time_reconcile("job"):
        pass
    with pytest.raises(RuntimeError), metrics.time_reconcile("job"):
        raise RuntimeError("the API server does not answer")
    metrics.record_response("GET", f"{HOST}/api/v1/namespaces/a/pods", 200)
    known = [in_phase("a", "Running"), in_phase("a", "Running"), in_phase("b", "Queued"), in_phase("c", None)]
    metrics.jobs = lambda: known
    metrics.leads = True
    metrics.admitted(job(), JobStatus(), JobStatus(queue="cpu", start_time="2026-11-23T10:00:03Z"))
    found = served.samples()
    assert found["torchrun_reconcile_seconds_count['job']"] == 2
    assert found["torchrun_reconcile_errors_total['job']"] == 1
    assert found["torchrun_api_requests_total['200', 'list', 'pods']"] == 1
    assert found["torchrun_jobs['Running', 'a']"] == 2
    assert found["torchrun_jobs['Queued', 'b']"] == 1
    assert found["torchrun_jobs['Unknown', 'c']"] == 1
    assert found["torchrun_leader[]"] == 1
    assert found["torchrun_queue_wait_seconds_sum['cpu', 'team']"] == 3
    assert any(name.startswith("torchrun_build_info") for name in found)
    del known[2]
    metrics.leads = False
    found = served.samples()
    assert "torchrun_jobs['Queued', 'b']" not in found
    assert found["torchrun_leader[]"] == 0


@pytest.mark.parametrize(
    ("since", "seconds"),
    [
        ([], 600),
        ([("Suspended", "False", 100)], 500),
        ([("Suspended", "False", 100), ("Admitted", "False", 400)], 200),
        ([("Admitted", "True", 400)], 600),
    ],
)
def test_waiting_counts_from_the_last_wish_to_run(since: list[tuple[str, Any, int]], seconds: int) -> None:
    """Contract: created, resumed, queued or preempted, whichever was last, until admitted."""
    conditions = [
        Condition(type=t, status=s, last_transition_time=stamp(CREATED + timedelta(seconds=at)))
        for t, s, at in since
    ]
    before = JobStatus(conditions=conditions)
    after = JobStatus(start_time=stamp(CREATED + timedelta(seconds=600)))
    assert queue_wait(job(), before, after) == seconds
    assert queue_wait(job(), after, after) is None  # it runs already
    assert queue_wait(job(), before, before) is None


def test_probes_report_liveness_and_readiness(served: Served) -> None:
    """Contract: alive while every part that began moves; ready when it is of use."""
    assert served.get("/healthz") == (200, "ok\n")
    assert served.get("/readyz")[0] == 503
    served.health.ready.set()
    assert served.get("/readyz") == (200, "ok\n")
    served.health.moves("lease")
    served.health.moves("event loop")
    served.seconds = serving.LATE_SECONDS + 1
    served.health.moves("lease")
    assert served.get("/healthz") == (503, "stuck: event loop\n")
    assert served.get("/other")[0] == 404


def test_port_that_is_taken() -> None:
    """Contract: the error names the port and the option."""
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"{port} cannot be bound"):
            serve(port, Health(), Metrics())


def test_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: outside of a pod, without a kubeconfig, it says what it expects; the exit code is 2."""
    assert main([]) == 2
    assert "--kubeconfig FILE" in capsys.readouterr().err
