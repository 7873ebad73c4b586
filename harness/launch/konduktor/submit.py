"""Launch through the konduktor CLI, and find the JobSet that it created.

konduktor runs with its own HOME and config, and without its image check (launch_process.py). It also gets a
schema file, so that it does not download one. Even if the JobSet CRD is missing, konduktor prints a job name
and exits with 0. Therefore, the harness finds the JobSet by the launch's label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import yaml

from harness.core.causes import CauseId
from harness.core.errors import HarnessError, ToolError
from harness.core.kubernetes import Kube
from harness.launch.konduktor.config import Submission, konduktor_config
from harness.launch.konduktor.kubeconfig import for_launch
from harness.launch.konduktor.launch_process import Konduktor
from harness.launch.labels import NONCE_LABEL
from harness.launch.workloads.base import Handle

JOBSET_API = "jobset.x-k8s.io/v1alpha2"
CONTAINER = "konduktor-container"
_JOB_ID = re.compile(r"^Job ID: (\S+)", re.MULTILINE)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_REFUSED = re.compile(r"ApiException: \((4\d\d)\).*?^HTTP response body: (.*?)$", re.DOTALL | re.MULTILINE)
"""Matches an ApiException with a 4xx status in konduktor's output."""


class KonduktorLauncher:
    """Submits a job through konduktor, and can cancel it."""

    name = "konduktor"
    kind = "JobSet"

    def __init__(self, kube: Kube, konduktor: Konduktor, program: Path) -> None:
        self.kube = kube
        self.konduktor = konduktor
        self.program = program

    def submit(self, submission: Submission, record: Callable[[str, str], None]) -> Handle:
        """Run `konduktor launch` and return its JobSet.

        The function `record(file, text)` stores konduktor's input and output in the bundle. Raises
        HarnessError with the cause launch.rejected, launch.timed_out, launch.konduktor_failed or
        launch.jobset_not_found.
        """
        self._prepare(submission, record)
        try:
            result = self.konduktor.launch(self.program, self.kube.proxy)
        except ToolError as error:
            self._record_output(record, error.output)
            cause, message = reason(error.returncode, error.output)
            raise HarnessError(
                message, hint="read the whole output in the bundle's launch/konduktor.log", cause=cause
            ) from None
        self._record_output(record, result.stdout + result.stderr)
        match = _JOB_ID.search(result.stdout)
        jobs = self.kube.objects(
            JOBSET_API, "JobSet", submission.namespace, f"{NONCE_LABEL}={submission.nonce}"
        )
        if len(jobs) != 1 or match is None or jobs[0]["metadata"]["name"] != match.group(1):
            names = [item["metadata"]["name"] for item in jobs]
            raise HarnessError(
                f"konduktor launch ended with exit code 0, but expected one JobSet with the printed job id "
                f"({match and match.group(1)}), found {names}",
                hint="check that the JobSet CRD is installed, and read konduktor's output in "
                "launch/konduktor.log",
                cause="launch.jobset_not_found",
            )
        metadata = jobs[0]["metadata"]
        return Handle(metadata["name"], metadata["uid"])

    def cancel(self, submission: Submission) -> None:
        """Delete the JobSets of this launch, if there are any."""
        self.kube.resource(JOBSET_API, "JobSet").delete(
            namespace=submission.namespace, label_selector=f"{NONCE_LABEL}={submission.nonce}"
        )

    def _prepare(self, submission: Submission, record: Callable[[str, str], None]) -> None:
        """Write the job file, config and kubeconfig for konduktor."""
        konduktor = self.konduktor
        config = yaml.safe_dump(konduktor_config(submission))
        konduktor.config.write_text(config)
        record("launch/konduktor-config.yaml", config)
        for path, text in (
            (konduktor.kubeconfig, yaml.safe_dump(for_launch(self.kube, submission.namespace))),
            (konduktor.job, submission.job_yaml),
        ):
            path.touch(mode=0o600)
            path.write_text(text)
        record("launch/job.yaml", submission.job_yaml)

    def _record_output(self, record: Callable[[str, str], None], output: str) -> None:
        record("launch/konduktor.log", output)
        for log in sorted((self.konduktor.home / ".konduktor" / "logs").glob("*.log")):
            record(f"launch/konduktor-debug-{log.name}", log.read_text(errors="replace"))


def reason(returncode: int, output: str) -> tuple[CauseId, str]:
    """Return the cause and the error message for a failed `konduktor launch`, based on its output."""
    lines = [line.strip() for line in _ANSI.sub("", output).splitlines() if line.strip()]
    last = lines[-1] if lines else "it printed nothing"
    if last.startswith("still running after "):
        before = lines[-2] if lines[1:] else "nothing"
        return "launch.timed_out", f"konduktor launch was {last}; its last output was: {before}"
    refusal = _REFUSED.search(output)
    if refusal:
        try:
            message = str(json.loads(refusal[2])["message"])
        except (ValueError, KeyError, TypeError):
            message = refusal[2].strip()
        return "launch.rejected", f"The API server rejected the job with HTTP {refusal[1]}: {message}"
    return "launch.konduktor_failed", f"konduktor launch ended with exit code {returncode}: {last}"
