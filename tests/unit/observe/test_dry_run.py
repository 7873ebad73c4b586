"""The request of a controller that did not come is repeated, and nothing is stored by it."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from loopback import kube_of

from harness.core.kubernetes import Kube
from harness.observe.dry_run import Awaited, dry_runs

USER = "system:serviceaccount:kueue-system:kueue"
POD = {"containers": [{"name": "rank", "image": "i"}]}
JOB = {"parallelism": 2, "template": {"metadata": {"labels": {"a": "b"}}, "spec": POD}}
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "job", "namespace": "ns", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
    "spec": {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": JOB}}]},
}
GROUPS = {
    ("jobset.x-k8s.io", "v1alpha2"): ("jobsets", "JobSet"),
    ("kueue.x-k8s.io", "v1beta2"): ("workloads", "Workload"),
    ("batch", "v1"): ("jobs", "Job"),
}


class Server(ThreadingHTTPServer):
    """Answers discovery, and each write with the refusal of its kind, or with what was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refusals: dict[str, str] = {}
        self.may_impersonate = True
        self.writes: list[tuple[str, str, str | None, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        groups = [
            {"name": group, "versions": [v := {"groupVersion": f"{group}/{version}", "version": version}],
             "preferredVersion": v}
            for group, version in GROUPS
        ]  # fmt: skip
        kinds = {f"/apis/{group}/{version}": names for (group, version), names in GROUPS.items()}
        if path == "/apis":
            self._answer(200, {"kind": "APIGroupList", "groups": groups})
        elif path == "/api/v1" or path in kinds:
            plural, kind = kinds.get(path, ("pods", "Pod"))
            resource = {"name": plural, "kind": kind, "namespaced": True, "verbs": ["create", "patch"]}
            self._answer(200, {"kind": "APIResourceList", "resources": [resource]})
        elif path == "/version":
            self._answer(200, {"major": "1", "minor": "36"})
        else:
            self._answer(200, {"kind": "APIVersions", "versions": ["v1"]})

    def do_POST(self) -> None:
        self._write("POST")

    def do_PATCH(self) -> None:
        self._write("PATCH")

    def _write(self, method: str) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        user = self.headers.get("Impersonate-User")
        self.server.writes.append((method, self.path, user, body))
        refusal = self.server.refusals.get(body["kind"])
        if user and not self.server.may_impersonate:
            self._answer(403, {"message": f'users "{user}" is forbidden: User "me" cannot impersonate'})
        elif refusal:
            self._answer(500, {"message": refusal})
        else:
            self._answer(201, body)

    def _answer(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        del args


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        yield found
        found.shutdown()


@pytest.fixture
def kube(server: Server, tmp_path: Path) -> Kube:
    return kube_of(server.server_address[1], tmp_path)


def test_missing_workload_is_requested_in_name_of_kueue(server: Server, kube: Kube) -> None:
    server.refusals["Workload"] = 'failed calling webhook "w"'
    workload, jobset = dry_runs(kube, Awaited("", JOBSET, "Workload", USER), JOBSET)
    assert (workload.kind, workload.user, workload.awaited) == ("Workload", USER, True)
    assert workload.message == 'HTTP 500: failed calling webhook "w"'
    assert (jobset.kind, jobset.user, jobset.awaited, jobset.message) == ("JobSet", None, False, None)
    sent = server.writes[0][3]["spec"]
    assert (sent["queueName"], sent["podSets"][0]["count"]) == ("q", 2)


@pytest.mark.parametrize("creates", ["Workload", "Job", "Pod", None])
def test_nothing_is_stored(server: Server, kube: Kube, creates: Any) -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "ns"}, "spec": JOB}
    of = job if creates == "Pod" else JOBSET
    assert [each.message for each in dry_runs(kube, Awaited("", of, creates), JOBSET)] == [None, None]
    assert len(server.writes) == 2
    assert all("dryRun=All" in path for _, path, _, _ in server.writes)
    assert all(body["metadata"]["name"] != "job" for method, _, _, body in server.writes if method == "POST")


def test_an_account_without_impersonation_uses_its_own_name(server: Server, kube: Kube) -> None:
    server.may_impersonate = False
    [workload, _] = dry_runs(kube, Awaited("", JOBSET, "Workload", USER), JOBSET)
    assert (workload.user, workload.message) == (None, None)
