"""The flow that the tools' own documentation describes: one step after the other, polled every 10 s.

kind with its defaults, `kind load` of every image, `kubectl apply` of JobSet and then Kueue, `konduktor
launch`, and a look at the JobSet every 10 s. It looks at nothing that ranks logged.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import yaml

from harness.context import RunContext
from harness.core.kubernetes import Kube
from harness.launch.konduktor.submit import JOBSET_API
from harness.provision.controllers import queues, tracker
from harness.provision.images.build import build_tracker, build_worker
from harness.provision.images.stack import Stack
from harness.provision.konduktor import konduktor_bin
from harness.settings import Settings

NAME, POLL_SECONDS, MOST_SECONDS = "bench-documented", 10, 600
JOB = Path(__file__).parents[1] / "jobs/multinode.yaml"


def run(settings: Settings, stack: Stack, folder: Path) -> None:
    """Go from nothing to a completed JobSet and back to nothing."""
    context = RunContext(settings=settings, progress=lambda _text: None)
    images = [*stack.node_images, build_worker(stack, context).tag, build_tracker(stack, context).tag]
    kubeconfig = folder / "documented-kubeconfig"
    named = ["--name", NAME, "--kubeconfig", str(kubeconfig)]
    nodes = folder / "documented-kind.yaml"
    nodes.write_text(kinds_own(settings, stack))
    try:
        _do("kind", "create", "cluster", *named, "--config", str(nodes), "--wait", "180s")
        for image in images:
            _do("kind", "load", "docker-image", image, "--name", NAME)
        kube = Kube(kubeconfig, f"kind-{NAME}")
        kubectl = [settings.kubectl_bin, "--kubeconfig", str(kubeconfig)]
        for manifest, namespace in (
            (stack.jobset_manifest, "jobset-system"),
            (stack.kueue_manifest, "kueue-system"),
        ):
            _do(*kubectl, "apply", "--server-side", "-f", str(manifest))
            _do(
                *kubectl,
                "-n",
                namespace,
                "wait",
                "deployment",
                "--all",
                "--for=condition=Available",
                "--timeout=5m",
            )
        _eventually(lambda: queues.install(kube))
        serving = tracker.install(kube, images[-1])
        _launch(kube, serving, images[-2], folder, context)
    finally:
        _do("kind", "delete", "cluster", *named)


def kinds_own(settings: Settings, stack: Stack) -> str:
    """Return kind's defaults, but for the image and for a kernel with cgroups of version 1."""
    kubelet: dict[str, object] = {"kind": "KubeletConfiguration"}
    if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        kubelet["failCgroupV1"] = False
    roles = ["control-plane", *["worker"] * settings.workers]
    return yaml.safe_dump(
        {
            "kind": "Cluster",
            "apiVersion": "kind.x-k8s.io/v1alpha4",
            "kubeadmConfigPatches": [yaml.safe_dump(kubelet)],
            "nodes": [{"role": role, "image": stack.node_image} for role in roles],
        }
    )


def _launch(
    kube: Kube, serving: tracker.EmbeddedTracker, image: str, folder: Path, context: RunContext
) -> None:
    """Run konduktor in the default namespace, and poll."""
    queues.local_queue(kube, "default", "user-queue", queues.CLUSTER_QUEUE)
    document = yaml.safe_load(JOB.read_text())
    document["resources"]["image_id"] = image
    urls = {f"PLUTO_URL_{part}": serving.url for part in ("APP", "API", "INGEST", "PY")}
    document["envs"] = {
        "HARNESS_NONCE": "d0c0",  # the worker notes under it what it logs
        "PLUTO_API_KEY": serving.key,
        "PLUTO_RUN_ID": "documented-run",
        "PLUTO_PROJECT": "e2e",
        **urls,
    }
    home = folder / "documented-home"
    (home / ".konduktor/schemas").mkdir(parents=True, exist_ok=True)
    (home / ".konduktor/schemas/podspec.json").write_text("{}")
    (home / "job.yaml").write_text(yaml.safe_dump(document))
    # Pods here reach no package archive, from which konduktor would install programs into them.
    pull = {
        "apt": {"skip": True},
        "kubernetes": {"pod_config": {"spec": {"containers": [{"imagePullPolicy": "IfNotPresent"}]}}},
    }
    (home / "config.yaml").write_text(yaml.safe_dump(pull))
    own = {
        "HOME": str(home),
        "KUBECONFIG": str(kube.kubeconfig),
        "KONDUKTOR_CONFIG": str(home / "config.yaml"),
        "KONDUKTOR_SKIP_IMAGE_CHECK": "1",
        "KONDUKTOR_DISABLE_USAGE_COLLECTION": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "USER": "bench",
        "PATH": os.environ["PATH"],
    }
    _do(str(konduktor_bin(context)), "launch", "-y", "-s", "-d", str(home / "job.yaml"), env=own)
    deadline = time.monotonic() + MOST_SECONDS
    while time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        for each in kube.objects(JOBSET_API, "JobSet", "default"):
            state = (each.get("status") or {}).get("terminalState")
            if state == "Completed":
                return
            if state:
                raise SystemExit(f"the documented flow's job is {state}: {_said(kube)}")
    raise SystemExit(
        "the documented flow's job did not end: " + json.dumps(kube.objects("v1", "Pod", "default"))[:2000]
    )


def _said(kube: Kube) -> str:
    """Return the ends of the pods' logs."""
    pods = [each["metadata"]["name"] for each in kube.objects("v1", "Pod", "default")]
    logs = [f"/api/v1/namespaces/default/pods/{pod}/log" for pod in pods]
    return "\n".join(kube.fetch(path, {"tailLines": "15"}).read().decode() for path in logs)


def _eventually(what: object) -> None:
    """Try every 10 s: the webhooks serve some time after `kubectl wait` says Available."""
    deadline = time.monotonic() + MOST_SECONDS
    while True:
        try:
            what()  # type: ignore[operator]
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


def _do(*command: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
