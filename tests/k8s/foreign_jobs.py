"""A namespace with jobs that the harness did not launch, and an account that may only attach to them."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import yaml
from kubernetes.client.exceptions import ApiException

from harness.attach.job_lookup import Target
from harness.attach.resources import ROLE, TRACKER_ROLE, cluster_role, roles
from harness.attach.session import Options, attach
from harness.context import Progress, RunContext
from harness.core.deadlines import Deadline
from harness.core.kubernetes import Kube, Object
from harness.core.kubernetes_retries import pause
from harness.core.service_proxy import service_of
from harness.evidence.kubernetes.objects import COMPLETION_INDEX, mapping
from harness.evidence.schema.bundle import Verdict
from harness.fixtures.plugin import progress
from harness.launch import recorder_policy as policy
from harness.launch.konduktor.kubeconfig import for_launch
from harness.launch.labels import QUEUE_LABEL
from harness.provision.controllers import queues, tracker
from harness.provision.konduktor import konduktor_bin
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
    try:
        dist.all_reduce(value)
    except RuntimeError:
        time.sleep(5)
        raise
    print(f"step {step} sum {value.item():g}", flush=True)
    if os.environ.get("FAILING_RANK") == str(rank) and step == 1:
        raise ValueError(f"rank {rank} has a bad batch")
    if os.environ.get("EXITING_RANK") == str(rank) and step == 1:
        sys.exit(3)
    if os.environ.get("GREEDY_RANK") == str(rank) and step == 1:
        kept = b"x" * (4 << 30)
    if os.environ.get("HANGING_RANK") == str(rank) and step == 1:
        time.sleep(3600)
    time.sleep(0.2)
dist.destroy_process_group()
"""
"""Ranks that meet and add. They do not log with Pluto.

A rank that loses its peer fails 5 s after it. If its pod failed first, the Job controller might delete the
peer's pod, and with it the log of the error.
"""
LOGGING = """
import os, signal, time
import pluto
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
run = pluto.init(name=f"node{rank}")
for step in range(0, 1200, 10):
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
ALONE = """
import os, time
import pluto
rank = os.environ["RANK"]
run = pluto.init(name=f"rank{rank}")
for step in range(50):
    run.log({f"loss/{rank}": step * 0.5}, step=step)
manager = run._sync_manager
while manager.store.get_pending_count(manager.run_id):
    time.sleep(0.1)
run.finish()
"""
"""A rank that logs with Pluto, and needs no other rank."""
LONG = (
    LOGGING.replace("range(0, 1200, 10)", "range(0, 12_000, 10)")
    .replace("step=1200", "step=12_500")
    .replace(
        "run = pluto.init",
        """import functools
from _harness_recorder.recorder import digest_recording, point_digests
digest_recording.LINE_SECONDS, digest_recording.Digests = 1.0, functools.partial(point_digests.Digests, 300)
point_digests.MAX_NODES = 4
run = pluto.init""",
    )
)
"""The same in 12 blocks of steps. The recorder's summary has one digest for several blocks."""
ENDS_SECONDS = 300.0
"""Maximum number of seconds for something that a job of a few steps does on a busy machine."""
SECRET = "pluto"
"""The Secret with the key of the tracker in the namespace of the jobs."""
API_KEY = {"name": "PLUTO_API_KEY", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "api-key"}}}
"""The variable with the key, by reference to the Secret."""
KONDUKTOR_RUN = """
set -e
printf %s "$PROGRAM" >/tmp/train.py
torchrun --nnodes=$NUM_NODES --nproc_per_node=1 --node_rank=$RANK \\
  --master_addr=$MASTER_ADDR --master_port=1234 /tmp/train.py
"""
APIS = {
    "Job": "batch/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "TrainJob": "trainer.kubeflow.org/v1alpha1",
    "TorchrunJob": "torchrun.ai/v1alpha1",
    "PyTorchJob": "kubeflow.org/v1",
    "MPIJob": "kubeflow.org/v1",
}
ENDED = {"Complete", "Completed", "Succeeded", "Failed"}
"""Conditions of jobs that have ended."""
INDEX = {"Job": "$JOB_COMPLETION_INDEX", "StatefulSet": "${HOSTNAME##*-}"}


