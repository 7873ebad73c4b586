"""Check the APIs, Deployments and webhook endpoints of JobSet and Kueue.

Each function checks only once, except for `is_transient`, which waits until the controllers respond again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.core.causes import NOT_READY, Controller
from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError
from harness.core.kubernetes import NOT_SERVED, Kube, Object
from harness.core.kubernetes_retries import pause

CONTROLLERS: dict[Controller, str] = {"jobset": "jobset-system", "kueue": "kueue-system"}
"""Maps a controller to its namespace."""
APIS = {
    "jobsets.jobset.x-k8s.io": "v1alpha2",
    "workloads.kueue.x-k8s.io": "v1beta2",
    "localqueues.kueue.x-k8s.io": "v1beta2",
    "clusterqueues.kueue.x-k8s.io": "v1beta2",
    "resourceflavors.kueue.x-k8s.io": "v1beta2",
}
"""Maps each CustomResourceDefinition's name to the API version that the harness and its jobs use."""
SERVING_SECONDS = 30.0
"""The maximum number of seconds to wait until a restarting controller is ready again."""
_WEBHOOK = "failed calling webhook"
SERVICE = "kubernetes.io/service-name"


def check_controllers(kube: Kube) -> None:
    """Check the APIs, Deployments and webhook endpoints of both controllers.

    Raises HarnessError with the cause controllers.crd_missing, version_unsupported, *_not_ready or
    webhook_not_serving.
    """
    for check in checks(kube):
        check()


def checks(kube: Kube) -> list[Callable[[], None]]:
    """Return the checks of `check_controllers` as functions, which raise the same errors."""
    return [
        *(partial(_apis, kube, name) for name in CONTROLLERS),
        *(partial(_controller, kube, name) for name in CONTROLLERS),
    ]


def require_ready(kube: Kube, name: Controller) -> None:
    """Check one controller. Raises the same errors as `check_controllers`."""
    _apis(kube, name)
    _controller(kube, name)


def _controller(kube: Kube, name: Controller) -> None:
    _deployments(kube, name)
    _endpoints(kube, name)


def explain(kube: Kube, error: Exception) -> HarnessError | None:
    """Return an error that names the controller or API that caused a create request to fail.

    Returns None if the request failed for another reason. `error` is the exception that the request raised.
    """
    message = error.message if isinstance(error, HarnessError) else f"HTTP {getattr(error, 'status', '?')}"
    try:
        check_controllers(kube)
    except HarnessError as problem:
        short = message.partition(": HTTP response body")[0]
        return HarnessError(f"{problem.message}; {short}", hint=problem.hint, cause=problem.cause)
    except (ApiException, HTTPError, OSError):
        return None
    if _WEBHOOK in message:
        hint = (
            "read the controllers' logs in the bundle's folder controllers/, and run `kubectl get "
            "endpointslices -A`"
        )
        return HarnessError(message, hint=hint, cause="controllers.webhook_not_serving")
    if isinstance(error, NOT_SERVED):
        text = f"the API server does not serve this kind: {error}"
        return HarnessError(text, cause="controllers.crd_missing")
    return None


def is_transient(kube: Kube, error: HarnessError, seconds: float = SERVING_SECONDS) -> bool:
    """Return whether `error` is a webhook failure from which all controllers recover within `seconds`.

    A single check is not enough. A controller that loses its lease exits, but its endpoint is removed only a
    moment later. During such a restart, the endpoint therefore still exists, then disappears, and finally
    exists again.
    """
    if error.cause != "controllers.webhook_not_serving":
        return False
    deadline = Deadline.after(seconds)
    while True:
        try:
            check_controllers(kube)
            if not any(_unserved(kube, name) for name in CONTROLLERS):
                return True
        except HarnessError as problem:
            if problem.cause != "controllers.webhook_not_serving":
                return False
        except (ApiException, HTTPError, OSError):
            pass
        if deadline.passed:
            return False
        pause(deadline)


def _apis(kube: Kube, name: Controller) -> None:
    """Check that the API server's list of API resources contains a controller's APIs.

    The CustomResourceDefinition is fetched only if an API is missing, because it contains the whole pod
    schema and the server takes 50 ms to send it.
    """
    served: dict[str, set[str]] = {}
    for kind, version in APIS.items():
        plural, _, group = kind.partition(".")
        if not group.startswith(name):
            continue
        path = f"/apis/{group}/{version}"
        if path not in served:
            served[path] = _creatable(kube, path)
        if plural not in served[path]:
            _api(kube, kind)


