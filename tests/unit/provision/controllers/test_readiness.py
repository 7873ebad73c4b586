"""Whether a webhook that failed is about to serve again, over several looks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.core.causes import CauseId
from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube
from harness.provision.controllers import readiness

KUBE = cast(Kube, None)
NOT_SERVING = HarnessError("failed calling webhook", cause="controllers.webhook_not_serving")


def looks(monkeypatch: pytest.MonkeyPatch, *seen: Exception | None) -> None:
    """Have `check_controllers` see these one after the other, the last one for ever."""
    left = list(seen)

    def check_controllers(kube: Kube) -> None:
        found = left.pop(0) if len(left) > 1 else left[0]
        if found is not None:
            raise found

    monkeypatch.setattr(readiness, "check_controllers", check_controllers)
    monkeypatch.setattr(readiness, "_unserved", lambda kube, name: [])


def test_restart_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a controller whose endpoint goes and comes again is transient, whichever is seen first."""
    gone = HarnessError("Service has no endpoint", cause="controllers.webhook_not_serving")
    looks(monkeypatch, gone, HTTPError("connection refused"), gone, None)
    assert readiness.is_transient(KUBE, NOT_SERVING)
    looks(monkeypatch, None)
    assert readiness.is_transient(KUBE, gone)


@pytest.mark.parametrize("cause", ["controllers.kueue_not_ready", "controllers.crd_missing"])
def test_what_does_not_come_back_is_told_at_once(monkeypatch: pytest.MonkeyPatch, cause: CauseId) -> None:
    """Contract: a controller that is scaled to nothing, or whose API is gone, is not waited for."""
    looks(monkeypatch, HarnessError("it is gone", cause=cause))
    assert not readiness.is_transient(KUBE, NOT_SERVING, seconds=3600)
    looks(monkeypatch, None)
    assert not readiness.is_transient(KUBE, HarnessError("it is gone", cause=cause))


def test_service_that_finds_nothing_is_no_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: what stays without an endpoint is not transient."""
    looks(monkeypatch, NOT_SERVING)
    assert not readiness.is_transient(KUBE, NOT_SERVING, seconds=0)


class Namespace:
    """The API of a controller's namespace: one pod, the Service of its webhooks, and one slice."""

    def __init__(self, *, selector: str = "jobset", ready: bool = True, served: bool = False) -> None:
        condition = {"type": "Ready", "status": str(ready)}
        service = {"metadata": {"name": "jobset-webhook-service"}, "spec": {"selector": {"app": selector}}}
        of_service = {"kubernetes.io/service-name": "jobset-webhook-service"}
        self._objects: dict[str, dict[str, Any]] = {
            "Pod": {"metadata": {"labels": {"app": "jobset"}}, "status": {"conditions": [condition]}},
            "Service": service,
            "EndpointSlice": {
                "metadata": {"labels": of_service},
                "endpoints": [{"conditions": {"ready": served}}],
            },
        }

    def objects(self, version: str, kind: str, namespace: str) -> list[dict[str, Any]]:
        return [self._objects[kind]] if namespace == "jobset-system" else []


def test_service_that_selects_no_pod_is_named() -> None:
    """Contract: what waiting does not mend is an error at once."""
    with pytest.raises(
        HarnessError,
        match="Service jobset-webhook-service in jobset-system has no endpoint, because its selector",
    ) as raised:
        readiness._endpoints(cast(Kube, Namespace(selector="other")), "jobset")
    assert raised.value.cause == "controllers.webhook_not_serving"


@pytest.mark.parametrize(
    "namespace",
    [Namespace(), Namespace(ready=False), Namespace(selector="other", ready=False), Namespace(served=True)],
    ids=["its slice is late", "its pod starts", "its pods are being replaced", "it serves"],
)
def test_service_that_is_about_to_serve_is_no_error(namespace: Namespace) -> None:
    """Contract: after a pause, a pod can be Ready before its EndpointSlice lists it."""
    readiness._endpoints(cast(Kube, namespace), "jobset")


def test_late_slice_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: nothing is tried again before every webhook has an endpoint."""
    monkeypatch.setattr(readiness, "check_controllers", lambda kube: None)
    assert not readiness.is_transient(cast(Kube, Namespace()), NOT_SERVING, seconds=0)
    assert readiness.is_transient(cast(Kube, Namespace(served=True)), NOT_SERVING, seconds=0)


class Apis:
    """An API server: what it says of `jobset.x-k8s.io/v1alpha2`, and the definition of jobsets.

    It keeps the paths that were asked for.
    """

    def __init__(self, verbs: list[str] | None, definition: dict[str, Any] | None = None) -> None:
        self.asked: list[str] = []
        self._answers: dict[str, Any] = {}
        if verbs is not None:
            self._answers[SHORT] = {"resources": [{"name": "jobsets", "verbs": verbs}]}
        if definition is not None:
            self._answers[LONG] = definition

    def fetch(self, path: str) -> Any:
        self.asked.append(path)
        if path not in self._answers:
            raise ApiException(status=404)
        return SimpleNamespace(json=lambda: self._answers[path])

    def check(self) -> None:
        readiness._apis(cast(Kube, self), "jobset")


SHORT = "/apis/jobset.x-k8s.io/v1alpha2"
LONG = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/jobsets.jobset.x-k8s.io"
OTHER = {"metadata": {}, "spec": {"versions": [{"name": "v1beta1", "served": True}]}}


def test_an_api_that_serves_is_seen_in_short() -> None:
    """Contract: the definition, 80 KB that the server takes 30 ms to write, is not asked for."""
    api = Apis(["create", "get"])
    api.check()
    assert api.asked == [SHORT]


@pytest.mark.parametrize(
    ("api", "cause"),
    [
        (Apis(None), "controllers.crd_missing"),
        (Apis(None, OTHER), "controllers.version_unsupported"),
        (
            Apis(["get", "delete"], {**OTHER, "metadata": {"deletionTimestamp": "now"}}),
            "controllers.crd_missing",
        ),
    ],
    ids=["gone", "in another version", "being deleted"],
)
def test_what_is_wrong_with_an_api_is_named(api: Apis, cause: str) -> None:
    with pytest.raises(HarnessError) as raised:
        api.check()
    assert raised.value.cause == cause
    assert api.asked == [SHORT, LONG]
