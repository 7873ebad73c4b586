"""The variables that a fault's steps can use.

    cluster control_plane worker worker2         names of the cluster and its node containers
    namespace jobset                             names of the launch's namespace and JobSet
    pod0 pod1 … node0 node1 …                    names of each rank's pod, and of the pod's node container
    folder                                       path of a folder on the host, only for this fault
    runs pid                                     the harness's HARNESS_RUNS_DIR and process id
    tracker_image worker_image                   names of the images on the nodes
    python kubectl                               the harness's Python interpreter, kubectl for this cluster
    files workers                                paths of harness/faults/files and harness/workers
    volumes                                      path of the folder with the volumes of `--volumes`

A step must not use a variable before its value is known, such as a pod's name before the launch.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, UndefinedError

from harness.core.errors import UsageError
from harness.evidence.io.reader import Bundle
from harness.faults.fault_file import Step
from harness.faults.undo import Command
from harness.provision.cluster import Ready

FILES = Path(__file__).parent / "files"
_templates = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)  # noqa: S701


def of_cluster(ready: Ready, folder: Path) -> dict[str, Any]:
    """Return the variables whose values are known before a launch."""
    kind = ready.kind
    tracker = ready.kube.get("apps/v1", "Deployment", "tracker", "harness-system")
    images = {"worker_image": ready.worker.tag}
    shared = kind.shared_folder
    if tracker is not None:
        images["tracker_image"] = tracker["spec"]["template"]["spec"]["containers"][0]["image"]
    return {
        "cluster": kind.name,
        "control_plane": f"{kind.name}-control-plane",
        "worker": f"{kind.name}-worker",
        "worker2": f"{kind.name}-worker2",
        "kubeconfig": str(kind.kubeconfig),
        "context": kind.context,
        "folder": str(folder),
        "python": sys.executable,
        "kubectl": f"kubectl --kubeconfig {shlex.quote(str(kind.kubeconfig))} --context {kind.context}",
        "files": str(FILES),
        "workers": str(FILES.parents[1] / "workers"),
        "volumes": str(shared.local_path) if shared is not None else "",
        **images,
    }


def of_launch(bundle: Bundle) -> dict[str, Any]:
    """Return the variables whose values are known from a launch's bundle, which may still be incomplete."""
    manifest = bundle.manifest
    variables: dict[str, Any] = {}
    if manifest is not None and manifest.launch is not None:
        variables["namespace"] = manifest.launch.namespace
        if manifest.launch.object_name:
            variables["jobset"] = manifest.launch.object_name
    for rank, pod in bundle.ranks().items():
        variables[f"pod{rank}"] = pod.name
        if pod.node:
            variables[f"node{rank}"] = pod.node
    return variables


def render(text: str, places: dict[str, Any], fault: str) -> str:
    """Render a template. Raises UsageError for an unknown variable."""
    try:
        return _templates.from_string(text).render(places)
    except UndefinedError as error:
        raise UsageError(f"fault {fault}: {error}; known variables are {', '.join(sorted(places))}") from None


def command(step: Step, places: dict[str, Any], fault: str) -> Command:
    """Return the command that runs a step. Raises UsageError if the step uses an unknown variable."""
    stdin = None if step.stdin is None else render(step.stdin, places, fault)
    if step.sh is not None:
        return Command(["bash", "-ceu", render(step.sh, places, fault)], stdin)
    if step.docker is not None:
        return Command(["docker", *shlex.split(render(step.docker, places, fault))], stdin)
    assert step.kubectl is not None
    base = ["kubectl", "--kubeconfig", places["kubeconfig"], "--context", places["context"]]
    return Command([*base, *shlex.split(render(step.kubectl, places, fault))], stdin)
