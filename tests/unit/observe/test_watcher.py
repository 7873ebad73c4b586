"""The watches: what is asked of the API server, what is recorded of a Secret, and kinds that are refused."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from kubernetes.client.exceptions import ApiException

from harness.core.kubernetes import NOT_SERVED
from harness.evidence.kubernetes.kinds import SURROUNDINGS, WatchedKind
from harness.evidence.schema.bundle import Observation
from harness.observe.watcher import Watcher

KINDS = {kind.name: kind for kind in SURROUNDINGS}
SECRET = {
    "metadata": {
        "name": "pluto",
        "namespace": "e2e-1",
        "uid": "u",
        "resourceVersion": "7",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": '{"data": {"KEY": "aHVzaA=="}}'},
        "managedFields": [
            {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:data": {"f:KEY": {}}}}
        ],
    },
    "data": {"KEY": "aHVzaA=="},
}


class Stream:
    """The answer to a watch: these lines, and then silence until it is over."""

    status = 200

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self._lines = lines

    def stream(self, **_: object) -> Iterator[bytes]:
        yield from (json.dumps(line).encode() + b"\n" for line in self._lines)
        time.sleep(0.05)

    def close(self) -> None: ...

    def release_conn(self) -> None: ...


class Listed:
    """The answer to a list, as it came."""

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self.data = json.dumps({"metadata": {"resourceVersion": "8"}, "items": items}).encode()


class Api:
    """Stands for the API server and its client. `refuse` may raise for the query with this number."""

    def __init__(self, refuse: Callable[[int], None] = lambda _: None) -> None:
        self.queries: list[dict[str, Any]] = []
        self._refuse = refuse

    def resource(self, api_version: str, kind: str) -> Api:
        return self

    def get(self, **query: Any) -> Any:
        self.queries.append(query)
        self._refuse(len(self.queries))
        if query.get("watch"):
            return Stream([{"type": "MODIFIED", "object": SECRET}])
        return Listed([SECRET])


def watched(api: Api, kind: WatchedKind, queries: int) -> tuple[list[Observation], list[str]]:
    """Watch a kind until so many queries were made. Returns what was recorded, and the gaps."""
    recorded: list[Observation] = []
    gaps: list[str] = []
    seen = threading.Event()

    def write(_: str, observation: Observation) -> None:
        recorded.append(json.loads(observation.model_dump_json()))

    watcher = Watcher(api, "e2e-1", [kind], write, lambda *_: seen.set(), gaps.append)  # type: ignore[arg-type]
    watcher.start()
    watcher.listed(5)
    deadline = time.monotonic() + 10
    while len(api.queries) < queries and time.monotonic() < deadline:
        time.sleep(0.01)
    watcher.stop()
    return recorded, gaps


def test_only_the_metadata_of_a_secret_is_recorded() -> None:
    """Contract: neither its data nor an annotation that holds a copy of it comes into the bundle."""
    api = Api()
    recorded, _ = watched(api, KINDS["secret"], 2)
    for query in api.queries:
        assert "as=PartialObjectMetadata" in query["header_params"]["Accept"]
    assert "as=PartialObjectMetadataList" in api.queries[0]["header_params"]["Accept"]
    assert recorded
    assert "aHVzaA" not in json.dumps(recorded)
    assert recorded[0]["object"] == {  # type: ignore[index]
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            **{name: SECRET["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")},
            "managedFields": [{"manager": "kubectl", "operation": "Update"}],
        },
    }


def test_only_the_launch_s_own_namespace_is_watched() -> None:
    """Contract: a launch records no other namespace of the cluster."""
    api = Api()
    watched(api, KINDS["namespace"], 1)
    assert api.queries[0]["field_selector"] == "metadata.name=e2e-1"
    assert api.queries[0]["namespace"] is None


def test_kind_that_may_not_be_read_is_given_up() -> None:
    """Contract: the launch goes on at once without it, and the gap is told."""

    def refuse(number: int) -> None:
        raise ApiException(status=403, reason="Forbidden")

    api = Api(refuse)
    _, gaps = watched(api, KINDS["dns"], 1)
    assert gaps == ["objects/dns: not watched, HTTP 403 Forbidden"]
    assert len(api.queries) == 1


def test_a_kind_that_is_not_served_is_given_up() -> None:
    """Contract: a cluster without NetworkPolicies can be used."""

    def refuse(number: int) -> None:
        raise NOT_SERVED

    assert watched(Api(refuse), KINDS["networkpolicy"], 1)[1] == [
        "objects/networkpolicy: not watched, it is not served"
    ]


def test_a_refusal_after_the_first_list_is_asked_again() -> None:
    """Contract: an API server that just restarted refuses for a moment, and the watch goes on after it."""

    def refuse(number: int) -> None:
        if number == 2:
            raise ApiException(status=403, reason="Forbidden")

    api = Api(refuse)
    _, gaps = watched(api, KINDS["dns"], 4)
    assert len(api.queries) >= 4
    assert gaps[0] == "objects/dns: HTTP 403 Forbidden"
