"""Write a bundle with the evidence from a program that ran in containers, and judge the bundle.

The harness's own code writes the logs, the ground truth, the manifest's launch section and the tracker's
rows. Only the API server is simulated: this module creates the states of the Job, its pods and its nodes from
the times and exit codes of the containers.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx

from harness.context import RecordedContext
from harness.core.clock import now
from harness.core.deadlines import Budget
from harness.core.kubernetes import Kube, Object
from harness.evidence.io.ground_truth import TruthCollector
from harness.evidence.io.reader import Bundle
from harness.evidence.io.redaction import Redactor
from harness.evidence.io.writer import BundleWriter
from harness.evidence.schema.bundle import Expected, Observation, Verdict
from harness.evidence.schema.processes import decode
from harness.faults.programs.containers import NAME, Container, Pods, workload
from harness.faults.programs.generator import Program
from harness.judge.engine import judge
from harness.launch.description import launch_of
from harness.launch.labels import LOCAL_IMAGE
from harness.launch.mounts import recorder
from harness.launch.prepare import environment
from harness.launch.workloads.base import Surroundings
from harness.provision.images import scripts
from harness.provision.images.build import ImageRef
from harness.settings import Settings
from harness.tracker.client.audit import EmbeddedAudit, collect
from harness.tracker.client.claim import claim
from harness.tracker.shared.keys import launch_key
from harness.tracker.shared.run_id import make_run_id

WAIT_SECONDS = 200.0
"""The maximum duration of a launch in seconds. torchrun waits up to 300 s for a failed agent before it exits,
so a program may still be running at this deadline. It is then judged while it is running."""
PROJECT = "programs"


@dataclass
class Launched:
    """The results of a program that ran in containers."""

    verdict: Verdict
    bundle: Path
    journals: Path
    containers: list[Container]
    run_id: str


@dataclass(frozen=True)
class Place:
    """The environment in which programs run. This machine and the containers reach the tracker at `url`."""

    settings: Settings
    image: ImageRef
    url: str
    key: str = field(repr=False)
    database: Path
    runs: Path
    torch: str
    """The path of the file that `import torch` reads in the image."""

    def launch(self, program: Program, nonce: str) -> Launched:
        """Run a program, collect its evidence and judge it.

        Raises HarnessError if the program does not end.
        """
        settings = self.settings
        writer = BundleWriter.create(self.runs, nonce, Redactor())
        context = RecordedContext(settings=settings, progress=lambda _: None, writer=writer)
        work = workload(program.script, program.launched.nodes, LOCAL_IMAGE)
        budget, namespace = Budget(WAIT_SECONDS), f"programs-{nonce}"
        expected = Expected(
            num_nodes=program.launched.nodes,
            ranks=program.launched.nodes * work.per_node,
            run_id=make_run_id(nonce),
            project=PROJECT,
        )
        client = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {self.key}"}, trust_env=False
        )
        journals = writer.path / "journals"
        with client, tempfile.TemporaryDirectory(prefix="program-") as folder:
            claim(client, project=PROJECT, external_id=expected.run_id, launch=nonce, shared=False)
            key = launch_key(self.key, nonce, project=PROJECT, run=expected.run_id)
            with writer.stage("cluster"):
                files = self.image.changed
                maps = [recorder.MOUNTED.config_map(namespace), scripts.config_map(namespace, files)]
            writer.update(
                expected=expected,
                launch=launch_of(work, namespace, context).model_copy(
                    update={"object_name": NAME, "uid": f"job-{nonce}"}
                ),
                launched_at=now(),
                cluster={"context": "none: containers"},
                deadline_seconds=WAIT_SECONDS,
                job=NAME,
            )
            with writer.stage("launch"):
                surroundings = Surroundings(
                    context=context,
                    kube=cast(Kube, None),  # No object is created in a cluster, so no client is needed.
                    namespace=namespace,
                    nonce=nonce,
                    image=self.image.tag,
                    envs={**environment(expected, nonce, budget, self.url), "NO_PROXY": "*"},
                    secret_env={name: ("pluto", name) for name in ("PLUTO_API_KEY", "PLUTO_API_TOKEN")},
                    max_seconds=budget.job,
                    nodes=expected.num_nodes,
                    scripts=scripts.mounts(files),
                    recorder=settings.recorder,
                )
                job = work.render(surroundings)[-1]
            # The folder belongs to the current user, who can therefore remove the files that root creates in
            # it.
            (journals / nonce).mkdir(parents=True)
            secrets = dict.fromkeys(("PLUTO_API_KEY", "PLUTO_API_TOKEN"), key)
            pods = Pods(
                job, maps, secrets, nonce, Path(folder), journals, None if program.has_torch else self.torch
            )
            with writer.stage("observe"):
                containers = pods.run(budget.job)
            _record(writer, containers)
            _Objects(writer, job, nonce).write(containers)
            with writer.stage("collect"):
                launch = writer.current.launch
                assert launch is not None
                writer.tracker_summary(
                    collect(
                        EmbeddedAudit(client),
                        external_id=expected.run_id,
                        project=PROJECT,
                        job_name=launch.tracked_as,
                        write=writer.tracker,
                        write_points=writer.point_rows,
                    )
                )
        writer.update(ended_at=now())
        writer.close()
        verdict = judge(Bundle.open(writer.path))
        writer.verdict(verdict)
        writer.release()
        return Launched(verdict, writer.path, journals, containers, expected.run_id)


def _record(writer: BundleWriter, containers: Sequence[Container]) -> None:
    """Write the containers' logs, ground truth and process events, as harness/observe/observer.py does."""
    launch = writer.current.launch
    assert launch is not None
    collector = TruthCollector(writer.current.nonce)
    for container in containers:
        pod = pod_name(container)
        with writer.log_file(pod, launch.container) as log:
            for line in container.log:
                log.write(line + "\n")
                collector.feed(line, pod)
                for event in decode(writer.current.nonce, line, pod, pod_uid(container)):
                    writer.process(event)
    for suffix, lines_of in (("", collector.result()), (".outside", collector.outside())):
        for rank, lines in lines_of.items():
            writer.truths(rank, lines, suffix)


