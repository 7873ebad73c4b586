"""A namespace for TorchrunJobs on a real cluster, and a controller as a process beside the cluster."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harness.core.deadlines import Deadline
from harness.core.kubernetes import Kube, Object, condition
from harness.core.kubernetes_retries import pause
from harness.provision.controllers import queues
from harness.torchrun_controller.api import crd_generator, names
from harness.torchrun_controller.objects import manifests

PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
failing = os.environ.get("FAILING_RANK")
for step in range(int(os.environ.get("STEPS", "1"))):
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    assert value.item() == size * (size + 1) / 2, value
    if failing == str(rank):
        sys.exit(3)
    time.sleep(0.2)
print(f"rank {rank} of {size}: sum {value.item():g}", flush=True)
dist.destroy_process_group()
"""
"""Ranks that meet and add. STEPS is how long they take; the rank FAILING_RANK exits with code 3."""
CODE = {
    "additionalVolumes": [{"name": "code", "configMap": {"name": "code"}}],
    "additionalMounts": [{"name": "code", "mountPath": "/code"}],
}
LISTED = {"configMaps": ["code"]}
"""What a queue permits its jobs so that they can mount CODE."""
ENDED_SECONDS = 300.0


def preempting(name: str, namespace: str, **quota: str) -> Object:
    """Return a ClusterQueue with this quota, in which a higher priority takes what a lower one has. It is
    open to TorchrunQueues of the namespace.
    """
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    flavors = [{"name": queues.FLAVOR, "resources": resources}]
    return {
        "apiVersion": queues.API,
        "kind": "ClusterQueue",
        "metadata": {"name": name, "annotations": {names.NAMESPACES_ANNOTATION: namespace}},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": [*quota], "flavors": flavors}],
            "preemption": {"withinClusterQueue": "LowerPriority"},
        },
    }


@dataclass
class Controller:
    """A controller of this source tree, outside of the cluster, for one namespace."""

    kubeconfig: Path
    namespace: str
    log: Path
    port: int = 0
    """The port of its metrics. 0 means none."""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        command = [
            *(sys.executable, "-m", "harness.torchrun_controller", "--kubeconfig", str(self.kubeconfig)),
            *("--namespace", self.namespace, "--port", str(self.port)),
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))

    def kill(self) -> None:
        """End it as a lost machine does: without a word."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(timeout=30)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Start it again when it ends, as its Deployment does: without an API server it keeps no Lease,
        and ends.
        """
        over = threading.Event()

        def keep() -> None:
            while not over.wait(1):
                if self._process is not None and self._process.poll() is not None:
                    self.start()

        keeper = threading.Thread(target=keep)
        keeper.start()
        try:
            yield
        finally:
            over.set()
            keeper.join()

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=60)