def _creatable(kube: Kube, path: str) -> set[str]:
    """Return the plural names of the kinds in an API group whose objects can be created.

    Kinds whose CRD is being deleted are left out.
    """
    try:
        resources = kube.fetch(path).json()["resources"]
    except ApiException as error:
        if error.status == 404:
            return set()
        raise
    return {each["name"] for each in resources if "create" in each["verbs"]}


def _api(kube: Kube, name: str) -> None:
    version = APIS[name]
    crd = _definition(kube, name)
    if crd is None or crd["metadata"].get("deletionTimestamp"):
        raise HarnessError(
            f"the cluster has no CustomResourceDefinition {name}",
            hint="install the CustomResourceDefinition again, or run `harness down` to get a new cluster",
            cause="controllers.crd_missing",
        )
    served = [v["name"] for v in crd["spec"]["versions"] if v["served"]]
    if version not in served:
        raise HarnessError(
            f"expected version {version} of {name}, but the cluster serves "
            f"{', '.join(served) or 'no version'}",
            hint="install the versions in harness/versions.toml, or run `harness down` to get a new cluster",
            cause="controllers.version_unsupported",
        )


def _definition(kube: Kube, name: str) -> Object | None:
    """Return the CustomResourceDefinition, or None if it does not exist."""
    try:
        response = kube.fetch(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    except ApiException as error:
        if error.status == 404:
            return None
        raise
    definition: Object = response.json()
    return definition


def _deployments(kube: Kube, name: Controller) -> None:
    namespace = CONTROLLERS[name]
    deployments = kube.objects("apps/v1", "Deployment", namespace)
    stopped = [d["metadata"]["name"] for d in deployments if d["spec"].get("replicas") == 0]
    if stopped or not deployments:
        problem = f"Deployment {', '.join(stopped)} is scaled to 0" if stopped else "there is no Deployment"
        raise HarnessError(
            f"the controller {name} is not running: {problem} in {namespace}",
            hint=f"run `kubectl -n {namespace} scale deployment --all --replicas=1`",
            cause=NOT_READY[name],
        )


def _endpoints(kube: Kube, name: Controller) -> None:
    """If any of the controller's pods is Ready, check that each webhook's Service selects a pod.

    A Service that selects a pod but has no endpoint passes, because the EndpointSlice is created after the
    pod.
    """
    namespace = CONTROLLERS[name]
    pods = kube.objects("v1", "Pod", namespace)
    unselected = [s for s in _unserved(kube, name) if not any(_selects(s, pod) for pod in pods)]
    if unselected and any(_ready(pod) for pod in pods):
        services = ", ".join(s["metadata"]["name"] for s in unselected)
        raise HarnessError(
            f"Service {services} in {namespace} has no endpoint, because its selector matches no pod, "
            "so its webhooks cannot be called",
            hint="compare the Service's selector with the pods' labels: "
            f"`kubectl -n {namespace} get pods --show-labels`",
            cause="controllers.webhook_not_serving",
        )


def _unserved(kube: Kube, name: Controller) -> list[Object]:
    """Return a controller's webhook Services that have no ready endpoint."""
    namespace = CONTROLLERS[name]
    filled = {
        (each["metadata"].get("labels") or {}).get(SERVICE)
        for each in kube.objects("discovery.k8s.io/v1", "EndpointSlice", namespace)
        if any(serves(endpoint) for endpoint in each.get("endpoints") or [])
    }
    services = kube.objects("v1", "Service", namespace)
    return [s for s in services if "webhook" in s["metadata"]["name"] and s["metadata"]["name"] not in filled]


def _selects(service: Object, pod: Object) -> bool:
    selector = service["spec"].get("selector") or {}
    labels = pod["metadata"].get("labels") or {}
    return bool(selector) and selector.items() <= labels.items()


def _ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def serves(endpoint: dict[str, Any]) -> bool:
    """Return whether an endpoint in an EndpointSlice is ready."""
    return bool((endpoint.get("conditions") or {}).get("ready"))
