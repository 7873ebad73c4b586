"""Reads what a cluster has of a job or a queue, and carries out what was decided.

Every write is safe to repeat: an object is made under a fixed name and deleted by its UID, and a status is
written only over the version that was read. So two controllers make nothing twice, and the one that read old
state loses.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError
from pydantic import BaseModel, ValidationError

from harness.core.kubernetes import Kube, Object
from harness.torchrun_controller import names
from harness.torchrun_controller.models import JobSpec, QueueSpec
from harness.torchrun_controller.names import PERMITTED
from harness.torchrun_controller.observed import Action, Create, Delete, Finalizers, Seen, SeenQueue
from harness.torchrun_controller.queues import resource_name
from harness.torchrun_controller.template import kai_queue

GONE, CONFLICT = 404, 409
CHANGES = (GONE, CONFLICT)


@dataclass(frozen=True)
class Cluster:
    kube: Kube
    kai: bool = False

    # -- read ------------------------------------------------------------------------------------------
    def job(self, namespace: str, name: str) -> Object | None:
        return self.kube.get(names.API, names.JOB_KIND, name, namespace)

    def queue(self, namespace: str, name: str) -> Object | None:
        return self.kube.get(names.API, names.QUEUE_KIND, name, namespace)

    def jobs(self, namespace: str | None = None) -> list[Object]:
        return self.kube.objects(names.API, names.JOB_KIND, namespace)

    def see(self, job: Object) -> Seen:
        """Read what belongs to a job. What cannot matter for the next decision is not asked for."""
        metadata = job["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        label = f"{names.JOB_LABEL}={name}"
        jobset = self.kube.get(names.JOBSET_API, "JobSet", name, namespace)
        claims = self.kube.objects("v1", "PersistentVolumeClaim", namespace, label)
        claims = [{"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim} for claim in claims]
        if jobset is None:
            return Seen(queue=self._queue_of(job), claims=claims, priority_classes=self._priority_classes())
        workload = None
        if jobset["spec"].get("suspend") and not self.kai:
            of = f"kueue.x-k8s.io/job-uid={jobset['metadata']['uid']}"
            workload = next(iter(self.kube.objects(names.KUEUE_API, "Workload", namespace, of)), None)
        pods = self.kube.objects("v1", "Pod", namespace, f"{names.JOBSET_LABEL}={name}")
        return Seen(queue=None, jobset=jobset, workload=workload, pods=pods, claims=claims)

    def _queue_of(self, job: Object) -> Object | None:
        try:
            name = JobSpec.model_validate(job["spec"]).queue_name
        except ValidationError:
            return None  # the decision says why
        return self.queue(job["metadata"]["namespace"], name)

    def _priority_classes(self) -> frozenset[str]:
        found = self.kube.objects("scheduling.k8s.io/v1", "PriorityClass")
        return frozenset(item["metadata"]["name"] for item in found)

    def see_queue(self, queue: Object) -> SeenQueue:
        """Read what belongs to a queue."""
        metadata = queue["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        try:
            spec = QueueSpec.model_validate(queue["spec"])
        except ValidationError:
            return SeenQueue()
        kai = local = None
        if self.kai:
            kai = self.kube.get(names.KAI_API, "Queue", kai_queue(spec) or name)
        else:
            local = self.kube.get(names.KUEUE_API, "LocalQueue", spec.local_queue or name, namespace)
        resources = {}
        for template in spec.resources:
            kind = str(template.template.get("kind"))
            if kind in PERMITTED:
                found = self.kube.get(PERMITTED[kind], kind, resource_name(name, template), namespace)
                if found is not None:
                    resources[kind, template.name] = found
        return SeenQueue(local_queue=local, resources=resources, kai_queue=kai)

    # -- write -----------------------------------------------------------------------------------------
    def write_status(self, found: Object, status: BaseModel, *, acting: bool) -> bool:
        """Write a status that differs from the one in `found`. Return whether `found` is still the newest.

        False means that it changed meanwhile: look again. An object that is gone needs no status. Before an
        action (`acting`) the same status is written too: that asks whether `found` is old.
        """
        document = status.model_dump(by_alias=True, exclude_none=True, mode="json")
        if document == (found.get("status") or {}) and not acting:
            return True
        metadata = found["metadata"]
        body = {
            "apiVersion": names.API,
            "kind": found["kind"],
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "status": document,
        }
        resource = self.kube.resource(names.API, found["kind"])
        try:
            resource.status.replace(body=body, name=metadata["name"], namespace=metadata["namespace"])
        except (DynamicApiError, ApiException) as error:
            if error.status in CHANGES:
                return False
            raise
        return True

    def do(self, found: Object, action: Action) -> None:
        """Carry out an action for a job or a queue. One that was done already is no error."""
        namespace = found["metadata"]["namespace"]
        match action:
            case Create(document):
                self._create(document)
            case Delete():
                self._delete(action, namespace)
            case Finalizers(wanted):
                self._finalizers(found, wanted)

    def _create(self, document: Object) -> None:
        resource = self.kube.resource(document["apiVersion"], document["kind"])
        try:
            resource.create(
                body=document,
                namespace=document["metadata"].get("namespace"),
                field_manager=names.FIELD_MANAGER,
            )
        except (DynamicApiError, ApiException) as error:
            if error.status != CONFLICT:
                raise

    def _delete(self, action: Delete, namespace: str) -> None:
        only = {"uid": action.uid}
        if action.resource_version is not None:
            only["resourceVersion"] = action.resource_version
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": only,
            # It stays, with a deletion time, until its pods are gone: so the next one does not meet them.
            "propagationPolicy": "Foreground",
        }
        resource = self.kube.resource(action.api_version, action.kind)
        try:
            resource.delete(
                name=action.name, namespace=namespace if resource.namespaced else None, body=options
            )
        except (DynamicApiError, ApiException) as error:
            if error.status not in CHANGES:
                raise

    def _finalizers(self, found: Object, wanted: list[str]) -> None:
        metadata = found["metadata"]
        patch = {"metadata": {"finalizers": wanted, "resourceVersion": metadata["resourceVersion"]}}
        try:
            self.kube.resource(names.API, found["kind"]).patch(
                name=metadata["name"],
                namespace=metadata["namespace"],
                body=patch,
                content_type="application/merge-patch+json",
            )
        except (DynamicApiError, ApiException) as error:
            if error.status not in CHANGES:
                raise
