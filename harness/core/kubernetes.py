"""The harness's Kubernetes API client, with server-side apply and watch-based waits.

It has its own connection pool and configuration, and does not change the process-wide default. All requests
except watches and log streams have a timeout, so an unresponsive API server cannot block the harness.
"""

from __future__ import annotations

import base64
import json
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.config.kube_config import KubeConfigLoader
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError, ProtocolError

from harness.core.causes import CauseId
from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError, UsageError, WaitError
from harness.core.kubeconfig import (
    CAUSE,
    cluster_entry,
    context_of,
    document_of,
    entry_of,
    reading,
    token_file,
)
from harness.core.kubernetes_retries import OnResponse, OnRetry, Requests, pause, reason_of
from harness.core.proxies import Proxy, proxy_of_cluster, without_credentials

_CERTIFICATES = ("certificate-authority", "client-certificate", "client-key")
_EVERY_HOST, _NO_HOST = "*", "none.invalid"
"""Values for NO_PROXY. The first matches every host, and the second matches no host."""
FIELD_MANAGER = "pluto-e2e-harness"
Object = dict[str, Any]
NOT_SERVED = dynamic.exceptions.ResourceNotFoundError
"""The error raised by the dynamic client for a kind that the cluster does not serve."""


class Kube:
    """A client for the cluster that a kubeconfig and context refer to."""

    def __init__(self, kubeconfig: Path, context: str | None = None, cache: Path | None = None) -> None:
        """Read the kubeconfig, without sending a request. Raises HarnessError (cause cluster.kubeconfig).

        `cache` is the file in which the list of the cluster's API resources is cached. By default, it is next
        to the kubeconfig.
        """
        name = context_of(kubeconfig, context)
        self.kubeconfig = kubeconfig
        self.context = context
        self.proxy: Proxy | None = None
        self._cache = cache or kubeconfig.with_name("discovery.json")
        configuration = client.Configuration()
        configuration.retries = False
        try:
            document = self._without_files(document_of(kubeconfig), name)
            proxy_url = cluster_entry(document, name).pop("proxy-url", None)
            base = str(kubeconfig.absolute().parent)
            KubeConfigLoader(document, active_context=name, config_base_path=base).load_and_set(configuration)
        except (config.ConfigException, LookupError, TypeError, ValueError, AttributeError) as error:
            raise HarnessError(
                f"cannot use kubeconfig {kubeconfig} with context {context}: {error}", cause=CAUSE
            ) from None
        configuration.connection_pool_maxsize = 64
        self._set_proxy(configuration, proxy_url)
        token = token_file(kubeconfig, name)
        if token is not None:
            configuration.refresh_api_key_hook = reading(token)
        self.configuration = configuration
        self.api = client.ApiClient(configuration)
        self._requests = self.api.rest_client = Requests(configuration)
        self._dynamic: dynamic.DynamicClient | None = None

    def _set_proxy(self, configuration: client.Configuration, proxy_url: object) -> None:
        """Choose the proxy for all requests and WebSockets, so that the Kubernetes client does not read proxy
        variables."""
        try:
            self.proxy = proxy_of_cluster(configuration.host, str(proxy_url or ""))
        except UsageError as error:
            raise UsageError(error.message, hint=error.hint, cause=CAUSE) from None
        except ValueError:
            server = without_credentials(str(configuration.host))
            raise HarnessError(
                f"{self.kubeconfig}: expected the URL of an API server, found {server}",
                hint="correct the field `server` of the context's cluster, as in https://HOST:6443",
                cause=CAUSE,
            ) from None
        # Without a configured proxy, WebSockets take the proxy, but not no_proxy, from the environment.
        # The configuration therefore always has a proxy, even for direct connections.
        # For direct connections, the configuration's no_proxy matches every host.
        configuration.proxy = str(self.proxy or f"http://{_NO_HOST}:1")
        configuration.no_proxy = _EVERY_HOST if self.proxy is None else _NO_HOST
        configuration.proxy_headers = self.proxy.headers if self.proxy is not None else None

    def websocket_options(self) -> dict[str, Any]:
        """Return the options for WebSocket.connect that select the proxy or a direct connection.

        Raises UsageError for a proxy that the WebSocket client does not support.
        """
        if self.proxy is None:
            direct = {"http_proxy_host": _NO_HOST, "http_proxy_port": 1}
            return {**direct, "http_no_proxy": [_EVERY_HOST]}
        if self.proxy.scheme != "http":
            raise UsageError(
                "running a command in a pod works only through an http:// proxy, but the API server's "
                f"proxy is {self.proxy}",
                hint="set the kubeconfig's proxy-url, or HTTPS_PROXY, to the proxy's HTTP port",
                cause=CAUSE,
            )
        through = {"http_proxy_host": self.proxy.host, "http_proxy_port": self.proxy.port}
        return {**through, "http_proxy_auth": self.proxy.credentials, "http_no_proxy": [_NO_HOST]}

    def _without_files(self, document: Object, context: str) -> Object:
        """Return a kubeconfig whose embedded certificates and key are replaced by paths of in-memory files.

        By default, the client writes them to the temporary directory, where they remain if the process is
        killed.
        """
        if not hasattr(os, "memfd_create"):
            return document
        context_entry = entry_of(document, "context", context)
        for kind in ("cluster", "user"):
            entry = entry_of(document, kind, str(context_entry.get(kind)))
            for name in _CERTIFICATES:
                if data := entry.pop(f"{name}-data", None):
                    descriptor = os.memfd_create(name)
                    weakref.finalize(self, os.close, descriptor)
                    os.write(descriptor, base64.b64decode(str(data)))
                    entry[name] = f"/proc/self/fd/{descriptor}"
        return document

    @property
    def dynamic(self) -> dynamic.DynamicClient:
        if self._dynamic is None:
            self._cache.parent.mkdir(parents=True, exist_ok=True)  # The client's default cache is in /tmp.
            self._dynamic = dynamic.DynamicClient(self.api, cache_file=str(self._cache))
        return self._dynamic

    # -- requests to the API server itself -------------------------------------------------------------
    @property
    def on_retry(self) -> OnRetry:
        """Return the callback that is called for each request that succeeded only after a retry.

        Its arguments are the request and the reason for the retry.
        """
        return self._requests.on_retry

    @on_retry.setter
    def on_retry(self, callback: OnRetry) -> None:
        self._requests.on_retry = callback

    @property
    def on_response(self) -> OnResponse:
        """Return the callback that is called after each response from the API server.

        Its arguments are the method, the URL and the status code.
        """
        return self._requests.on_response

    @on_response.setter
    def on_response(self, callback: OnResponse) -> None:
        self._requests.on_response = callback

    def silence(self, seconds: float = 5) -> str | None:
        """Return why the API server is not ready, or None if it is ready within `seconds`.

        Sends one request.
        """
        try:
            response = self.api.call_api("GET", f"{self.configuration.host}/readyz", _request_timeout=seconds)
            response.read()
        except (ApiException, HTTPError) as error:
            return reason_of(error)
        return None if response.status == 200 else f"HTTP {response.status}"

    def fetch(
        self, path: str, query: Mapping[str, str] | None = None, *, seconds: float | None = None
    ) -> HTTPResponse:
        """Send a GET request, and return the response before its body has been read.

        A request with a timeout (`seconds`) is not retried. The client's CoreV1Api is not used, because
        importing its models takes 0.4 s of CPU time. Raises ApiException for a status other than 2xx, and
        urllib3's HTTPError if there is no response.
        """
        request = self.api.param_serialize(
            "GET", path, query_params=list((query or {}).items()), auth_settings=["BearerToken"]
        )
        rest_response = self.api.call_api(*request, _request_timeout=seconds)
        if not 200 <= rest_response.status <= 299:
            raise ApiException.from_response(
                http_resp=rest_response, body=rest_response.read().decode(), data=None
            )
        response: HTTPResponse = rest_response.response
        return response

    # -- create, update and delete objects -------------------------------------------------------------
    def apply(self, document: Object, *, dry_run: bool = False) -> Object:
        """Apply an object using server-side apply, and return the result."""
        metadata = document["metadata"]
        resource = self.resource(document["apiVersion"], document["kind"])
        applied = self.dynamic.server_side_apply(
            resource,
            body=document,
            name=metadata["name"],
            namespace=metadata.get("namespace") or ("default" if resource.namespaced else None),
            field_manager=FIELD_MANAGER,
            force_conflicts=True,
            serialize=False,
            **({"dry_run": "All"} if dry_run else {}),
        )
        return body_of(applied)

    def dry_run(self, document: Object, *, update: bool = False, user: str | None = None) -> None:
        """Send a create request or, with `update`, a patch request as a dry run, so that nothing is stored.

        If `user` is given, the request impersonates this user, which requires the permission to impersonate.
        Raises ApiException if the server rejects the request.
        """
        metadata, dynamic = document["metadata"], self.dynamic
        resource = self.resource(document["apiVersion"], document["kind"])
        options: dict[str, Any] = {
            "namespace": metadata.get("namespace"),
            "dry_run": "All",
            "serialize": False,
        }
        options["header_params"] = {"Impersonate-User": user} if user else {}
        if update:
            name, merge = metadata["name"], "application/merge-patch+json"
            dynamic.patch(resource, body=document, name=name, content_type=merge, **options)
        else:
            dynamic.create(resource, body=document, **options)

    def delete(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> None:
        """Delete an object and, by garbage collection, its dependents. A missing object is not an error."""
        # By default, the API server keeps the pods of a deleted Job.
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        try:
            self.resource(api_version, kind).delete(name=name, namespace=namespace, body=options)
        except dynamic.exceptions.NotFoundError:
            return

    def resource(self, api_version: str, kind: str) -> Any:
        """Return the dynamic client's resource for a kind.

        If the kind is unknown, the resources that the API server serves are discovered again.
        """
        try:
            return self.dynamic.resources.get(api_version=api_version, kind=kind)
        except dynamic.exceptions.ResourceNotFoundError:
            self.dynamic.resources.invalidate_cache()
            return self.dynamic.resources.get(api_version=api_version, kind=kind)

    # -- read and watch objects ------------------------------------------------------------------------
    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """Return the object, or None if it does not exist or the cluster does not serve its kind."""
        try:
            return body_of(
                self.resource(api_version, kind).get(name=name, namespace=namespace, serialize=False)
            )
        except (dynamic.exceptions.NotFoundError, dynamic.exceptions.ResourceNotFoundError):
            return None

    def objects(
        self, api_version: str, kind: str, namespace: str | None = None, selector: str = ""
    ) -> list[Object]:
        """Return all objects of a kind, in one namespace or in all, with their apiVersion and kind."""
        response = listed(self.resource(api_version, kind), namespace=namespace, label_selector=selector)
        return [{"apiVersion": api_version, "kind": kind, **item} for item in response["items"]]

    def wait(
        self,
        awaited: str,
        api_version: str,
        kind: str,
        unmet: Callable[[dict[str, Object]], str | None],
        *,
        seconds: float,
        namespace: str | None = None,
        selector: str = "",
        cause: CauseId | None = None,
    ) -> dict[str, Object]:
        """Watch objects until `unmet` returns None, and return them by name.

        `unmet` is called with the objects by name. It returns a description of what is still missing, or
        None. After `seconds`, WaitError is raised with the last description.
        """
        deadline = Deadline.after(seconds)
        resource = self.resource(api_version, kind)
        missing: str | None = "nothing yet"
        while not deadline.passed:
            try:
                listing = listed(resource, namespace=namespace, label_selector=selector)
                objects = {item["metadata"]["name"]: item for item in listing["items"]}
                missing = unmet(objects)
                if missing is None:
                    return objects
                for event in self._watch(resource, namespace, selector, listing, deadline):
                    item = event["object"]
                    if event["type"] == "DELETED":
                        objects.pop(item["metadata"]["name"], None)
                    else:
                        objects[item["metadata"]["name"]] = item
                    missing = unmet(objects)
                    if missing is None:
                        return objects
            except (ApiException, HTTPError) as error:
                problem = f"the API server: {error.__class__.__name__}: {str(error)[:200]}"
                if problem != missing:
                    self.on_retry(f"waiting for {awaited}", problem)
                missing = problem
                pause(deadline)
        raise WaitError(awaited, str(missing), seconds, cause=cause)

    def _watch(
        self, resource: Any, namespace: str | None, selector: str, listing: Object, deadline: Deadline
    ) -> Iterable[Object]:
        for event in events(
            resource,
            namespace=namespace,
            label_selector=selector,
            resource_version=listing["metadata"]["resourceVersion"],
            timeout=max(1, int(deadline.remaining)),
        ):
            yield {"type": event["type"], "object": event["raw_object"]}

    # -- read nodes ------------------------------------------------------------------------------------
    def ready_nodes(self) -> list[Object]:
        """Return the nodes whose Ready condition is True. The request has a timeout of 5 s."""
        nodes = self.fetch("/api/v1/nodes", seconds=5).json()["items"]
        return [node for node in nodes if condition(node, "Ready").get("status") == "True"]


def body_of(response: HTTPResponse) -> Object:
    """Return the object in the response to a request that the dynamic client sent with `serialize=False`.

    With serialization, the client would convert every field to a Python object, which then has to be
    converted back.
    """
    body: Object = json.loads(response.data)
    return body


def listed(resource: Any, **query: Any) -> Object:
    """List the objects of a dynamic resource, and return the response. The response's `items` is always a
    list."""
    body = body_of(resource.get(serialize=False, **query))
    return {**body, "items": body.get("items") or []}


def events(resource: Any, *, timeout: int, watcher: watch.Watch | None = None, **query: Any) -> Iterator[Any]:
    """Yield watch events for a dynamic resource.

    Raises ProtocolError if the connection ends in the middle of a line. The Kubernetes client does not handle
    this case.
    """
    stream = watcher or watch.Watch()
    for event in stream.stream(resource.get, serialize=False, timeout_seconds=timeout, **query):
        if event is None:
            raise ProtocolError("the watch ended in the middle of a line")
        yield event


def condition(item: Object, kind: str) -> Object:
    """Return an object's condition of type `kind`, or {} if the object does not have this condition yet."""
    conditions = (item.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c["type"] == kind), {})


