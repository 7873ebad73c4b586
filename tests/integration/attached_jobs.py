"""Small, handwritten API objects of jobs that the harness did not launch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from bundle_api import BundleApi

from harness.evidence.schema.bundle import Verdict

Object = dict[str, Any]
START = datetime(2026, 11, 28, 10, 0, 0, tzinfo=UTC)
INDEX = "batch.kubernetes.io/job-completion-index"


def at(seconds: float) -> str:
    return (START + timedelta(seconds=seconds)).isoformat(timespec="seconds").replace("+00:00", "Z")


def stamped(*lines: str, start: float = 1) -> str:
    return "".join(f"{at(start + n)[:-1]}.000000000Z {line}\n" for n, line in enumerate(lines))


def meta(name: str, **more: Any) -> Object:
    return {
        "name": name,
        "namespace": "team",
        "uid": f"uid-{name}",
        "creationTimestamp": at(0),
        "resourceVersion": "7",
        **more,
    }


def owned(kind: str, name: str) -> list[Object]:
    return [{"kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}]


def condition(kind: str, reason: str = "", message: str = "", when: float = 60) -> Object:
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": at(when),
    }


def template(command: str = "torchrun --nnodes=2 --nproc-per-node=1 train.py", **more: Any) -> Object:
    container = {"name": "main", "image": "train:1", "command": ["bash", "-c", command]}
    return {"restartPolicy": "Never", "containers": [container], **more}


def job(name: str = "train", count: int = 2, *conditions: Object, **status: Any) -> Object:
    spec = {"completions": count, "parallelism": count, "completionMode": "Indexed", "backoffLimit": 0}
    return {
        "metadata": meta(name),
        "spec": {**spec, "template": {"spec": template()}},
        "status": {"conditions": list(conditions), **status},
    }


def state(code: int | None, when: float = 50, **more: Any) -> Object:
    if code is None:
        return {"running": {"startedAt": at(1)}}
    reason = "Completed" if code == 0 else "Error"
    return {
        "terminated": {"exitCode": code, "reason": reason, "startedAt": at(1), "finishedAt": at(when), **more}
    }


def pod(
    index: int, code: int | None = 0, *, job_name: str = "train", kind: str = "Job", **more: Any
) -> Object:
    """Return the pod of a rank that exited with `code`, or that is still running if `code` is None."""
    name = more.pop("name", f"{job_name}-{index}-abcd{index}")
    labels = {INDEX: str(index), "job-name": job_name, **more.pop("labels", {})}
    phase = {None: "Running", 0: "Succeeded"}.get(code, "Failed")
    status = {
        "name": "main",
        "image": "train:1",
        "state": more.pop("state", None) or state(code, more.pop("when", 50)),
    }
    status |= more.pop("container", {})
    owners = more.pop("owners", owned(kind, job_name))
    return {
        "metadata": meta(
            name,
            labels=labels,
            annotations={INDEX: str(index)},
            ownerReferences=owners,
            **more.pop("metadata", {}),
        ),
        "spec": {**template(), "nodeName": f"node-{index}", **more.pop("spec", {})},
        "status": {"phase": more.pop("phase", phase), "containerStatuses": [status], **more},
    }


def node(name: str) -> Object:
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "status": {"conditions": [condition("Ready")]},
    }


def event(name: str, kind: str, about: str, reason: str, message: str, **more: Any) -> Object:
    return {
        "metadata": meta(name),
        "involvedObject": {"kind": kind, "name": about, "uid": f"uid-{about}"},
        "type": "Warning",
        "reason": reason,
        "message": message,
        "firstTimestamp": at(5),
        "lastTimestamp": at(40),
        **more,
    }


def serve(api: BundleApi, job: dict, *pods: dict, **logs: str) -> None:
    """Serve one Job with its pods. `logs` contains the logs by pod index, for example r0=…."""
    api.objects["job"], api.objects["pod"] = [job], list(pods)
    for pod in pods:
        index = pod["metadata"]["annotations"][INDEX]
        api.logs[pod["metadata"]["name"], "main"] = logs.get(f"r{index}", stamped("step 1", "done"))


def short(verdict: Verdict) -> tuple[str, str | None, list[int]]:
    return verdict.verdict, verdict.cause, verdict.ranks


def results(verdict: Verdict) -> dict[str, str]:
    return {check.name: check.result for check in verdict.checks}


def kubeflow(kind: str, part: str, index: int, code: int | None, role: str = "worker", **more: Any) -> Object:
    """Return a pod of a PyTorchJob or an MPIJob, with the labels that Kubeflow documents."""
    prefix = "training.kubeflow.org"
    labels = {
        f"{prefix}/job-name": "train",
        f"{prefix}/replica-type": part,
        f"{prefix}/replica-index": str(index),
    }
    labels |= {f"{prefix}/job-role": role} if kind == "MPIJob" and role else {}
    name = f"train-{part}-{index}"
    return pod(index, code, name=name, owners=owned(kind, "train"), labels=labels, **more)
