"""Debian's Prometheus scrapes two controllers, and evaluates each query of the Grafana dashboard."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.core.kubernetes import Object
from harness.torchrun_controller.objects import dashboard
from harness.torchrun_controller.runtime.http import Health, Server
from harness.torchrun_controller.runtime.metrics import Metrics
from tests.prometheus_server import Prometheus, as_run

FILE = Path(__file__).parents[2] / "manifests/torchrun-monitoring/dashboard.json"


def job(namespace: str, phase: str) -> Object:
    return {"metadata": {"namespace": namespace}, "status": {"phase": phase}}


def count(metrics: Metrics) -> None:
    """Increment every counter of a leader."""
    with pytest.raises(KeyError), metrics.time_reconcile("job"):
        raise KeyError
    metrics.record_response(
        "PUT", "https://x/apis/torchrun.ai/v1alpha1/namespaces/a/torchrunjobs/b/status", 409
    )
    metrics.record_response("GET", "https://x/api/v1/pods?watch=true", 200)
    metrics.waits.labels("a", "gpu").observe(7)
    metrics.events_failed.inc()


@contextmanager
def counting(metrics: Metrics) -> Iterator[None]:
    """Increment the counters repeatedly, because a rate needs two scrapes with different values, even on a
    slow machine."""
    over = threading.Event()

    def keep() -> None:
        while not over.wait(0.1):
            count(metrics)

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_the_file_is_generated() -> None:
    """Contract: the dashboard file is the one that the code generates, and uses only existing metrics."""
    assert FILE.read_text() == dashboard.text()
    metrics = Metrics()
    count(metrics)
    metrics.jobs = lambda: [job("a", "Running")]
    there = {sample.name for family in metrics.registry.collect() for sample in family.samples}
    for panel in json.loads(FILE.read_text())["panels"]:
        for target in panel["targets"]:
            used = set(re.findall(r"\b(?:torchrun|process)_\w+", target["expr"]))
            assert used <= there, panel["title"]
            assert used


@pytest.mark.nightly
@pytest.mark.controller
def test_prometheus_scrapes_and_each_query_of_dashboard_has_data(tmp_path: Path) -> None:
    """Contract: with a leader and a standby, the jobs are counted once, and each event is in its panel."""
    leader, standby = Metrics(), Metrics()
    leader.leads = True
    leader.jobs = lambda: [job("a", "Running"), job("a", "Running"), job("b", "Failed")]
    count(leader)
    servers = [Server(0, Health(), metrics.registry) for metrics in (leader, standby)]
    for server in servers:
        server.start()
    targets = [f"127.0.0.1:{server.port}" for server in servers]
    scraped = {"job_name": "torchrun-controller", "static_configs": [{"targets": targets}]}
    with counting(leader), Prometheus(tmp_path, [scraped]) as prometheus:
        prometheus.until("sum(up)", least=2)
        found = {
            panel.title: prometheus.until(as_run(panel.query), least=1e-6 if "[" in panel.query else None)
            for panel in dashboard.PANELS
        }
        assert found["Leaders"] == [({}, 1)]
        phases = {labels["phase"]: value for labels, value in found["Jobs by phase"]}
        assert phases == {"Running": 2, "Failed": 1}
        assert prometheus.query(as_run(dashboard.PANELS[0].query, "b")) == [({"phase": "Failed"}, 1)]
        [(labels, value)] = found["Wait for admission, 95th percentile"]
        assert (labels, 5 < value <= 10) == ({"namespace": "a", "queue": "gpu"}, True)
        [(labels, _)] = found["Refused requests to the API server"]
        assert labels == {"verb": "update", "resource": "torchrunjobs/status", "code": "409"}
        assert {labels["instance"] for labels, _ in found["Memory"]} == set(targets)
    for server in servers:
        server.shutdown()
        server.server_close()
