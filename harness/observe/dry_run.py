"""Send a request that a controller should have sent, as a server-side dry run.

A controller that cannot create an object keeps retrying without reporting an error. The API server's response
to the same request contains the reason, for example an unreachable webhook, a quota, a policy or a revoked
permission. The request impersonates the controller if the harness has permission to do so. Nothing is
created, because all requests have `dryRun=All`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.core.clock import now
from harness.core.kubernetes import NOT_SERVED, Kube, Object
from harness.core.kubernetes_retries import reason_of
from harness.evidence.kubernetes.objects import mapping
from harness.evidence.schema.bundle import DryRun

SUFFIX = "-dry-run"
"""The suffix that is added to object names in dry runs, so that they do not match existing objects."""
QUEUE = "kueue.x-k8s.io/queue-name"
VERSIONS = {"Workload": "kueue.x-k8s.io/v1beta2", "Job": "batch/v1", "Pod": "v1"}


@dataclass(frozen=True)
class Awaited:
    """The next action that a controller must take."""

    text: str
    """A clause that describes the state before the action, for example "the StatefulSet has no pods"."""
    of: Object
    """The object for which the controller must take the action."""
    creates: Literal["Workload", "Job", "Pod"] | None = None
    """The kind of object that the action creates. None means that the action updates `of` instead of creating
    an object."""
    user: str | None = None
    """The user name with which the controller authenticates to the API server."""


def dry_runs(kube: Kube, awaited: Awaited, launched: Object) -> Iterator[DryRun]:
    """Send the missing request, and a copy of the launched object under another name. Yield the responses.

    Nothing is yielded for a request without a response, because the heartbeat already reports an unresponsive
    API server.
    """
    request = _created(awaited) if awaited.creates else _marked(awaited.of)
    if request is not None:
        yield from _dry_run(kube, request, awaited.user, update=awaited.creates is None)
    another = _document(
        launched["apiVersion"], launched["kind"], launched, launched["metadata"], launched["spec"]
    )
    yield from _dry_run(kube, another, None, awaited=False)


def _dry_run(
    kube: Kube, document: Object, user: str | None, *, update: bool = False, awaited: bool = True
) -> Iterator[DryRun]:
    message: str | None = None
    try:
        kube.dry_run(document, update=update, user=user)
    except ApiException as error:
        message = reason_of(error)
        if user is not None and "cannot impersonate" in message:
            yield from _dry_run(kube, document, None, update=update, awaited=awaited)
            return
    except (HTTPError, OSError, NOT_SERVED):
        return
    name, kind = str(document["metadata"]["name"]), str(document["kind"])
    yield DryRun(at=now(), kind=kind, name=name, user=user, awaited=awaited, message=message)


def _created(awaited: Awaited) -> Object | None:
    """Return the object that the controller must create, or None if its template is not known."""
    item, kind = awaited.of, awaited.creates
    assert kind is not None
    if kind == "Workload":
        sets = _pod_sets(item)
        metadata: object = {}
        spec: Object | None = {"queueName": _labels(item).get(QUEUE), "podSets": sets} if sets else None
    else:
        template: Object = mapping(item, "spec", "template")
        if kind == "Job":
            template = next((job["template"] for job in _replicated(item)), {})
        metadata, spec = mapping(template, "metadata"), template.get("spec")
    return _document(VERSIONS[kind], kind, item, metadata, spec) if spec else None


def _document(version: str, kind: str, item: Object, metadata: object, spec: Object) -> Object:
    """Return an object in `item`'s namespace, named after `item` with SUFFIX appended."""
    copied = {key: dict(mapping(metadata, key)) for key in ("labels", "annotations")}
    name, namespace = f"{item['metadata']['name']}{SUFFIX}", item["metadata"]["namespace"]
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, **copied},
        "spec": copy.deepcopy(spec),
    }


def _pod_sets(item: Object) -> list[Object]:
    """Return the pod sets that Kueue would write to the Workload for a JobSet or a Job."""
    jobs = [
        (str(job.get("name")), int(job.get("replicas") or 1), mapping(job, "template", "spec"))
        for job in _replicated(item)
    ] or [("main", 1, mapping(item, "spec"))]
    return [
        {
            "name": name,
            "count": replicas * int(spec.get("parallelism") or spec.get("replicas") or 1),
            "template": {"spec": copy.deepcopy(mapping(spec, "template", "spec"))},
        }
        for name, replicas, spec in jobs
        if mapping(spec, "template", "spec")
    ]


def _replicated(item: Object) -> list[Object]:
    return list(mapping(item, "spec").get("replicatedJobs") or [])


def _labels(item: Object) -> Object:
    return dict(mapping(item, "metadata", "labels"))


def _marked(item: Object) -> Object:
    """Return an update that only sets an annotation, which triggers the same webhooks as any other update."""
    metadata = {key: item["metadata"][key] for key in ("name", "namespace")}
    annotation = {"pluto-e2e-harness/dry-run": "true"}
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "metadata": {**metadata, "annotations": annotation},
    }
