"""A namespace with jobs that the harness did not launch, and an account that may only attach to them."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import yaml

from harness.attach.find import Target
from harness.attach.resources import ROLE, TRACKER_ROLE, roles
from harness.attach.session import Options, attach
from harness.context import RunContext
from harness.core.kubernetes import Kube, Object
from harness.core.service_proxy import service_of
from harness.fixtures.plugin import progress
from harness.launch import recorder_policy as policy
from harness.provision.controllers import tracker
from harness.report.finalize import Outcome
from harness.settings import Settings

PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
for step in range(int(os.environ.get("STEPS", "3"))):
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    print(f"step {step} sum {value.item():g}", flush=True)
    if os.environ.get("FAILING_RANK") == str(rank) and step == 1:
        raise ValueError(f"rank {rank} has a bad batch")
    if os.environ.get("HANGING_RANK") == str(rank) and step == 1:
        time.sleep(3600)
    time.sleep(0.2)
dist.destroy_process_group()
"""
"""Ranks that meet and add. They do not log with Pluto."""
LOGGING = """
import os, signal, time
import pluto
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
run = pluto.init(name=f"node{rank}")
for step in range(1200):
    run.log({f"loss/{rank}": 1 / (step + 1), f"rate/{rank}": step * 0.5}, step=step)
manager = run._sync_manager
while manager.store.get_pending_count(manager.run_id):
    time.sleep(0.1)
if os.environ.get("LOSING_RANK") == str(rank):
    os.kill(manager._process.pid, signal.SIGKILL)
    run.log({f"loss/{rank}": 7.5}, step=1200)
run.finish()
dist.barrier()
dist.destroy_process_group()
"""
"""Ranks that log with Pluto. Under torchrun, its client does not wait until it has sent its points. The rank
LOSING_RANK loses its last point, because its uploader is gone.
"""
SECRET = "pluto"
"""The Secret with the key of the tracker in the namespace of the jobs."""
INDEX = {"Job": "$JOB_COMPLETION_INDEX", "StatefulSet": "${HOSTNAME##*-}"}


def pods(image: str, host: str, index: str, **env: str) -> Object:
    """Return the spec of pods whose ranks run PROGRAM. `host` is the name of the first pod."""
    command = (
        'printf %s "$PROGRAM" >/tmp/train.py\n'
        f"exec torchrun --nnodes=2 --nproc-per-node=1 --node-rank={index} "
        f"--master-addr={host} --master-port=29500 /tmp/train.py"
    )
    variables: list[Object] = [
        {"name": name, "value": value} for name, value in {"PROGRAM": PROGRAM, **env}.items()
    ]
    if "PLUTO_RUN_ID" in env:
        key = {"secretKeyRef": {"name": SECRET, "key": "api-key"}}
        variables.append({"name": "PLUTO_API_KEY", "valueFrom": key})
    resources = {"requests": {"cpu": "100m", "memory": "256Mi"}}
    return {
        "terminationGracePeriodSeconds": 2,
        "containers": [
            {
                "name": "main",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["bash", "-c", command],
                "env": variables,
                "resources": resources,
            }
        ],
    }