@dataclass(frozen=True)
class Team:
    """One namespace of a cluster."""

    kube: Kube
    namespace: str
    image: str

    def prepare(self, definitions: list[Object] | None = None) -> None:
        """Install the CRDs, and create the namespace with the program of its jobs."""
        for definition in definitions or crd_generator.definitions():
            self.kube.apply(definition)
        self.until_established()
        self.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        self._apply("v1", "ConfigMap", "code", data={"add.py": PROGRAM})

    def until_established(self) -> None:
        """Wait until the API server serves the CRDs as they are now."""
        self.kube.wait(
            "the CRDs", "apiextensions.k8s.io/v1", "CustomResourceDefinition", _established, seconds=30
        )

    def account(self, folder: Path) -> Path:
        """Return a kubeconfig with the rights of the controller's manifests, and no others.

        A controller in pods of its own, of tests before, goes: it would hold the Lease.
        """
        self.kube.delete("apps/v1", "Deployment", manifests.NAME, manifests.NAMESPACE)
        self.kube.wait(
            "no other controller",
            "v1",
            "Pod",
            lambda pods: ", ".join(pods) or None,
            seconds=60,
            namespace=manifests.NAMESPACE,
        )
        for document in manifests.documents():
            if document["kind"] != "Deployment":
                self.kube.apply(document)
        (folder / "token").write_text(self._token("first"))
        return self._kubeconfig(folder, manifests.NAME, "token")

    def user(self, folder: Path, name: str, *roles: str) -> Kube:
        """Return a client of a new account that has these ClusterRoles in the namespace, and nothing else."""
        self._apply("v1", "ServiceAccount", name)
        group = "rbac.authorization.k8s.io"
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        for role in roles:
            reference = {"apiGroup": group, "kind": "ClusterRole", "name": role}
            self._apply(f"{group}/v1", "RoleBinding", f"{name}-{role}", roleRef=reference, subjects=[subject])
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        accounts = self.kube.resource("v1", "ServiceAccount").subresources["token"]
        token = accounts.create(body=asked, name=name, namespace=self.namespace).status.token
        (folder / f"{name}.token").write_text(token)
        return Kube(self._kubeconfig(folder, name, f"{name}.token"))

    def _kubeconfig(self, folder: Path, name: str, token: str) -> Path:
        """Write a kubeconfig for an account whose token is in a file of this name, and return its path."""
        found = self.kube.configuration
        authority = base64.b64encode(Path(found.ssl_ca_cert).read_bytes()).decode()
        server = {"server": found.host, "certificate-authority-data": authority}
        document = {
            "current-context": "own",
            "contexts": [{"name": "own", "context": {"cluster": "kind", "user": name}}],
            "clusters": [{"name": "kind", "cluster": server}],
            "users": [{"name": name, "user": {"tokenFile": token}}],
        }
        path = folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    def _token(self, bound: str) -> str:
        """Return a token of the controller's account that ends with the Secret it is bound to."""
        there = {"name": bound, "namespace": manifests.NAMESPACE}
        secret = self.kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": there})
        reference = {"apiVersion": "v1", "kind": "Secret", "name": bound, "uid": secret["metadata"]["uid"]}
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"boundObjectRef": reference},
        }
        accounts = self.kube.resource("v1", "ServiceAccount")
        response = accounts.subresources["token"].create(
            body=asked, name=manifests.NAME, namespace=manifests.NAMESPACE
        )
        return str(response.status.token)

    def renew_token(self, path: Path) -> None:
        """Put another token there, as the kubelet does, and wait until the API server refuses the old one."""
        old = path.read_text()
        new = path.with_name("token.new")
        new.write_text(self._token("second"))
        new.rename(path)
        self.kube.delete("v1", "Secret", "first", manifests.NAMESPACE)
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": old}}
        resource = self.kube.resource("authentication.k8s.io/v1", "TokenReview")
        deadline = Deadline.after(60)
        while resource.create(body=review).to_dict()["status"].get("authenticated"):
            assert not deadline.passed, "the old token is still taken"
            pause(deadline)

    def holder(self) -> str:
        """Return who has the Lease."""
        lease = self.kube.get("coordination.k8s.io/v1", "Lease", manifests.NAME, manifests.NAMESPACE)
        assert lease is not None
        return str(lease["spec"]["holderIdentity"])

    def until_queue_ready(self, name: str) -> None:
        def done(found: dict[str, Object]) -> str | None:
            ready = condition(found.get(name, {}), "Ready")
            return None if ready.get("status") == "True" else str(ready)

        self.kube.wait(
            f"queue {name}", names.API, names.QUEUE_KIND, done, seconds=60, namespace=self.namespace
        )

    def remove(self) -> None:
        """Delete the namespace and the controller's, and wait until nothing of the first is left."""
        self.kube.delete("v1", "Namespace", self.namespace)
        for document in manifests.documents():
            if "namespace" not in document["metadata"]:
                self.kube.delete(document["apiVersion"], document["kind"], document["metadata"]["name"])

        def done(found: dict[str, Object]) -> str | None:
            return f"namespace {self.namespace}" if self.namespace in found else None

        self.kube.wait("the namespace to go", "v1", "Namespace", done, seconds=120)

    def queue(self, name: str = "cpu", **spec: Any) -> Object:
        """Apply a queue of small CPU nodes with the worker image, and these fields instead. None leaves a
        field out.
        """
        usual = {
            "image": self.image,
            "nodeResources": {"cpus": "250m", "memory": "512Mi"},
            "overrides": LISTED,
        }
        fields = {field: value for field, value in {**usual, **spec}.items() if value is not None}
        return self._apply(names.API, names.QUEUE_KIND, name, spec=fields)

    def job(self, name: str, **spec: Any) -> Object:
        """Apply a job of two ranks that add, and these fields instead. None leaves a field out."""
        usual = {"jobQueue": "cpu", "command": "python /code/add.py", "numNodes": 2, "volumes": CODE}
        fields = {field: value for field, value in {**usual, **spec}.items() if value is not None}
        return self._apply(names.API, names.JOB_KIND, name, spec=fields)

    def _apply(self, api: str, kind: str, name: str, **parts: Any) -> Object:
        metadata = {"name": name, "namespace": self.namespace}
        return self.kube.apply({"apiVersion": api, "kind": kind, "metadata": metadata, **parts})

    def change(self, name: str, **spec: Any) -> Object:
        """Merge these fields into a job's spec, and return the job."""
        resource = self.kube.resource(names.API, names.JOB_KIND)
        changed = resource.patch(
            name=name,
            namespace=self.namespace,
            body={"spec": spec},
            content_type="application/merge-patch+json",
        )
        return dict(changed.to_dict())

    def until_condition(self, name: str, kind: str, reason: str) -> None:
        """Wait until a condition of a job is True for this reason."""

        def done(jobs: dict[str, Object]) -> str | None:
            seen = condition(jobs.get(name) or {}, kind)
            return None if (seen.get("status"), seen.get("reason")) == ("True", reason) else str(seen)

        self.kube.wait(
            f"{name} {kind}", names.API, names.JOB_KIND, done, seconds=60, namespace=self.namespace
        )

    def until(self, name: str, phase: str, seconds: float = ENDED_SECONDS) -> Object:
        """Wait until a job is in this phase, and return it. A job that ended otherwise ends the wait."""
        over = {"Succeeded", "Failed", "TimedOut", "Cancelled"} - {phase}
        last: Object = {}

        def done(jobs: dict[str, Object]) -> str | None:
            last.update(jobs.get(name) or {})
            status = last.get("status") or {}
            assert status.get("phase") not in over, status
            return None if status.get("phase") == phase else f"{name}: {status}"

        self.kube.wait(
            f"{name} {phase}", names.API, names.JOB_KIND, done, seconds=seconds, namespace=self.namespace
        )
        return last

    def until_status(self, name: str, awaited: str, holds: Any, seconds: float = ENDED_SECONDS) -> Object:
        """Wait until `holds(job)`, and return the job."""
        last: Object = {}

        def done(jobs: dict[str, Object]) -> str | None:
            last.update(jobs[name])
            return None if holds(last) else str(last.get("status"))

        self.kube.wait(awaited, names.API, names.JOB_KIND, done, seconds=seconds, namespace=self.namespace)
        return last

    def until_led(self) -> None:
        """Wait until a controller leads. Before that a signal finds it without its handler."""

        def done(leases: dict[str, Object]) -> str | None:
            holders = [lease["spec"].get("holderIdentity") for lease in leases.values()]
            return None if any(holders) else f"holders {holders}"

        self.kube.wait(
            "a leader", "coordination.k8s.io/v1", "Lease", done, seconds=60, namespace=manifests.NAMESPACE
        )

    def jobsets(self) -> list[Object]:
        return self.kube.objects(names.JOBSET_API, "JobSet", self.namespace)

    def uids(self, kind: str) -> dict[str, str]:
        """Return name → UID of the jobs or queues, as soon as they are served: not while a CRD changes."""
        found = self.kube.wait(
            f"{kind} to be served", names.API, kind, lambda _: None, seconds=30, namespace=self.namespace
        )
        return {name: item["metadata"]["uid"] for name, item in found.items()}

    def events(self, name: str, *, until: str) -> list[Object]:
        """Return the Events of a job or queue, as soon as there is one of this reason."""

        def ours(found: dict[str, Object]) -> list[Object]:
            return [
                event
                for event in found.values()
                if event["involvedObject"].get("apiVersion") == names.API
                and event["involvedObject"]["name"] == name
            ]

        def done(found: dict[str, Object]) -> str | None:
            reasons = [event["reason"] for event in ours(found)]
            return None if until in reasons else f"{name}: {reasons}"

        return ours(
            self.kube.wait(f"Event {until}", "v1", "Event", done, seconds=60, namespace=self.namespace)
        )

    def pods(self, name: str) -> list[Object]:
        return self.kube.objects("v1", "Pod", self.namespace, f"{names.JOB_LABEL}={name}")

    def printed(self, name: str) -> list[str]:
        """Return what the ranks of a job printed that met."""
        lines = []
        for pod in self.pods(name):
            path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/log"
            lines += self.kube.fetch(path, {"container": names.TRAINER}).read().decode().splitlines()
        return sorted(line for line in lines if line.startswith("rank "))


@contextmanager
def led(team: Team, folder: Path) -> Iterator[Team]:
    """Run a controller with its own rights for a team's namespace, and remove both at the end."""
    controller = Controller(team.account(folder), team.namespace, folder / "log")
    controller.start()
    try:
        team.until_led()
        yield team
    finally:
        controller.kill()  # test_torchrun_controller.py asks it to end
        print((folder / "log").read_text())
        team.remove()


def _established(found: dict[str, Object]) -> str | None:
    for definition in crd_generator.definitions():
        name = str(definition["metadata"]["name"])
        if condition(found.get(name, {}), "Established").get("status") != "True":
            return name
    return None
