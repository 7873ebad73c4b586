"""What is applied when: no webhook before the pods that it would stop, no certificate twice."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from urllib3.exceptions import HTTPError

from harness.core.errors import HarnessError
from harness.provision.controllers import install
from harness.provision.controllers.ca_bundle import trusting
from harness.provision.controllers.fast_start import DEPLOYMENT, quick
from harness.provision.controllers.install import SERVED, WEBHOOKS

SECRET = {"kind": "Secret", "metadata": {"name": "jobset-webhook-server-cert", "namespace": "jobset-system"}}


class Cluster:
    """Keeps what was applied, in order."""

    def __init__(self, **there: dict[str, Any]) -> None:
        self.applied: list[dict[str, Any]] = []
        self._there = there

    def apply(self, document: dict[str, Any]) -> None:
        self.applied.append(document)

    def get(self, _version: str, kind: str, *_name: str) -> dict[str, Any] | None:
        return self._there.get(kind)

    @property
    def kinds(self) -> list[str]:
        return [each["kind"] for each in self.applied]


def deployment() -> dict[str, Any]:
    """A Deployment as the projects publish them: with a probe, and no place for its pods."""
    probe = {"httpGet": {"path": "/readyz", "port": 8081}, "initialDelaySeconds": 5, "periodSeconds": 10}
    containers = [{"name": "manager", "readinessProbe": probe}, {"name": "beside"}]
    template = {"spec": {"containers": containers}}
    return {"kind": DEPLOYMENT, "metadata": {"name": "x"}, "spec": {"template": template}}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    others = [{"kind": kind, "metadata": {"name": "x"}} for kind in (*SERVED, "Service")] + [deployment()]
    path = tmp_path / "jobset.yaml"
    path.write_text(yaml.safe_dump_all([*others, SECRET]))
    return path


def test_deployments_and_webhooks_have_their_own_time(manifest: Path) -> None:
    cluster = Cluster()
    install.prepare(cluster, [manifest])  # type: ignore[arg-type]
    assert cluster.kinds == ["Secret", "Service"]
    install.deploy(cluster, [manifest])  # type: ignore[arg-type]
    assert cluster.kinds == ["Secret", "Service", DEPLOYMENT]


def test_an_empty_secret_gets_certificates(manifest: Path) -> None:
    cluster = Cluster(Secret=SECRET)
    install.prepare(cluster, [manifest])  # type: ignore[arg-type]
    (secret,) = (each for each in cluster.applied if each["kind"] == "Secret")
    assert set(secret["data"]) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}


def test_certificates_that_are_there_stay(manifest: Path) -> None:
    """Also when an installation is repeated. To apply the Secret without them would remove them."""
    cluster = Cluster(Secret={**SECRET, "data": {"tls.crt": "x", "ca.crt": "y"}})
    install.prepare(cluster, [manifest])  # type: ignore[arg-type]
    assert "Secret" not in cluster.kinds


def test_what_names_a_webhook_knows_its_authority(tmp_path: Path) -> None:
    """The one of the Secret, whoever made it. What leads elsewhere stays."""
    own, other = ({"service": {"name": "w", "namespace": name}} for name in ("jobset-system", "other"))
    definition = {
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "x"},
        "spec": {"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": own}}},
    }
    path = tmp_path / "jobset.yaml"
    path.write_text(yaml.safe_dump_all([SECRET, definition]))
    cluster = Cluster(Secret={**SECRET, "data": {"ca.crt": "y"}})
    install.prepare(cluster, [path])  # type: ignore[arg-type]
    assert cluster.applied[-1]["spec"]["conversion"]["webhook"]["clientConfig"] == {**own, "caBundle": "y"}
    webhooks = {"kind": WEBHOOKS[0], "webhooks": [{"clientConfig": own}, {"clientConfig": other}]}
    changed = trusting(webhooks, {"jobset-system": "y"})["webhooks"]
    assert [each["clientConfig"].get("caBundle") for each in changed] == ["y", None]


def test_a_user_s_cluster_gets_what_is_published(manifest: Path) -> None:
    """Its control plane may be nobody's to use, or no node at all. Only `quick` changes anything."""
    cluster = Cluster()
    install.deploy(cluster, [manifest])  # type: ignore[arg-type]
    assert cluster.applied == [deployment()]
    install.deploy(cluster, [manifest], quick)  # type: ignore[arg-type]
    assert cluster.applied[-1] == quick(deployment()) != deployment()


def proving(monkeypatch: pytest.MonkeyPatch, at_once: Exception | None) -> list[str]:
    """Have all that is asked at once raise this, or nothing. Returns what is asked one after the other."""
    careful: list[str] = []

    def run_all(things: object) -> None:
        if at_once is not None:
            raise at_once

    for name in ("check_controllers", "wait_available", "check_serving"):
        monkeypatch.setattr(install, name, lambda *_, name=name, **__: careful.append(name))
    monkeypatch.setattr(install, "run_all", run_all)
    for name in ("checks", "probes"):
        monkeypatch.setattr(install, name, lambda _: [])
    return careful


def test_what_serves_is_proved_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    careful = proving(monkeypatch, None)
    install.recheck_serving(Cluster())  # type: ignore[arg-type]
    assert careful == []


def test_what_does_not_serve_at_once_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a first look that fails decides nothing. What is wrong is waited for or named in order."""
    careful = proving(monkeypatch, HarnessError("no endpoint", cause="controllers.webhook_not_serving"))
    install.recheck_serving(Cluster())  # type: ignore[arg-type]
    assert careful == ["check_controllers", "wait_available", "wait_available", "check_serving"]


def test_a_silent_api_server_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: each request is repeated for 20 s already, so that nothing waits as long again."""
    careful = proving(monkeypatch, HTTPError("no answer"))
    with pytest.raises(HTTPError):
        install.recheck_serving(Cluster())  # type: ignore[arg-type]
    assert careful == []