def pod_name(container: Container) -> str:
    """Return the name of a container's pod, in the format that the Job controller uses."""
    return f"{NAME}-{container.index}-{container.name[-9:-2]}"


def pod_uid(container: Container) -> str:
    return f"pod-{container.name}"


@dataclass
class _Objects:
    """Creates and records states of simulated Kubernetes objects."""

    writer: BundleWriter
    job: Object
    nonce: str
    _version: int = field(default=100)

    def write(self, containers: Sequence[Container]) -> None:
        """Write all states, in the order in which a cluster would report them."""
        states = [(containers[0].created_at, "job", "ADDED", self._job([], containers[0].created_at))]
        for container in containers:
            states += [(at, "node", "ADDED", self._node(container)) for at in [containers[0].created_at]]
            states += self._pod(container)
        end = max(container.finished_at for container in containers)
        failed = any(container.exit_code or container.timed_out for container in containers)
        reason = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        if any(container.timed_out for container in containers):
            reason = ("DeadlineExceeded", "Job was active longer than specified deadline")
        completion = ("CompletionsReached", "Reached expected number of succeeded pods")
        conditions = [
            self._condition("Failed", *reason, end)
            if failed
            else self._condition("Complete", *completion, end)
        ]
        states.append((end, "job", "MODIFIED", self._job(conditions, containers[0].created_at)))
        for at, kind, type_, obj in sorted(states, key=lambda state: state[0]):
            self._version += 1
            obj["metadata"]["resourceVersion"] = str(self._version)
            self.writer.observe(
                kind, Observation(received_at=at, type=type_, object=json.loads(json.dumps(obj)))
            )

    @staticmethod
    def _condition(kind: str, reason: str, message: str, at: str, status: str = "True") -> Object:
        return {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": at,
        }

    def _job(self, conditions: list[Object], created: str) -> Object:
        metadata = {**self.job["metadata"], "uid": f"job-{self.nonce}", "creationTimestamp": created}
        return {**self.job, "metadata": metadata, "status": {"conditions": conditions}}

    def _node(self, container: Container) -> Object:
        ready = self._condition(
            "Ready", "KubeletReady", "kubelet is posting ready status", container.created_at
        )
        metadata = {"name": f"node-{container.index}", "uid": f"node-{container.index}"}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": metadata,
            "spec": {},
            "status": {"conditions": [ready]},
        }

    def _pod(self, container: Container) -> list[tuple[str, str, Any, Object]]:
        """Return a pod's states: created, running, terminating if it received SIGTERM, and ended."""
        name, template = (
            self.job["spec"]["template"]["spec"]["containers"][0]["name"],
            self.job["spec"]["template"],
        )
        index = str(container.index)

        def pod(phase: str, state: Object, **metadata: Any) -> Object:
            metadata_of_pod = {
                "name": pod_name(container),
                "namespace": self.job["metadata"]["namespace"],
                "uid": pod_uid(container),
                "creationTimestamp": container.created_at,
                "labels": {
                    **template["metadata"]["labels"],
                    "batch.kubernetes.io/job-completion-index": index,
                },
                "annotations": {"batch.kubernetes.io/job-completion-index": index},
                "ownerReferences": [{"kind": "Job", "name": NAME, "uid": f"job-{self.nonce}"}],
                **metadata,
            }
            spec = {**template["spec"], "hostname": f"{NAME}-{index}", "nodeName": f"node-{index}"}
            image = template["spec"]["containers"][0]["image"]
            statuses = [{"name": name, "image": image, "restartCount": 0, "state": state}]
            scheduled = self._condition("PodScheduled", "", "", container.created_at)
            status = {"phase": phase, "podIP": container.address, "containerStatuses": statuses}
            return {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": metadata_of_pod,
                "spec": spec,
                "status": {**status, "conditions": [scheduled]},
            }

        reason = "OOMKilled" if container.out_of_memory else "Error" if container.exit_code else "Completed"
        end_state = {
            "exitCode": container.exit_code,
            "reason": reason,
            "startedAt": container.started_at,
            "finishedAt": container.finished_at,
            "message": container.message,
        }
        running = {"running": {"startedAt": container.started_at}}
        deletion = (
            {"deletionTimestamp": container.ended_at, "deletionGracePeriodSeconds": 30}
            if container.ended_at
            else {}
        )
        states: list[tuple[str, str, Any, Object]] = [
            (
                container.created_at,
                "pod",
                "ADDED",
                pod("Pending", {"waiting": {"reason": "ContainerCreating"}}),
            ),
            (container.started_at, "pod", "MODIFIED", pod("Running", running)),
        ]
        if container.ended_at:
            states.append((container.ended_at, "pod", "MODIFIED", pod("Running", running, **deletion)))
        phase = "Failed" if container.exit_code else "Succeeded"
        states.append(
            (container.finished_at, "pod", "MODIFIED", pod(phase, {"terminated": end_state}, **deletion))
        )
        if container.ended_at:
            states.append(
                (container.finished_at, "pod", "DELETED", pod(phase, {"terminated": end_state}, **deletion))
            )
        return states