def konduktor_config(*env: Object) -> Object:
    """Return the config of a konduktor user whose pods have these variables."""
    container = {
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "env": list(env),
    }
    return {
        "apt": {"skip": True},
        "logs": {"backend": "victoria", "timeout": 5},
        "kubernetes": {"pod_config": {"spec": {"containers": [container]}}},
    }


Edit = Callable[[Object], None]
"""Changes the spec of the pods of a job."""


def unchanged(spec: Object) -> None:
    pass


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
        variables.append(API_KEY)
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


def with_sidecar(spec: Object) -> None:
    """Put a container without Python before that of the ranks, as a mesh does."""
    own = spec["containers"][0]
    mesh = {"name": "mesh", "image": own["image"], "imagePullPolicy": "IfNotPresent"}
    spec["containers"].insert(0, {**mesh, "command": ["sh", "-c", "rm -f /usr/bin/python3*; sleep 3600"]})


def short(outcome: Outcome) -> tuple[str, str | None, list[int]]:
    """Return the verdict, its cause and its ranks."""
    return outcome.verdict.verdict, outcome.verdict.cause, outcome.verdict.ranks


def passed(verdict: Verdict) -> set[str]:
    """Return the names of the checks that passed."""
    return {check.name for check in verdict.checks if check.result == "PASS"}


