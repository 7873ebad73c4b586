"""What is applied when: no webhook before the pods that it would stop, no certificate twice."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.provision.controllers import install
from harness.provision.controllers.install import DEPLOYMENT, WEBHOOKS

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
    others = [{"kind": kind, "metadata": {"name": "x"}} for kind in (*WEBHOOKS, "Service")] + [deployment()]
    path = tmp_path / "jobset.yaml"
    path.write_text(yaml.safe_dump_all([*others, SECRET]))
    return path


def test_deployments_and_webhooks_have_their_own_time(manifest: Path) -> None:
    cluster = Cluster()
    install.prepare(cluster, manifest)  # type: ignore[arg-type]
    assert cluster.kinds == ["Service", "Secret"]
    install.deploy(cluster, manifest)  # type: ignore[arg-type]
    assert cluster.kinds == ["Service", "Secret", DEPLOYMENT]


def test_an_empty_secret_gets_certificates(manifest: Path) -> None:
    cluster = Cluster(Secret=SECRET)
    install.prepare(cluster, manifest)  # type: ignore[arg-type]
    assert set(cluster.applied[-1]["data"]) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}


def test_certificates_that_are_there_stay(manifest: Path) -> None:
    """Also when an installation is repeated. To apply the Secret without them would remove them."""
    cluster = Cluster(Secret={**SECRET, "data": {"tls.crt": "x"}})
    install.prepare(cluster, manifest)  # type: ignore[arg-type]
    assert "Secret" not in cluster.kinds


def test_pods_of_controllers_begin_where_a_node_is_ready_first() -> None:
    """On the control plane, in spite of its taint, and asked every second. The rest is as published."""
    published = deployment()
    spec = install.at_once(published)["spec"]["template"]["spec"]
    assert published == deployment()
    assert list(spec["nodeSelector"]) == [spec["tolerations"][0]["key"]] == [install.CONTROL_PLANE]
    assert spec["tolerations"][0]["effect"] == "NoSchedule"
    probe = spec["containers"][0]["readinessProbe"]
    assert (probe["initialDelaySeconds"], probe["periodSeconds"]) == (0, 1)
    assert probe["httpGet"] == {"path": "/readyz", "port": 8081}
    assert spec["containers"][1] == {"name": "beside"}