class ForeignJobs:
    """Creates jobs as other tools do, and attaches to them with the rights of `--print-rbac` alone."""

    def __init__(self, kube: Kube, namespace: str, image: str, folder: Path, settings: Settings) -> None:
        self.kube, self.namespace, self.image = kube, namespace, image
        kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        self.settings = settings.model_copy(update={"kubeconfig": self._account(folder), "context": "own"})

    def remove(self) -> None:
        self.kube.delete("v1", "Namespace", self.namespace)
        for kind in ("RoleBinding", "Role"):
            self.kube.delete("rbac.authorization.k8s.io/v1", kind, TRACKER_ROLE, tracker.NAMESPACE)
        self.kube.delete("rbac.authorization.k8s.io/v1", "ClusterRole", "harness-attach")
        self.kube.delete("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", self.namespace)

    def apply(self, api: str, kind: str, name: str, **fields: Any) -> None:
        metadata = {"name": name, "namespace": self.namespace}
        self.kube.apply({"apiVersion": api, "kind": kind, "metadata": metadata, **fields})

    def service(self, name: str) -> None:
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": name}}
        self.apply("v1", "Service", name, spec={**spec, "ports": [{"name": "store", "port": 29500}]})

    def job(self, name: str, **env: str) -> None:
        """Create an Indexed Job of two ranks."""
        self.service(name)
        spec = pods(self.image, f"{name}-0.{name}", INDEX["Job"], **env)
        template = {
            "metadata": {"labels": {"app": name}},
            "spec": {**spec, "subdomain": name, "restartPolicy": "Never"},
        }
        job = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 0}
        self.apply("batch/v1", "Job", name, spec={**job, "template": template})

    def logging_job(self, name: str, **env: str) -> None:
        """Create an Indexed Job of two ranks that log with Pluto to the run with the job's name."""
        embedded = tracker.find(self.kube)
        self.apply("v1", "Secret", SECRET, stringData={"api-key": embedded.key, "comment": "of the team"})
        urls = {f"PLUTO_URL_{part}": embedded.url for part in ("APP", "API", "INGEST", "PY")}
        run = {"PLUTO_RUN_ID": f"{self.namespace}-{name}", "PLUTO_PROJECT": "foreign"}
        self.job(name, PROGRAM=LOGGING, **urls, **run, **env)

    def statefulset(self, name: str, **env: str) -> None:
        """Create a StatefulSet of two ranks."""
        self.service(name)
        spec = pods(self.image, f"{name}-0.{name}", INDEX["StatefulSet"], **env)
        template = {"metadata": {"labels": {"app": name}}, "spec": spec}
        selector = {"matchLabels": {"app": name}}
        fields = {"serviceName": name, "replicas": 2, "podManagementPolicy": "Parallel", "selector": selector}
        self.apply("apps/v1", "StatefulSet", name, spec={**fields, "template": template})

    def jobset(self, name: str, **env: str) -> None:
        """Create a JobSet of two ranks, without Kueue."""
        spec = pods(self.image, f"{name}-w-0-0.{name}", INDEX["Job"], **env)
        job = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 0}
        template = {"spec": {**job, "template": {"spec": {**spec, "restartPolicy": "Never"}}}}
        replicated = [{"name": "w", "replicas": 1, "template": template}]
        self.apply("jobset.x-k8s.io/v1alpha2", "JobSet", name, spec={"replicatedJobs": replicated})

    def ended(self, name: str, seconds: float = 120) -> None:
        """Wait for the end of a Job."""

        def unmet(jobs: dict[str, Object]) -> str | None:
            kinds = [c["type"] for c in jobs.get(name, {}).get("status", {}).get("conditions", [])]
            return None if {"Complete", "Failed"} & set(kinds) else f"it is {kinds}"

        self.kube.wait(
            f"the end of Job {name}", "batch/v1", "Job", unmet, seconds=seconds, namespace=self.namespace
        )

    def until_recorded(self) -> None:
        """Wait until the API server applies the policy, which it reads by a watch."""
        container = {"name": "main", "image": "none", "command": ["sh"]}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "probe", "namespace": self.namespace},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
        deadline = time.monotonic() + 20
        while not policy.is_recorded(self.kube.apply(pod, dry_run=True)["spec"]["containers"][0]):
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def attach(self, word: str, **options: Any) -> Outcome:
        context = RunContext(settings=self.settings, progress=progress)
        return attach(Target(word), Options(namespace=self.namespace, **options), context)

    def _account(self, folder: Path) -> Path:
        """Return a kubeconfig with the rights of `harness attach --print-rbac`, and no others.

        The options are --secret and --tracker-url.
        """
        group, name = "rbac.authorization.k8s.io", ROLE
        self.apply("v1", "ServiceAccount", name)
        service = service_of(tracker.URL, self.namespace)
        for document in yaml.safe_load_all(roles(self.namespace, secret=SECRET, service=service)):
            self.kube.apply(document)
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        reference = {"apiGroup": group, "kind": "Role", "name": name}
        self.apply(f"{group}/v1", "RoleBinding", name, roleRef=reference, subjects=[subject])
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": self.namespace},
        }
        self.kube.apply({**binding, "roleRef": {**reference, "kind": "ClusterRole"}, "subjects": [subject]})
        of_tracker = {**binding, "kind": "RoleBinding"}
        of_tracker["metadata"] = {"name": TRACKER_ROLE, "namespace": tracker.NAMESPACE}
        role = {**reference, "name": TRACKER_ROLE}
        self.kube.apply({**of_tracker, "roleRef": role, "subjects": [subject]})
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        accounts = self.kube.resource("v1", "ServiceAccount").subresources["token"]
        token = accounts.create(body=asked, name=name, namespace=self.namespace).status.token
        found = self.kube.configuration
        authority = base64.b64encode(Path(found.ssl_ca_cert).read_bytes()).decode()
        document = {
            "current-context": "own",
            "clusters": [
                {"name": "c", "cluster": {"server": found.host, "certificate-authority-data": authority}}
            ],
            "contexts": [{"name": "own", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": token}}],
        }
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path
