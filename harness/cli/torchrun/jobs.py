"""Create, read, change and delete TorchrunJobs on a cluster, and compute their exit codes."""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import yaml
from kubernetes.client.exceptions import ApiException
from pydantic import ValidationError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from harness.core import kubeconfig as kubeconfigs
from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import NOT_SERVED, Kube, Object, reached
from harness.core.kubernetes_retries import RETRY_SECONDS
from harness.core.terminal_text import printable
from harness.settings import home, load
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import FINISHED, JobSpec, QueueSpec
from harness.torchrun_controller.decide.reconcile_state import first_error
from harness.torchrun_controller.objects.pod_template import resolve
from harness.torchrun_controller.plan.gpu_layout import Refused

PROGRAM = "kubectl torchrun" if Path(sys.argv[0]).stem == names.PLUGIN else "harness torchrun"
"""The command with which this process was started. Messages suggest commands that begin with it."""
LATER = (429, 503, 504)
_Result = TypeVar("_Result")
FAILED = 1
"""The exit code for a failed job whose trainers' exit codes are not known, because its pods no longer
exist."""


def cluster(kubeconfig: Path | None, context: str | None) -> Kube:
    """Return a client for the cluster that kubectl would use, or for the cluster in the given kubeconfig."""
    first_path = (os.environ.get("KUBECONFIG") or "").split(os.pathsep)[0]
    settings = load(kubeconfig=kubeconfig)
    path = settings.kubeconfig or (Path(first_path) if first_path else home() / ".kube" / "config")
    # Each cluster has its own discovery cache, because clusters serve different API resources.
    digest = sha256(f"{path.resolve()} {context}".encode()).hexdigest()
    return Kube(path, context or settings.context, settings.state_dir / "torchrun" / f"{digest}.json")


def namespace_of(kube: Kube, namespace: str | None) -> str:
    """Return `namespace`, or the namespace of the kubeconfig's context if `namespace` is None."""
    return namespace or kubeconfigs.namespace_of(kube.kubeconfig, kube.context)


@dataclass(frozen=True)
class Jobs:
    """Creates, reads, changes and deletes the TorchrunJobs in a namespace."""

    kube: Kube
    namespace: str

    def get(self, name: str) -> Object:
        """Return the TorchrunJob with this name. Raises UsageError if it does not exist."""
        job = self.find(name)
        if job is None:
            existing = ", ".join(each["metadata"]["name"] for each in self.all()[:5]) or "none"
            raise UsageError(
                f"there is no TorchrunJob {name} in namespace {self.namespace}; existing jobs: {existing}",
                hint=f"run `{PROGRAM} list`, or use --namespace NAME",
            )
        return job

    def find(self, name: str) -> Object | None:
        return call_api(lambda: self.kube.get(names.API, names.JOB_KIND, name, self.namespace))

    def all(self) -> list[Object]:
        try:
            jobs = call_api(lambda: self.kube.objects(names.API, names.JOB_KIND, self.namespace))
        except NOT_SERVED:
            raise UsageError(
                "the TorchrunJob CRD is not installed in the cluster",
                hint="install the controller as described in docs/torchrun-controller.md",
            ) from None
        return sorted(jobs, key=lambda job: str(job["metadata"]["creationTimestamp"]))

    @staticmethod
    def document(name: str, spec: Object, digest: str | None, namespace: str | None) -> Object:
        """Return the manifest of a TorchrunJob.

        If `digest` is not None, the job's pods wait for the code with this digest.
        """
        metadata: Object = {"name": name, **({"namespace": namespace} if namespace else {})}
        if digest:
            # An empty value means that the code is not stored yet. The controller creates the job's pods
            # once the code is stored.
            metadata["annotations"] = {names.WORKSPACE_ANNOTATION: digest, names.PARTS_ANNOTATION: ""}
        return {"apiVersion": names.API, "kind": names.JOB_KIND, "metadata": metadata, "spec": spec}

    def create(self, document: Object, *, dry_run: bool = False) -> Object:
        """Create a TorchrunJob.

        With `dry_run`, the API server only validates it. Raises UsageError if the job is rejected or already
        exists.
        """
        name = document["metadata"]["name"]
        self.all()
        if self.find(name) is not None:
            raise UsageError(
                f"TorchrunJob {name} already exists in namespace {self.namespace}",
                hint=f"use another --name, or run `{PROGRAM} delete {name}`",
            )
        return self._written(lambda: self.kube.apply(document, dry_run=dry_run))

    def refusal(self, document: Object) -> str:
        """Return why the controller would not start this job on the cluster now, or "" if it would."""
        metadata = document["metadata"]
        spec = JobSpec.model_validate(document["spec"])
        queue_object = call_api(
            lambda: self.kube.get(names.API, names.QUEUE_KIND, spec.queue_name, self.namespace)
        )
        if queue_object is None:
            return f"there is no TorchrunQueue {spec.queue_name} in namespace {self.namespace}"
        try:
            queue = QueueSpec.model_validate(queue_object["spec"])
            resolve(metadata["name"], spec, metadata.get("annotations") or {}, queue)
        except (Refused, ValidationError) as error:
            return str(error)
        return ""

    def change(self, name: str, **spec: Any) -> Object:
        """Change fields in a job's spec."""
        self.get(name)
        return self._patch(name, {"spec": spec})

    def annotate(self, name: str, annotations: dict[str, str]) -> Object:
        """Change a job's annotations."""
        return self._patch(name, {"metadata": {"annotations": annotations}})

    def _patch(self, name: str, change: Object) -> Object:
        resource = self.kube.resource(names.API, names.JOB_KIND)
        return self._written(
            lambda: resource.patch(
                name=name,
                namespace=self.namespace,
                body=change,
                content_type="application/merge-patch+json",
            ).to_dict()
        )

    def delete(self, name: str) -> None:
        self.get(name)
        call_api(lambda: self.kube.delete(names.API, names.JOB_KIND, name, self.namespace))

    def pods(self, name: str) -> list[Object]:
        """Return the job's pods, ordered by node rank."""
        label = f"{names.JOB_LABEL}={name}"
        pods = call_api(lambda: self.kube.objects("v1", "Pod", self.namespace, label))
        return sorted(pods, key=lambda pod: (rank(pod), str(pod["metadata"]["creationTimestamp"])))

    def exit_code(self, job: Object) -> int:
        """Return 0 if the job succeeded, and otherwise the exit code of the trainer that failed first."""
        if phase(job) == "Succeeded":
            return 0
        end_states = [
            state
            for pod in self.pods(job["metadata"]["name"])
            for each in (pod.get("status") or {}).get("containerStatuses") or []
            if each["name"] == names.TRAINER and (state := each["state"].get("terminated"))
        ]
        failed_states = [state for state in end_states if state["exitCode"]]
        first_failed = min(failed_states, key=lambda state: str(state.get("finishedAt")), default=None)
        return int(first_failed["exitCode"]) if first_failed else FAILED

    def _written(self, write: Any) -> Object:
        """Send a write request and return its result.

        Raises UsageError if the API server rejects the object.
        """
        try:
            return dict(_repeated(write))
        except ApiException as error:
            if error.status in (400, 403, 404, 422):
                raise UsageError(f"the cluster rejected the job: {_message(error)}") from None
            raise _rejected(error) from None