class ForeignJobs:
    """Creates jobs as other tools do, and attaches to them with the rights of `--print-rbac` alone."""

    def __init__(
        self, kube: Kube, namespace: str, image: str, folder: Path, settings: Settings, *, probe: bool = False
    ) -> None:
        self.kube, self.namespace, self.image, self.folder = kube, namespace, image, folder
        kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        self.settings = settings.model_copy(
            update={"kubeconfig": self._account(folder, probe), "context": "own"}
        )

    def remove(self) -> None:
        self.kube.delete("v1", "Namespace", self.namespace)
        for kind in ("RoleBinding", "Role"):
            self.kube.delete("rbac.authorization.k8s.io/v1", kind, TRACKER_ROLE, tracker.NAMESPACE)
        self.kube.delete("rbac.authorization.k8s.io/v1", "ClusterRole", cluster_role(self.namespace))
        self.kube.delete("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", self.namespace)

    def apply(
        self, api: str, kind: str, name: str, labels: dict[str, str] | None = None, **fields: Any
    ) -> None:
        metadata = {"name": name, "namespace": self.namespace, "labels": labels or {}}
        self.kube.apply({"apiVersion": api, "kind": kind, "metadata": metadata, **fields})

    def service(self, name: str) -> None:
        spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": name}}
        self.apply("v1", "Service", name, spec={**spec, "ports": [{"name": "store", "port": 29500}]})

    def job(self, name: str, edit: Edit = unchanged, **env: str) -> None:
        """Create an Indexed Job of two ranks. `edit` changes the spec of its pods."""
        self.service(name)
        spec = pods(self.image, f"{name}-0.{name}", INDEX["Job"], **env)
        edit(spec)
        template = {
            "metadata": {"labels": {"app": name}},
            "spec": {**spec, "subdomain": name, "restartPolicy": "Never"},
        }
        job = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 0}
        self.apply("batch/v1", "Job", name, spec={**job, "template": template})

    def many(self, name: str, count: int) -> None:
        """Create an Indexed Job of `count` ranks without a launcher, which log 50 points each."""
        logging = self.logging(name) | {"PROGRAM": ALONE, "WORLD_SIZE": str(count)}
        spec = pods(self.image, "", "", **logging)
        start = 'printf %s "$PROGRAM" >/tmp/train.py; RANK=$JOB_COMPLETION_INDEX exec python3 /tmp/train.py'
        requests = {"requests": {"cpu": "10m", "memory": "64Mi"}}
        spec["containers"][0].update(command=["bash", "-c", start], resources=requests)
        template = {"spec": {**spec, "restartPolicy": "Never"}}
        job = {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count // 3,
            "backoffLimit": 0,
        }
        self.apply("batch/v1", "Job", name, spec={**job, "template": template})

    def logging_job(self, name: str, **env: str) -> None:
        """Create an Indexed Job of two ranks that log with Pluto to the run with the job's name."""
        self.job(name, **{**self.logging(name), **env})

    def logging(self, name: str) -> dict[str, str]:
        """Create the Secret, and return the other variables of a job that logs with Pluto."""
        embedded = tracker.find(self.kube)
        self.apply("v1", "Secret", SECRET, stringData={"api-key": embedded.key, "comment": "of the team"})
        urls = {f"PLUTO_URL_{part}": embedded.url for part in ("APP", "API", "INGEST", "PY")}
        run = {"PLUTO_RUN_ID": f"{self.namespace}-{name}", "PLUTO_PROJECT": "foreign"}
        return {"PROGRAM": LOGGING, **urls, **run}

    def statefulset(self, name: str, edit: Edit = unchanged, **env: str) -> None:
        """Create a StatefulSet of two ranks. `edit` changes the spec of its pods."""
        self.service(name)
        spec = pods(self.image, f"{name}-0.{name}", INDEX["StatefulSet"], **env)
        edit(spec)
        template = {"metadata": {"labels": {"app": name}}, "spec": spec}
        selector = {"matchLabels": {"app": name}}
        fields = {"serviceName": name, "replicas": 2, "podManagementPolicy": "Parallel", "selector": selector}
        self.apply("apps/v1", "StatefulSet", name, spec={**fields, "template": template})

    def jobset(self, name: str, edit: Edit = unchanged, queue: str | None = None, **env: str) -> None:
        """Create a JobSet of two ranks. `edit` changes the spec of its pods."""
        spec = pods(self.image, f"{name}-w-0-0.{name}", INDEX["Job"], **env)
        edit(spec)
        job = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 0}
        template = {"spec": {**job, "template": {"spec": {**spec, "restartPolicy": "Never"}}}}
        replicated = [{"name": "w", "replicas": 1, "template": template}]
        labels = {QUEUE_LABEL: queue} if queue else {}
        self.apply(
            "jobset.x-k8s.io/v1alpha2", "JobSet", name, labels=labels, spec={"replicatedJobs": replicated}
        )

    def konduktor(self, name: str, *, logging: bool = False, **env: str) -> str:
        """Run `konduktor launch` as a user does, with their own home and config. Return the JobSet's name.

        With `logging`, the ranks log with Pluto, with the key of the Secret.
        """
        env |= self.logging(name) if logging else {}
        home = self.folder / "konduktor"
        if not home.exists():
            queues.local_queue(self.kube, self.namespace, "user-queue")
            (home / ".konduktor" / "schemas").mkdir(parents=True)
            # konduktor downloads a missing schema, and there is no internet.
            (home / ".konduktor" / "schemas" / "podspec.json").write_text("{}")
            (home / "kubeconfig").write_text(yaml.safe_dump(for_launch(self.kube, self.namespace)))
        config = konduktor_config(*([API_KEY] if logging else []))
        (home / ".konduktor" / "config.yaml").write_text(yaml.safe_dump(config))
        resources = {"cpus": 1, "memory": 1, "image_id": self.image}
        labels = {"kueue.x-k8s.io/queue-name": "user-queue", "maxRunDurationSeconds": "3200"}
        job = {
            "name": name,
            "num_nodes": 2,
            "resources": {**resources, "labels": labels},
            "envs": {"PROGRAM": PROGRAM, **env},
            "run": KONDUKTOR_RUN,
        }
        (home / f"{name}.yaml").write_text(yaml.safe_dump(job))
        program = konduktor_bin(RunContext(settings=self.settings, progress=progress))
        own = {"HOME": str(home), "USER": "user", "KUBECONFIG": str(home / "kubeconfig")}
        done = subprocess.run(
            [str(program), "launch", "-y", "-s", "-d", str(home / f"{name}.yaml")],
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            timeout=ENDS_SECONDS,
            check=True,
        )
        return re.findall(r"^Job ID: (\S+)", done.stdout, re.MULTILINE)[0]

    def until_logged(self, pod_label: str, index: int, text: str, seconds: float = ENDS_SECONDS) -> str:
        """Wait until the log of a pod contains a text, and return the pod's name.

        `pod_label` selects the pods of the job.
        """
        deadline, seen = Deadline.after(seconds), "no pod"
        while not deadline.passed:
            for pod in self.kube.objects("v1", "Pod", self.namespace, pod_label):
                metadata = pod["metadata"]
                if str(index) not in (
                    metadata.get("annotations", {}).get(COMPLETION_INDEX),
                    metadata.get("labels", {}).get("apps.kubernetes.io/pod-index"),
                ):
                    continue
                path = f"/api/v1/namespaces/{self.namespace}/pods/{metadata['name']}/log"
                with suppress(ApiException):
                    seen = self.kube.fetch(path, {"container": "main"}).data.decode()
                    if text in seen:
                        return str(metadata["name"])
            pause(deadline)
        raise AssertionError(f"expected {text!r} in the log of pod {index}; the log is {seen!r}")

    def kubectl(self, *words: str) -> None:
        """Run kubectl with the rights of an administrator."""
        command = ["kubectl", "--kubeconfig", str(self.kube.kubeconfig), "-n", self.namespace, *words]
        subprocess.run(command, check=True, timeout=60)

    def signal(self, pod: str, name: str) -> None:
        """Send a signal to the rank's process in a pod."""
        search = (
            "for p in /proc/[0-9]*; do if tr '\\0' ' ' <$p/cmdline | grep -q -- '-u /tmp/train[.]py'; "
            f"then kill -{name} ${{p#/proc/}}; fi; done"
        )
        self.kubectl("exec", pod, "-c", "main", "--", "bash", "-c", search)

    def finished(self, kind: str, name: str, seconds: float = ENDS_SECONDS) -> None:
        """Wait until a job reports an end."""

        def unmet(found: dict[str, Object]) -> str | None:
            conditions = mapping(found.get(name), "status").get("conditions") or []
            true = {each["type"] for each in conditions if each["status"] == "True"}
            return None if true & ENDED else f"{kind} {name} is {sorted(true)}"

        api, where = APIS[kind], self.namespace
        self.kube.wait(f"the end of {kind} {name}", api, kind, unmet, seconds=seconds, namespace=where)

    def ended(self, name: str, seconds: float = ENDS_SECONDS) -> None:
        """Wait for the end of a Job."""
        self.finished("Job", name, seconds)

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

    def attach(self, word: str, *, progress: Progress = progress, **options: Any) -> Outcome:
        context = RunContext(settings=self.settings, progress=progress)
        return attach(Target(word), Options(namespace=self.namespace, **options), context)

    def attach_before(self, word: str, launch: Callable[[], object], **options: Any) -> Outcome:
        """Attach to a job that does not exist, launch it when the harness waits for it, and follow it."""
        launching = Thread(target=launch)

        def on_progress(text: str) -> None:
            progress(text)
            if "waiting for it" in text:
                launching.start()

        try:
            return self.attach(word, progress=on_progress, follow=True, wait=ENDS_SECONDS, **options)
        finally:
            if launching.ident is not None:
                launching.join()

    def _account(self, folder: Path, probe: bool) -> Path:
        """Return a kubeconfig with the rights of `harness attach --print-rbac`, and no others.

        The options are --secret and --tracker-url, and --probe if `probe` is set.
        """
        group, name = "rbac.authorization.k8s.io", ROLE
        self.apply("v1", "ServiceAccount", name)
        service = service_of(tracker.URL, self.namespace)
        for document in yaml.safe_load_all(roles(self.namespace, probe, secret=SECRET, service=service)):
            self.kube.apply(document)
        subject = {"kind": "ServiceAccount", "name": name, "namespace": self.namespace}
        reference = {"apiGroup": group, "kind": "Role", "name": name}
        self.apply(f"{group}/v1", "RoleBinding", name, roleRef=reference, subjects=[subject])
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": self.namespace},
        }
        outside = {**reference, "kind": "ClusterRole", "name": cluster_role(self.namespace)}
        self.kube.apply({**binding, "roleRef": outside, "subjects": [subject]})
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
