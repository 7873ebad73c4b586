"""Check whether a cluster meets a launch's requirements, without changing anything."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from harness.core import pod_security
from harness.core.causes import Controller
from harness.core.errors import HarnessError
from harness.core.kubernetes import NOT_SERVED, Kube, Object
from harness.evidence.kubernetes.node_images import other_tags
from harness.evidence.kubernetes.unschedulable import by_reason, exclusions
from harness.provision import pod_admission
from harness.provision.controllers import queues
from harness.provision.controllers import tracker as embedded
from harness.provision.controllers.readiness import CONTROLLERS, require_ready
from harness.provision.placement import Placed, require_node
from harness.settings import Settings

LOCAL_IMAGE = "pluto-multinode-test:local"
"""A placeholder for the worker image in a dry run. Dry runs do not pull images."""
FORBIDDEN: Final = "cluster.forbidden"
_RIGHTS = (
    *(("", "namespaces", verb) for verb in ("create", "list", "delete")),
    *(("", "secrets", verb) for verb in ("get", "create")),
    *(("", "configmaps", verb) for verb in ("create",)),
    *(("", "pods", verb) for verb in ("list", "watch")),
    *(("", "nodes", verb) for verb in ("list", "watch")),
    ("", "pods/log", "get"),
    ("", "pods/exec", "create"),
    ("", "events", "list"),
    ("", "services/proxy", "get"),
    *(("jobset.x-k8s.io", "jobsets", verb) for verb in ("create", "list", "watch", "deletecollection")),
    *(("kueue.x-k8s.io", "workloads", verb) for verb in ("list", "watch")),
    ("kueue.x-k8s.io", "localqueues", "create"),
    ("kueue.x-k8s.io", "clusterqueues", "get"),
    ("apiextensions.k8s.io", "customresourcedefinitions", "get"),
)
"""The permissions that launches need, as (API group, resource, verb).

The permissions are cluster-wide, because each launch has its own namespace.
"""


class JobProperties(Placed, Protocol):
    """The properties of a job file that determine the job's requirements for a cluster."""

    @property
    def image(self) -> str:
        """Return the image that the ranks run."""

    @property
    def uses_worker_image(self) -> bool:
        """Return whether `image` is a placeholder for the worker image that the harness builds."""

    @property
    def resources(self) -> set[str]:
        """Return the names of the resources requested by each pod."""

    @property
    def pod_spec(self) -> Object:
        """Return the pod spec in the job file."""


@dataclass(frozen=True)
class Requirement:
    """A launch requirement, the cluster's actual state, and the problem if the cluster does not meet the
    requirement."""

    what: str
    state: str
    problem: HarnessError | None = None

    @property
    def fix(self) -> str:
        return self.problem.hint if self.problem else ""


def requirements(
    kube: Kube, settings: Settings, job: JobProperties | None = None, *, pods: bool = False
) -> list[Requirement]:
    """Check all launch requirements, and return them in the order in which a launch needs them.

    `job` determines the resources and the image. If `pods` is true, a pod dry run in a temporary namespace
    checks the cluster's admission rules. If the user lacks the permission for a check, the requirement is
    returned with a problem, and no error is raised.
    """
    tests: list[tuple[str, Callable[[], str]]] = [
        ("nodes", lambda: _nodes(kube, settings, job)),
        ("permissions", lambda: _rights(kube)),
        *((name, _controller(kube, name)) for name in CONTROLLERS),
        ("queue", lambda: _queue(kube, settings, job)),
        ("tracker", lambda: _tracker(kube, settings)),
        ("image", lambda: _image(kube, settings, job)),
        ("devices", lambda: _devices(kube, job)),
        *([("pods", lambda: _pods(kube, settings, job))] if pods else []),
        ("storage", lambda: "no volume is needed, because the evidence is stored on this machine"),
    ]
    return [_tested(subject, test) for subject, test in tests]


def _tested(subject: str, test: Callable[[], str]) -> Requirement:
    try:
        return Requirement(subject, test())
    except HarnessError as error:
        return Requirement(subject, error.message, error)
    except NOT_SERVED as error:
        return Requirement(
            subject, f"not served: {error}", HarnessError(str(error), cause="controllers.crd_missing")
        )
    except ApiException as error:
        if error.status not in (401, 403):
            raise
        text = f"cannot be read: HTTP {error.status}"
        return Requirement(
            subject,
            text,
            HarnessError(text, hint="ask an administrator for this permission", cause=FORBIDDEN),
        )


def _nodes(kube: Kube, settings: Settings, job: JobProperties | None) -> str:
    ready = kube.ready_nodes()
    open_ = [node for node in ready if not node["spec"].get("unschedulable")]
    if not open_:
        raise HarnessError(
            f"no node is both Ready and schedulable; Ready nodes: {len(ready)}",
            hint="check the nodes with `kubectl get nodes`",
            cause="cluster.unhealthy",
        )
    if job is not None:
        return f"nodes that accept this job's pods: {len(require_node(kube, job, settings))}"
    tainted = {str(node["metadata"]["name"]): exclusions({}, node) for node in open_ if exclusions({}, node)}
    free = f"nodes that accept pods: {len(open_) - len(tainted)}"
    return (
        (f"{free}; others accept only pods with a toleration: {by_reason(tainted.items())}")
        if tainted
        else free
    )


def _rights(kube: Kube) -> str:
    missing = [f"{right[2]} {right[1]}" for right in _RIGHTS if not _is_allowed(kube, *right)]
    if missing:
        raise HarnessError(
            f"these credentials lack permission to {', '.join(missing)}",
            hint="bind a ClusterRole with these permissions, or use other credentials",
            cause=FORBIDDEN,
        )
    return f"these credentials have all {len(_RIGHTS)} permissions that a launch needs"


