"""Submit the workload of a prepared launch, cancel it, and record the tracker's data about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kubernetes.client.exceptions import ApiException

from harness.core.clock import now
from harness.core.errors import HarnessError
from harness.core.kubernetes import NOT_SERVED, Kube
from harness.core.progress import Progress
from harness.evidence.io.writer import BundleWriter
from harness.evidence.schema.bundle import Expected
from harness.evidence.schema.tracker import TrackerSummary
from harness.evidence.schema.training import UPLOAD
from harness.launch.workloads.base import Handle, Surroundings, Workload
from harness.launch.workloads.training import Training
from harness.launch.workloads.training_audit import FILE, audit
from harness.provision.controllers import install as controllers
from harness.provision.controllers.readiness import explain, is_transient
from harness.tracker.client.audit import AuditReader, collect


@dataclass
class Launching:
    """A prepared launch, which can be submitted, cancelled, audited and cleaned up."""

    kube: Kube
    namespace: str
    expected: Expected
    writer: BundleWriter
    workload: Workload
    surroundings: Surroundings
    tracker: Literal["embedded", "hosted"]
    reader: Callable[[], AuditReader]

    def submit(self) -> Handle:
        """Submit the workload, and return the object that it created. If a webhook was briefly unavailable,
        retry once.

        Raises HarnessError. If the submission failed because of a controller or its API, the error's cause
        identifies the controller.
        """
        try:
            return self._submit()
        except HarnessError as error:
            if not is_transient(self.kube, error):
                raise
            self.writer.retry(f"{self.workload.launcher} launch", error.message)
        controllers.recheck_serving(self.kube)
        return self._submit()

    def _submit(self) -> Handle:
        try:
            return self.workload.submit(self.surroundings, self.writer.text)
        except (HarnessError, ApiException, NOT_SERVED) as error:
            problem = explain(self.kube, error)
            if problem is None:
                raise
            raise problem from None

    def cancel(self) -> None:
        """Delete a job that is still running, so that it frees its quota and its pods terminate."""
        self.workload.cancel(self.surroundings)

    def audit(self, progress: Progress) -> None:
        """Audit a training job's checkpoints, and record the result."""
        assert isinstance(self.workload, Training)
        self.writer.text(FILE, audit(self.workload, self.surroundings, progress))

    def upload(self, ranks_ended: bool) -> None:
        """Upload the run to the --upload URL if `ranks_ended` is true. Record the result or the error."""
        assert isinstance(self.workload, Training)
        document = json.dumps({"error": "nothing was uploaded, because the ranks had not ended"})
        if ranks_ended:
            try:
                document = self.workload.upload(self.surroundings)
            except (HarnessError, ApiException, NOT_SERVED) as error:
                document = json.dumps({"error": f"{error}"})
        self.writer.text(UPLOAD, document)

    def collect_tracker(self) -> None:
        """Record the launch's runs and points in the tracker, or an error if the tracker does not respond."""
        launch = self.writer.current.launch
        try:
            summary = collect(
                self.reader(),
                external_id=self.expected.run_id,
                project=self.expected.project,
                job_name=launch.tracked_as if launch else None,
                write=self.writer.tracker,
                write_points=self.writer.point_rows,
            )
        except Exception as error:
            self.no_tracker(f"{error}")
            return
        self.writer.tracker_summary(summary)

    def no_tracker(self, reason: str) -> None:
        """Record that the tracker's data could not be read, with the reason."""
        self.writer.tracker_summary(
            TrackerSummary(
                source=self.tracker, fetched_at=now(), runs=0, attachments=None, points=0, error=reason
            )
        )

    def clean(self) -> None:
        self.workload.clean(self.surroundings)
