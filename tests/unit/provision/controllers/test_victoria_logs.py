"""The objects of `harness up --logs`, and the field names that the proxy in front of VictoriaLogs maps."""

from __future__ import annotations

import json
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from harness.context import RunContext
from harness.provision.controllers import victoria_logs
from harness.provision.controllers.files import konduktor_fields
from harness.provision.images.victoria_logs import LogImages, victoria_logs_images
from harness.provision.source.programs import pinned
from harness.settings import Settings

QUERY = 'k8s.namespace.name: "e2e-1" AND k8s.pod.name:~"^job-workers-0-1-"'
"""As konduktor sends it (konduktor/utils/log_utils.py, tail_vicky_logs)."""
STORED = 'kubernetes.pod_namespace: "e2e-1" AND kubernetes.pod_name:~"^job-workers-0-1-"'


@pytest.mark.parametrize(
    ("query", "stored"),
    [
        (QUERY, STORED),
        (f"{QUERY} | last 5 by (_time)", f"{STORED} | last 5 by (_time)"),
        (f"{QUERY} | sort by (_time)", f"{STORED} | sort by (_time)"),
        ('_msg:"k8s.pod.name: a" OR k8s.pod.name:b', '_msg:"k8s.pod.name: a" OR kubernetes.pod_name:b'),
        (r'"a \" k8s.pod.name:" k8s.pod.name:b', r'"a \" k8s.pod.name:" kubernetes.pod_name:b'),
        ("my.k8s.pod.name:b", "my.k8s.pod.name:b"),
        ("k8s.pod.names:b k8s.pod.name", "k8s.pod.names:b k8s.pod.name"),
    ],
)
def test_field_names_outside_quotes_become_those_of_vlagent(query: str, stored: str) -> None:
    assert konduktor_fields.with_stored_names(query) == stored


def row(**fields: str) -> bytes:
    return json.dumps({"_time": "t", "kubernetes.pod_name": "p", **fields}).encode() + b"\n"


def test_a_json_line_without_message_keeps_its_fields() -> None:
    missing = "missing _msg field; see VictoriaLogs' documentation"
    read = json.loads(konduktor_fields.with_message(row(_msg=missing, loss="0.5", step="1")))
    assert json.loads(read["_msg"]) == {"loss": "0.5", "step": "1"}


@pytest.mark.parametrize(
    "line",
    [
        row(_msg="hello"),
        row(_msg="a word on the missing _msg field"),
        b"not JSON: missing _msg field\n",
        b"[]\n",
    ],
)
def test_every_other_line_stays_as_it_is(line: bytes) -> None:
    assert konduktor_fields.with_message(line) == line


def test_published_images_come_from_the_lock(tmp_path: Path) -> None:
    context = RunContext(settings=Settings(cache_dir=tmp_path), progress=print)
    images = victoria_logs_images(context, published=True)
    assert (images.server, images.agent, images.local) == (
        f"docker.io/victoriametrics/victoria-logs:{pinned('logs', 'victoria_logs')}",
        f"docker.io/victoriametrics/vlagent:{pinned('logs', 'victoria_logs')}",
        False,
    )
    assert list(tmp_path.iterdir()) == []


def test_without_victoria_logs_the_proxy_answers_502(unused_tcp_port: int) -> None:
    konduktor_fields.Proxy.upstream = f"127.0.0.1:{unused_tcp_port}"
    with ThreadingHTTPServer(("127.0.0.1", 0), konduktor_fields.Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/select/logsql/query"
            reply = httpx.get(url, params={"query": QUERY}, trust_env=False)
        finally:
            server.shutdown()
    assert reply.status_code == 502
    assert "VictoriaLogs: ConnectionRefusedError" in reply.text


def test_the_objects_use_the_given_images_and_konduktors_names() -> None:
    documents = victoria_logs.manifest(LogImages("server:1", "agent:1", local=True), "tracker:1")
    by_kind = {document["kind"]: document for document in documents}
    pods = {kind: by_kind[kind]["spec"]["template"]["spec"] for kind in ("Deployment", "DaemonSet")}
    images = {kind: [each["image"] for each in pod["containers"]] for kind, pod in pods.items()}
    assert images == {"Deployment": ["server:1", "tracker:1"], "DaemonSet": ["agent:1"]}
    service = by_kind["Service"]
    assert service["metadata"] == {"name": "vls-victoria-logs-single-server", "namespace": "victoria-logs"}
    assert 9428 in [port["port"] for port in service["spec"]["ports"]]
    assert by_kind["ClusterRole"]["metadata"]["name"] == victoria_logs.ROLE
    compile(by_kind["ConfigMap"]["data"]["konduktor_fields.py"], "konduktor_fields.py", "exec")
