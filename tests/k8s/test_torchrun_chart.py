"""The controller by its Helm chart: an older release, its upgrade, its removal, and the next installation.

Meanwhile Prometheus scrapes its pods, and the queries of the Grafana dashboard run.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from torchrun_team import Team

from harness.context import RunContext
from harness.core.errors import HarnessError
from harness.core.kubernetes import Object
from harness.fixtures.plugin import progress
from harness.provision.cluster import Ready
from harness.provision.images.build import build_controller
from harness.provision.images.stack import resolve
from harness.settings import Settings
from harness.torchrun_controller.api import crd_generator, names
from harness.torchrun_controller.objects import dashboard, manifests
from tests import tools
from tests.prometheus_server import Prometheus, as_run

pytestmark = [pytest.mark.controller, pytest.mark.nightly]
CHART = Path("manifests/torchrun-chart")
KINDS = (names.JOB_KIND, names.QUEUE_KIND)
RELEASE = "torchrun"
SECONDS = 240
WITHOUT_ERRORS_EMPTY = {
    "Failed reconciles",
    "Refused requests to the API server",
    "Wait for admission, 95th percentile",  # a histogram that begins between two scrapes has no rate
}


@dataclass(frozen=True)
class Chart:
    """A release in a namespace of its own."""

    team: Team
    namespace: str
    image: str

    def helm(self, *words: str) -> str:
        """Return what Helm prints. Raises HarnessError if it fails."""
        command = [tools.helm(), *words, "--namespace", self.namespace, "--kubeconfig"]
        command.append(str(self.team.kube.kubeconfig))
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode:
            raise HarnessError(f"helm {words[0]}: {done.stderr}")
        return done.stdout

    def release(self, verb: str, folder: Path, *words: str) -> str:
        """Install or upgrade the release, and wait until its pods are ready."""
        repository, _, tag = self.image.rpartition(":")
        image = ("--set", f"image.repository={repository}", "--set-string", f"image.tag={tag}")
        return self.helm(verb, RELEASE, str(folder), *image, "--wait", "--timeout=180s", *words)

    def scraped(self, folder: Path) -> list[dict[str, Any]]:
        """Return how Prometheus scrapes the controller's pods from outside, through the API server.

        The client's certificates are put into the folder: this process alone can read where they are.
        """
        found = self.team.kube.configuration
        tls = {"ca_file": found.ssl_ca_cert, "cert_file": found.cert_file, "key_file": found.key_file}
        for name, path in tls.items():
            (folder / name).touch(0o600)
            (folder / name).write_bytes(Path(path).read_bytes())
        pods = self.team.kube.objects("v1", "Pod", self.namespace)
        return [
            {
                "job_name": pod["metadata"]["name"],
                "scheme": "https",
                "metrics_path": f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}:"
                f"{manifests.PORT}/proxy/metrics",
                "tls_config": {name: str(folder / name) for name in tls},
                "static_configs": [{"targets": [found.host.removeprefix("https://")]}],
            }
            for pod in pods
        ]

    def deployment(self) -> Object | None:
        return self.team.kube.get("apps/v1", "Deployment", manifests.NAME, self.namespace)

    def schema(self) -> object:
        """Return the schema of a TorchrunJob in the cluster."""
        there = self.team.kube.get(
            "apiextensions.k8s.io/v1", "CustomResourceDefinition", f"torchrunjobs.{names.GROUP}"
        )
        assert there is not None
        return there["spec"]["versions"][0]["schema"]

    def uids(self) -> dict[str, dict[str, str]]:
        return {kind: self.team.uids(kind) for kind in KINDS}


@pytest.fixture
def chart(cluster: Ready, harness_settings: Settings) -> Iterator[Chart]:
    context = RunContext(settings=harness_settings, progress=progress)
    image = build_controller(resolve(context), context).tag
    cluster.cluster.provide_image(image, context)
    team = Team(cluster.kube, f"torchrun-{secrets.token_hex(3)}", cluster.worker.tag)
    made = Chart(team, f"{team.namespace}-helm", image)
    team.prepare()
    yield made
    team.remove()
    team.kube.delete("v1", "Namespace", made.namespace)


def older(folder: Path) -> Path:
    """Return a copy of the chart as it may have been: CRDs without a description, one replica."""
    shutil.copytree(CHART, folder)
    crds = folder / "templates/crds.yaml"
    first, *lines, last = [line for line in crds.read_text().splitlines() if not line.startswith("#")]
    definitions = [*yaml.safe_load_all("\n".join(lines))]
    for definition in definitions:
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "older"
    crds.write_text(f"{first}\n{yaml.safe_dump_all(definitions)}\n{last}\n")
    values = yaml.safe_load((folder / "values.yaml").read_text())
    (folder / "values.yaml").write_text(yaml.safe_dump({**values, "replicas": 1}))
    return folder


def test_install_upgrade_and_uninstall(chart: Chart, tmp_path: Path) -> None:
    """Contract: the chart takes over what kubectl applied; a job runs; an upgrade changes the CRDs and keeps
    every object; after an uninstall the CRDs, jobs and queues are still there, and the next release has them.
    """
    team, newest = chart.team, crd_generator.definitions()[1]["spec"]["versions"][0]["schema"]
    take_over = ("--create-namespace", "--take-ownership")
    chart.release("install", older(tmp_path / "older"), *take_over)
    assert "older" in str(chart.schema())
    team.queue()
    team.job("one")
    team.until("one", "Succeeded")
    before = chart.uids()
    chart.release("upgrade", CHART)
    assert chart.schema() == newest
    assert chart.uids() == before
    deployment = chart.deployment()
    assert deployment is not None
    assert deployment["status"]["availableReplicas"] == 2
    with Prometheus(tmp_path, chart.scraped(tmp_path)) as prometheus:
        assert prometheus.until("sum(torchrun_leader)", least=1) == [({}, 1)]
        team.job("scraped")
        team.until("scraped", "Succeeded")
        prometheus.until(as_run(dashboard.PANELS[0].query, team.namespace), least=2)
        for panel in dashboard.PANELS:
            if panel.title not in WITHOUT_ERRORS_EMPTY:
                prometheus.until(as_run(panel.query))
            prometheus.query(as_run(panel.query))
    with pytest.raises(HarnessError, match="gang"):
        chart.release("upgrade", CHART, "--set", "gang=volcano")
    before = chart.uids()
    kept = chart.helm("uninstall", RELEASE, "--wait")
    assert "torchrunjobs.torchrun.ai" in kept
    assert chart.deployment() is None
    assert team.kube.get("rbac.authorization.k8s.io/v1", "ClusterRole", manifests.NAME) is None
    assert (chart.schema(), chart.uids()) == (newest, before)
    chart.release("install", CHART)
    team.job("two")
    team.until("two", "Succeeded")
    chart.helm("uninstall", RELEASE, "--wait")