def _is_allowed(kube: Kube, group: str, resource: str, verb: str) -> bool:
    name, _, part = resource.partition("/")
    attributes = client.V1ResourceAttributes(group=group, resource=name, subresource=part or None, verb=verb)
    review = client.V1SelfSubjectAccessReview(
        spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
    )
    response = client.AuthorizationV1Api(kube.api).create_self_subject_access_review(review)
    return bool(response.status.allowed)


def _controller(kube: Kube, name: Controller) -> Callable[[], str]:
    def state() -> str:
        try:
            require_ready(kube, name)
        except HarnessError as problem:
            hint = f"{problem.hint}, or --install"
            raise HarnessError(problem.message, hint=hint, cause=problem.cause) from None
        images = [
            container["image"]
            for deployment in kube.objects("apps/v1", "Deployment", CONTROLLERS[name])
            for container in deployment["spec"]["template"]["spec"]["containers"]
        ]
        return ", ".join(sorted(set(images)))

    return state


def _queue(kube: Kube, settings: Settings, job: JobProperties | None) -> str:
    queues.admits(kube, settings.cluster_queue)
    if job and job.queue:
        queues.manages(kube, job.kind)
    covered = queues.covered(kube, settings.cluster_queue)
    missing = sorted(set(job.resources) - covered) if job else []
    if missing:
        raise HarnessError(
            f"ClusterQueue {settings.cluster_queue} has no quota for {', '.join(missing)}, only for "
            f"{', '.join(sorted(covered))}",
            hint="use another ClusterQueue (HARNESS_CLUSTER_QUEUE), or add quota for these resources",
            cause="admission.resource_not_covered",
        )
    return (
        f"ClusterQueue {settings.cluster_queue} admits workloads; it has quota for "
        f"{', '.join(sorted(covered))}"
    )


def _tracker(kube: Kube, settings: Settings) -> str:
    if settings.tracker == "hosted":
        return "hosted"
    try:
        embedded.check_serving(kube)
    except HarnessError as error:
        hint = "use --install and set HARNESS_TRACKER_IMAGE, or use --tracker hosted"
        raise HarnessError(error.message, hint=hint, cause="tracker.not_ready") from None
    return f"embedded, running in {embedded.NAMESPACE}"


def _image(kube: Kube, settings: Settings, job: JobProperties | None) -> str:
    pull_secret(kube, settings)
    try:
        reference = image(job, settings.worker_image)
    except HarnessError as error:
        if tags := other_tags(LOCAL_IMAGE, kube.objects("v1", "Node")):
            error.hint = f"the nodes have {', '.join(tags)}: set HARNESS_WORKER_IMAGE to one of these images"
        raise
    secret = f", with the Secret {settings.image_pull_secret}" if settings.image_pull_secret else ""
    return f"{reference}{secret}; not checked, because nodes pull the image only when the pods start"


def pull_secret(kube: Kube, settings: Settings) -> Object | None:
    """Return the Secret with the user's image pull credentials, or None if none is set.

    Raises HarnessError (cause image.pull_failed) if the Secret does not exist.
    """
    if settings.image_pull_secret is None:
        return None
    namespace, _, name = settings.image_pull_secret.partition("/")
    secret = kube.get("v1", "Secret", name, namespace)
    if secret is None:
        raise HarnessError(
            f"the image pull Secret {settings.image_pull_secret} does not exist",
            hint="set HARNESS_IMAGE_PULL_SECRET to the NAMESPACE/NAME of an existing Secret",
            cause="image.pull_failed",
        )
    return secret


def image(job: JobProperties | None, worker: str | None) -> str:
    """Return the job's own image, or `worker` if the job uses the harness's worker image.

    Raises HarnessError (cause image.not_found) if `worker` is needed but is not set.
    """
    reference = job.image if job and not job.uses_worker_image else worker
    if not reference:
        raise HarnessError(
            "no node in this cluster has the worker image, because it was built on this machine",
            hint="push the image to a registry that the nodes can use, and set "
            "HARNESS_WORKER_IMAGE=…@sha256:…",
            cause="image.not_found",
        )
    return reference


def _devices(kube: Kube, job: JobProperties | None) -> str:
    resources = [name for name in (job.resources if job else []) if "/" in name]
    nodes = kube.objects("v1", "Node")
    allocatable = {
        name: sum(int(n["status"]["allocatable"].get(name, 0)) for n in nodes) for name in resources
    }
    missing = [name for name, count in allocatable.items() if count == 0]
    if missing:
        raise HarnessError(
            f"no node has {', '.join(missing)}",
            hint="check with `kubectl describe nodes` that the device plugin is installed",
            cause="scheduling.unschedulable",
        )
    return ", ".join(f"{name}: {count}" for name, count in allocatable.items()) or "none requested"


def _pods(kube: Kube, settings: Settings, job: JobProperties | None) -> str:
    spec: Object = copy.deepcopy(job.pod_spec) if job else {"containers": [{"name": "rank"}]}
    if job is None:
        pod_security.harden(spec)  # The dry-run pod gets the same security settings as the harness's pods.
    for container in spec["containers"][:1]:
        container["image"] = image(job, settings.worker_image) if _named(job, settings) else LOCAL_IMAGE
    spec.setdefault("restartPolicy", "Never")
    return pod_admission.admitted(kube, spec, settings.pod_security)


def _named(job: JobProperties | None, settings: Settings) -> bool:
    return bool(settings.worker_image) or (job is not None and not job.uses_worker_image)


def missing(needs: list[Requirement]) -> Iterator[Requirement]:
    return (requirement for requirement in needs if requirement.problem is not None)