def applied_by_us(document: Object) -> bool:
    """Return whether the harness is one of the object's field managers."""
    managers = document["metadata"].get("managedFields") or []
    return any(each.get("manager") == FIELD_MANAGER for each in managers)


def request_error(error: Exception) -> HarnessError | None:
    """Return the HarnessError for a failed API server request, or None for any other error."""
    no_response = isinstance(error, HTTPError) or (isinstance(error, ApiException) and not error.status)
    if no_response and "certificate" in str(error).lower():
        return HarnessError(
            f"the TLS connection to the API server failed: {reason_of(error)}",
            hint="compare the kubeconfig's server, tls-server-name and certificate-authority with the "
            "server's certificate",
            cause="cluster.unreachable",
        )
    if no_response:
        return HarnessError(
            f"the API server did not respond: {reason_of(error)}",
            hint="check with `harness status` and `docker ps` that the control plane is running",
            cause="cluster.unreachable",
        )
    if isinstance(error, ApiException):
        return HarnessError(
            f"a request to the API server failed: {reason_of(error)}",
            hint="run `harness preflight` to see missing permissions and components",
            cause="cluster.forbidden" if error.status in (401, 403) else "cluster.unhealthy",
        )
    return None


@contextmanager
def reached() -> Iterator[None]:
    """Return a context manager for a block that sends requests to the API server.

    If the server does not respond, HarnessError (cause cluster.unreachable) is raised.
    """
    try:
        yield
    except (HTTPError, ApiException) as error:
        problem = request_error(error)
        if problem is None or problem.cause != "cluster.unreachable":
            raise
        raise problem from error
