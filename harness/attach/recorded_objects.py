"""Record the objects of an attached job, and the related objects in the cluster, in the bundle.

The namespace may contain several jobs. Objects of other jobs are not recorded, because their Events and
Workloads would be evidence about the wrong job.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from typing import Any

from harness.attach.rank_pods import AttachedJob
from harness.core.clock import now
from harness.core.errors import HarnessError
from harness.core.kubernetes import Object
from harness.evidence.io.writer import BundleWriter
from harness.evidence.kubernetes.objects import claim_names, group_name, mapping
from harness.evidence.schema.bundle import Observation

KEPT_SECONDS = 60.0
"""Time, in seconds, for which an Event about an unknown object is kept. The object may belong to the job."""


class Recording:
    """Writes the objects of one job. Thread-safe."""

    def __init__(self, job: AttachedJob, writer: BundleWriter) -> None:
        self.job = job
        self.pods: dict[str, Object] = {}
        """Maps the name of each of the job's pods to the pod's last state."""
        self._writer = writer
        self._lock = threading.Lock()
        self._uids = {job.uid}
        self._names = {job.name}
        self._jobs = {job.name}
        """Names of the objects that create the job's pods."""
        self._events: list[tuple[float, Observation]] = []
        """Events about objects that may turn out to belong to the job, with the monotonic time of receipt."""

    def add(self, kind: str, item: Object) -> None:
        """Record the current state of an object if it belongs to the job or is related to it."""
        self.observe(kind, Observation(received_at=now(), type="ADDED", object=without_fields(item)))

    def observe(self, kind: str, observation: Observation) -> None:
        """Record a watch event. An Event is recorded only if its object belongs to the job."""
        item = observation.object
        if kind == "event":
            self._event(observation)
        elif self._owned(kind, item):
            with self._lock:
                self._uids.add(str(mapping(item, "metadata").get("uid")))
                self._names.add(str(mapping(item, "metadata").get("name")))
                if kind == "job":
                    self._jobs.add(str(mapping(item, "metadata").get("name")))
                if kind == "pod":
                    self.pods[str(mapping(item, "metadata").get("name"))] = item
            self._write(kind, observation)

    def _owned(self, kind: str, item: Object) -> bool:
        if kind == self.job.resource.kind.name and kind != "pod":
            return bool(mapping(item, "metadata").get("name") == self.job.name)
        if kind == "pod":  # The labels of a known pod may have been removed.
            return mapping(item, "metadata").get("uid") in self._uids or self.job.owns_pod(item)
        if kind == "job":
            return self.job.owns_job(item)
        return self.job.owns_workload(item) if kind == "workload" else True

    def _event(self, observation: Observation, since: float | None = None) -> None:
        """Record an Event about the job. Keep any other Event, because its object may turn out to belong to
        the job.

        `since` is the monotonic time at which the Event was received. None means now.
        """
        since = time.monotonic() if since is None else since
        involved = mapping(observation.object, "involvedObject")
        with self._lock:
            own = involved.get("uid") in self._uids or (
                not involved.get("uid") and involved.get("name") in self._names
            )
            own = own or self._named_like_a_pod(involved) or self._used_by_a_pod(involved)
            if not own and time.monotonic() - since < KEPT_SECONDS:
                self._events.append((since, observation))
        if own:
            self._write("event", observation)

    def _named_like_a_pod(self, involved: dict[str, Any]) -> bool:
        """Return whether an Event's object has the name of a pod of one of the job's Jobs. The pod may be
        deleted."""
        if involved.get("kind") != "Pod":
            return False
        jobs = "|".join(re.escape(name) for name in sorted(self._jobs))
        return re.fullmatch(rf"({jobs})-(\d+-)?[a-z0-9]{{5}}", str(involved.get("name"))) is not None

    def _used_by_a_pod(self, involved: dict[str, Any]) -> bool:
        """Return whether an Event is about a volume claim or the PodGroup of one of the job's pods."""
        kind, name, pods = involved.get("kind"), involved.get("name"), self.pods.values()
        if kind == "PersistentVolumeClaim":
            return any(name in claim_names(pod) for pod in pods)
        return kind == "PodGroup" and any(name == group_name(pod) for pod in pods)

    def flush(self) -> None:
        """Record the kept Events whose objects are now known to belong to the job."""
        with self._lock:
            events, self._events = self._events, []
        for since, each in events:
            self._event(each, since)

    def _write(self, kind: str, observation: Observation) -> None:
        with suppress(HarnessError):  # The writer stores its first error, which the session checks.
            self._writer.observe(kind, observation)


def without_fields(item: Object) -> Object:
    """Return the object without its managed fields, except the names and times of the field managers."""
    metadata = mapping(item, "metadata")
    entries = [
        {name: value for name, value in entry.items() if not name.startswith("fields")}
        for entry in metadata.get("managedFields") or []
    ]
    return {**item, "metadata": {**metadata, "managedFields": entries}} if entries else item
