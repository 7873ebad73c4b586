"""The torchrun controller as users have it: its image, by kustomize, in two pods with the rights of its role.

It starts with the CRDs as they were first, with objects in them: so an upgrade is what installs it.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from torchrun_team import Team

from harness.context import RunContext
from harness.core.deadlines import Deadline
from harness.core.kubernetes import Object, condition
from harness.core.kubernetes_retries import pause
from harness.fixtures.plugin import progress
from harness.provision.cluster import Ready
from harness.provision.images.build import build_controller
from harness.provision.images.stack import resolve
from harness.settings import Settings
from harness.torchrun_controller.api import crd_generator, names
from harness.torchrun_controller.objects import manifests

pytestmark = pytest.mark.controller
MANIFESTS = Path("manifests/torchrun-controller")
FIRST = Path("tests/k8s/files/torchrun-crds-first.yaml")
WHILE = [{"name": "STEPS", "value": "20"}]
UNUSED = {
    ("update", "torchrunjobs/finalizers"): "blockOwnerDeletion, where its admission plugin is on",
    ("update", "torchrunqueues/finalizers"): "the same",
    ("get", "persistentvolumeclaims"): "claims of queues",
    ("get", "torchrunjobs"): "one whose status was refused, because it had changed",
    ("create", "persistentvolumeclaims"): "claims of queues and jobs",
    ("delete", "persistentvolumeclaims"): "the workspace of a job, after its TTL",
    ("get", "events"): "another controller posted it before",
    ("update", "events"): "what happens again counts up",
    ("list", "events"): "why pods are late",
    ("get", "storageclasses"): "storage of queues",
    ("get", "clusterqueues"): "queues with a clusterQueue",
    ("get", "pods/log"): "when a rank last wrote, of a job whose pods are ready for five minutes",
    ("get", "services"): "the etcd of jobs that name none",
    ("create", "services"): "of the pod that holds a job's code",
    ("create", "statefulsets"): "the pod that holds a job's code (test_torchrun_stored_archive.py)",
    ("deletecollection", "statefulsets"): "the same, after the TTL (test_torchrun_stored_archive.py)",
    ("deletecollection", "secrets"): "the code of a job, after its TTL (test_torchrun_stored_archive.py)",
}
"""Rights that this test need not use, and what they are for."""
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@dataclass(frozen=True)
class Installed:
    """The controller in the cluster, in a namespace of its own."""

    team: Team
    namespace: str
    image: str
    overlay: Path
    kubectl: list[str]
    before: list[Samples] = field(default_factory=list)
    """Of the leader that was killed; so is `lines`."""
    lines: list[dict[str, Any]] = field(default_factory=list)

    def apply(self) -> str:
        command = [*self.kubectl, "apply", "--server-side", "--force-conflicts", "-k", str(self.overlay)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    def pods(self) -> dict[str, Object]:
        found = self.team.kube.objects("v1", "Pod", self.namespace)
        return {pod["metadata"]["name"]: pod for pod in found if not pod["metadata"].get("deletionTimestamp")}

    def leader(self) -> str:
        """Return the name of the pod that has the Lease."""
        lease = self.team.kube.get("coordination.k8s.io/v1", "Lease", manifests.NAME, self.namespace)
        assert lease is not None
        return str(lease["spec"]["holderIdentity"]).rpartition("-")[0]

    def until_available(self) -> None:
        def done(found: dict[str, Object]) -> str | None:
            status = found[manifests.NAME].get("status") or {}
            for pod in self.pods().values():
                for container in pod["status"].get("containerStatuses") or []:
                    ended = container.get("lastState", {}).get("terminated")
                    assert not ended, (ended, self.text(pod["metadata"]["name"], previous="true"))
            return None if status.get("availableReplicas") == 2 else f"{status}"

        self.team.kube.wait(
            "both pods of the controller", "apps/v1", "Deployment", done, seconds=90, namespace=self.namespace
        )

    def until_led(self, *, not_by: str) -> str:
        def done(found: dict[str, Object]) -> str | None:
            holder = str(found[manifests.NAME]["spec"]["holderIdentity"]).rpartition("-")[0]
            return None if holder not in ("", not_by) else f"held by {holder}"

        self.team.kube.wait(
            "another leader",
            "coordination.k8s.io/v1",
            "Lease",
            done,
            seconds=60,
            namespace=self.namespace,
        )
        return self.leader()

    def log(self, pod: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text(pod).splitlines()]

    def all_lines(self) -> list[dict[str, Any]]:
        """Return the log of all pods, those of the killed leader too."""
        return [*self.lines, *(line for pod in self.pods() for line in self.log(pod))]

    def text(self, pod: str, **query: str) -> str:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        return self.team.kube.fetch(path, query).read().decode()

    def until_counted(self, sample: tuple[str, Any]) -> tuple[str, dict[str, Samples]]:
        """Return the leader, and what each pod has, once the leader has the sample: a new one has none."""
        deadline = Deadline.after(60)
        while True:
            leader, found = self.leader(), {pod: self.scraped(pod) for pod in self.pods()}
            if sample in found.get(leader, {}):
                return leader, found
            assert not deadline.passed, (leader, sorted(map(str, found.get(leader, {}))))
            pause(deadline)

    def scraped(self, pod: str) -> Samples:
        """Return sample → value, of /metrics through the API server."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}:{manifests.PORT}/proxy/metrics"
        text = self.team.kube.fetch(path).read().decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def overlay(folder: Path, image: str, namespace: str) -> Path:
    """Return a kustomization as the docs have it: another namespace, another image."""
    shutil.copytree(MANIFESTS, folder / "base")
    name, _, tag = image.rpartition(":")
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": ["../base"],
        "images": [{"name": manifests.IMAGE.partition(":")[0], "newName": name, "newTag": tag}],
    }
    (folder / "mine").mkdir()
    (folder / "mine" / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return folder / "mine"


@pytest.fixture(scope="module")
def installed(
    cluster: Ready, harness_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    """Objects under the first CRDs, then the controller's own pods by kustomize."""
    context = RunContext(settings=harness_settings, progress=progress)
    image = build_controller(resolve(context), context).tag
    cluster.cluster.provide_image(image, context)
    team = Team(cluster.kube, f"torchrun-{secrets.token_hex(3)}", cluster.worker.tag)
    namespace = f"{team.namespace}-controller"
    kubectl = [harness_settings.kubectl_bin, "--kubeconfig", str(cluster.cluster.kubeconfig)]
    found = Installed(
        team, namespace, image, overlay(tmp_path_factory.mktemp("kustomize"), image, namespace), kubectl
    )
    team.prepare(list(yaml.safe_load_all(FIRST.read_text())))
    yield found
    team.kube.delete("v1", "Namespace", namespace)
    team.remove()


@dataclass(frozen=True)
class Upgraded:
    """What was there under the first CRDs, and what kubectl said when it applied the newer ones."""

    installed: Installed
    before: dict[str, dict[str, str]]
    """Kind → name → UID."""
    said: str


@pytest.fixture(scope="module")
def upgraded(installed: Installed) -> Upgraded:
    """The newer CRDs and the controller, over jobs and queues of the first ones."""
    team = installed.team
    team.queue(overrides=None)
    setting = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}
    team.queue("beside", resources=[{"name": "setting", "template": setting}], overrides=None)
    team.job("kept", suspend=True, env=WHILE, reliability={"ttlSecondsAfterFinished": 0})
    # A rule that came later refuses this variable.
    team.job("old", suspend=True, env=[{"name": "PET_NNODES", "value": "3"}])
    before = {kind: team.uids(kind) for kind in (names.JOB_KIND, names.QUEUE_KIND)}
    output = installed.apply()
    team.until_established()
    team.queue()  # its owner lists the ConfigMap that its jobs mount
    return Upgraded(installed, before, output)


@pytest.fixture(scope="module")
def ran(upgraded: Upgraded) -> Installed:
    """A job has run. The pod that led was killed meanwhile; what it counted and wrote is kept."""
    installed, team = upgraded.installed, upgraded.installed.team
    installed.until_available()
    killed = installed.leader()
    assert set(installed.pods()) > {killed}
    team.change("kept", suspend=False)
    running = team.until("kept", "Running")
    team.events("kept", until="Started")
    installed.before.append(installed.scraped(killed))
    installed.lines.extend(installed.log(killed))
    now = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    team.kube.resource("v1", "Pod").delete(name=killed, namespace=installed.namespace, body=now)
    installed.until_led(not_by=killed)
    ended = team.until("kept", "Succeeded")
    assert ended["status"]["jobID"] == running["status"]["jobID"]
    team.events("kept", until="CleanedUp")
    return installed


def test_upgrade_keeps_objects(upgraded: Upgraded) -> None:
    """Contract: newer CRDs over older ones, by server-side apply: every object is there, with its UID, and
    one that a new rule would refuse can still be changed elsewhere.
    """
    installed, team = upgraded.installed, upgraded.installed.team
    applied = "customresourcedefinition.apiextensions.k8s.io/torchrunjobs.torchrun.ai serverside-applied"
    assert applied in upgraded.said
    assert {kind: team.uids(kind) for kind in upgraded.before} == upgraded.before
    for definition in crd_generator.definitions():
        there = team.kube.get(definition["apiVersion"], definition["kind"], definition["metadata"]["name"])
        assert there is not None
        assert there["status"]["storedVersions"] == [names.VERSION]
        assert there["spec"]["versions"][0]["schema"] == definition["spec"]["versions"][0]["schema"]
    changed = team.change("old", cancel=True)
    assert changed["spec"]["env"][0]["name"] == "PET_NNODES"
    installed.until_available()
    # The controller has taken over what was there before it.
    assert condition(team.until("old", "Cancelled"), "Failed")["reason"] == "Cancelled"


def reasons_of(event: Object) -> set[str]:
    """Return the reasons of the transitions that an Event reports: those found together share one Event."""
    return {event["reason"], *re.findall(r"(?:^|; )([A-Z][A-Za-z]+): ", event["message"])}


def test_each_transition_has_one_event(ran: Installed) -> None:
    """Contract: a job that two controllers saw has each Event once; a refusal warns, with its cause."""
    team = ran.team
    events = team.events("kept", until="CleanedUp")
    assert {event["type"] for event in events} == {"Normal"}
    counts = Counter(
        reason for event in events for _ in range(event["count"]) for reason in reasons_of(event)
    )
    assert counts.pop("Queued", 1) == 1  # Kueue may admit it before it gives a reason to wait
    once = ("Suspended", "Resumed", "Admitted", "Started", "Completed", "CleanedUp")
    assert counts == dict.fromkeys(once, 1)
    team.job("wrong", numGPUs=8)
    team.until("wrong", "Failed")
    [event] = team.events("wrong", until="Refused")
    assert event["type"] == "Warning"
    assert event["message"].startswith("NoGPUs: ")
    assert {event["reason"] for event in team.events("cpu", until="Ready")} == {"Ready"}


def test_metrics_and_log(ran: Installed) -> None:
    """Contract: metrics say what happened, and every line of the log is a JSON object."""
    ran.until_available()
    in_team = ("namespace", ran.team.namespace)
    succeeded = "torchrun_jobs", (in_team, ("phase", "Succeeded"))
    leader, scraped = ran.until_counted(succeeded)
    assert [pod for pod in scraped if scraped[pod]["torchrun_leader", ()]] == [leader]
    found = scraped[leader]
    assert found[succeeded] == 1
    assert found["torchrun_reconcile_seconds_count", (("kind", "job"),)] > 0
    [before] = ran.before
    assert before["torchrun_queue_wait_seconds_count", (in_team, ("queue", "cpu"))] == 1
    assert max(each["process_resident_memory_bytes", ()] for each in (found, before)) < 256 * 2**20
    [build] = [dict(labels) for name, labels in found if name == "torchrun_build_info"]
    assert build["image"] == ran.image
    uid = ran.team.uids(names.JOB_KIND)["kept"]
    of_the_job = [line for line in ran.all_lines() if line.get("job") == "kept"]
    assert of_the_job
    assert all(line["uid"] == uid and line["namespace"] == ran.team.namespace for line in of_the_job)


def test_role_is_enough_and_least(ran: Installed) -> None:
    """Contract: the API server refused nothing, and no right is there that nothing uses."""
    lines = [line for line in ran.all_lines() if line["logger"].startswith("harness")]
    assert lines
    assert not [line for line in lines if "orbidden" in line["message"] or line["level"] == "error"]
    asked = {
        (dict(labels)["verb"], dict(labels)["resource"], dict(labels)["code"])
        for samples in [*ran.before, *(ran.scraped(pod) for pod in ran.pods())]
        for name, labels in samples
        if name == "torchrun_api_requests_total"
    }
    assert not [request for request in asked if request[2] in ("401", "403")]
    used = {request[:2] for request in asked}
    granted = {
        (verb, resource)
        for rule in [*manifests.RULES, *manifests.LEASE_RULES]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted - used <= UNUSED.keys(), granted - used - UNUSED.keys()
