"""Prometheus metrics about reconciles, API requests, jobs, waiting times and leadership."""

from __future__ import annotations

import os
import platform
import re
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.condition_type import found, parsed
from harness.torchrun_controller.api.models import JobStatus

IMAGE = "TORCHRUN_CONTROLLER_IMAGE"
"""The environment variable that contains the controller's image and tag."""
RECONCILE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
WAIT_BUCKETS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400)
_PATH = re.compile(
    r"^/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+(?=/[^/]))?/(?P<kind>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<part>[^/]+))?)?$"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Metrics:
    """The Prometheus metrics of one controller, in their own registry."""

    def __init__(self) -> None:
        own = self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "torchrun_reconcile_seconds",
            "Duration of a reconcile",
            ["kind"],
            buckets=RECONCILE_BUCKETS,
            registry=own,
        )
        self.errors = Counter("torchrun_reconcile_errors", "Failed reconciles", ["kind"], registry=own)
        self.requests = Counter(
            "torchrun_api_requests",
            "Responses from the API server",
            ["verb", "resource", "code"],
            registry=own,
        )
        self.waits = Histogram(
            "torchrun_queue_wait_seconds",
            "Seconds from a job's creation, resumption, queueing or preemption to Kueue's admission",
            ["namespace", "queue"],
            buckets=WAIT_BUCKETS,
            registry=own,
        )
        self.leads = False
        Gauge("torchrun_leader", "1 while this process leads", registry=own).set_function(lambda: self.leads)
        self.events_failed = Counter("torchrun_events_failed", "Events that were not posted", registry=own)
        Info("torchrun_build", "Versions of the running controller", registry=own).info(
            {
                "image": os.environ.get(IMAGE, ""),
                "api": names.API,
                "kubernetes": version("kubernetes"),
                "python": platform.python_version(),
            }
        )
        self.jobs: Callable[[], Iterable[Object]] = tuple
        """A function that returns all jobs in the watch cache."""
        self.registry.register(_Jobs(self))
        ProcessCollector(registry=self.registry)

    @contextmanager
    def time_reconcile(self, kind: str) -> Iterator[None]:
        """Return a context manager that measures the duration of a reconcile, and counts the reconcile if it
        fails."""
        start = time.perf_counter()
        try:
            yield
        except Exception:
            self.errors.labels(kind).inc()
            raise
        finally:
            self.reconcile_seconds.labels(kind).observe(time.perf_counter() - start)

    def record_response(self, method: str, url: str, code: int) -> None:
        """Count a response from the API server."""
        self.requests.labels(*request_of(method, url), str(code)).inc()

    def admitted(self, job: Object, before: JobStatus, status: JobStatus) -> None:
        """Record the waiting time of a job that Kueue has just admitted."""
        wait_seconds = queue_wait(job, before, status)
        if wait_seconds is not None:
            self.waits.labels(job["metadata"]["namespace"], status.queue or "").observe(wait_seconds)


class _Jobs(Collector):
    """Counts the cached jobs by phase on each scrape.

    A phase without jobs has no sample. Counting watch events instead would miss this process's own writes,
    which are already in the cache.
    """

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily("torchrun_jobs", "Jobs by phase", labels=["namespace", "phase"])
        counts = Counts(
            (job["metadata"]["namespace"], str((job.get("status") or {}).get("phase") or "Unknown"))
            for job in self.metrics.jobs()
        )
        for labels, number in sorted(counts.items()):
            family.add_metric(list(labels), number)
        yield family


def request_of(method: str, url: str) -> tuple[str, str]:
    """Return the RBAC verb and the resource of a request.

    Returns ("get", "") if the URL does not belong to a resource.
    """
    parts = urlsplit(url)
    match = _PATH.match(parts.path)
    if match is None:
        return "get", ""
    kind, name, part = match["kind"], match["name"], match["part"]
    resource = f"{kind}/{part}" if part else kind
    if method == "GET":
        watched = "watch=" in parts.query and "watch=false" not in parts.query.lower()
        return "watch" if watched else "get" if name else "list", resource
    if method == "DELETE" and not name:
        return "deletecollection", resource
    return _VERBS.get(method, method.lower()), resource


def queue_wait(job: Object, before: JobStatus, status: JobStatus) -> float | None:
    """Return the waiting time of a job in seconds if it was just admitted. Otherwise, return None.

    The waiting time starts when the job is created, resumed, queued or preempted, whichever is latest.
    """
    if before.start_time is not None or status.start_time is None:
        return None
    since = [parsed(job["metadata"]["creationTimestamp"])]
    for kind in ("Suspended", "Admitted"):
        last = found(before.conditions, kind)
        if last is not None and last.status == "False" and last.last_transition_time:
            since.append(parsed(last.last_transition_time))
    start_time: datetime = parsed(status.start_time)
    return max(0.0, (start_time - max(since)).total_seconds())