def call_api(request: Callable[[], _Result]) -> _Result:
    """Send a request and return the API server's response.

    Raises HarnessError if the API server does not respond, or responds with an error.
    """
    try:
        with reached():
            return _repeated(request)
    except NOT_SERVED:
        raise
    except ApiException as error:
        raise _rejected(error) from None


def _rejected(error: ApiException) -> HarnessError:
    return HarnessError(f"the API server responded with HTTP {error.status}: {_message(error)}")


def _repeated(request: Callable[[], _Result]) -> _Result:
    """Send a request, and repeat it while the API server is not ready.

    For example, the API server responds with 429 just after a CRD was created.
    """
    condition = retry_if_exception(lambda error: isinstance(error, ApiException) and error.status in LATER)
    retrying = Retrying(
        retry=condition, stop=stop_after_delay(RETRY_SECONDS), wait=wait_fixed(1), reraise=True
    )
    return retrying(request)


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.body or error)


def rank(pod: Object) -> int:
    """Return a pod's node rank."""
    annotations = pod["metadata"].get("annotations") or {}
    return int(annotations.get("batch.kubernetes.io/job-completion-index", 0))


def phase(job: Object) -> str:
    return str((job.get("status") or {}).get("phase") or "Pending")


def finished(job: Object) -> bool:
    return phase(job) in FINISHED


def reason(job: Object) -> str:
    """Return the message that the controller wrote to the job's status, or ""."""
    return str((job.get("status") or {}).get("message") or "")


def unobserved(job: Object) -> str:
    """Return a message if the controller has not observed the job's current spec yet, and otherwise "".

    A job without a status is not reported here.
    """
    generation = job["metadata"].get("generation")
    observed = (job.get("status") or {}).get("observedGeneration")
    if observed is None or generation is None or observed >= generation:
        return ""
    return (
        f"the controller has not observed the latest change to the spec (generation {generation}, observed "
        f"{observed}): check that the controller is running"
    )


def name_of(folder: Path) -> str:
    """Return a job name that consists of the name of `folder` and a random suffix."""
    stem = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:30]
    return f"{stem if stem and stem[0].isalpha() else 'job'}-{secrets.token_hex(3)}"


def environment(pairs: Sequence[str]) -> list[dict[str, str]]:
    """Convert NAME=VALUE pairs to a container's environment variables.

    Raises UsageError if a pair is invalid.
    """
    for pair in pairs:
        if not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", pair):
            raise UsageError(f"expected NAME=VALUE, not {pair!r}", hint="--env NAME=VALUE")
    return [dict(zip(("name", "value"), pair.split("=", 1), strict=True)) for pair in pairs]


def refused_by_models(spec: Object) -> str:
    """Return the first error in a job's spec, or "" if the spec is valid.

    This check does not need a cluster.
    """
    try:
        JobSpec.model_validate(spec)
    except ValidationError as error:
        return first_error(error)
    return ""


class _Quoting(yaml.SafeDumper):
    """A YAML dumper that quotes strings such as 1e3 and y, which kubectl reads as numbers or booleans."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if re.match(r"[A-Za-z/][^\n]", text) or "\n" in text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Quoting.add_representer(str, _quoted)


def yaml_of(document: Object) -> str:
    """Return an object as YAML that all YAML parsers read in the same way."""
    return yaml.dump(document, Dumper=_Quoting, sort_keys=False, allow_unicode=True)


def table(jobs: Sequence[Object]) -> str:
    """Return a table with one line for each job."""
    rows = [("NAME", "QUEUE", "PHASE", "WORKERS", "RESTARTS", "MESSAGE")]
    for job in jobs:
        status = job.get("status") or {}
        queue = job["spec"].get("jobQueue") or job["spec"].get("queue") or ""
        workers, restarts = status.get("workersStatus") or "", str(status.get("restarts") or 0)
        message = printable(" ".join(reason(job).split()))[:80]
        rows.append((job["metadata"]["name"], queue, phase(job), workers, restarts, message))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )
