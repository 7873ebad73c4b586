"""Attach to a finished job of 16 pods and to a job of many pods: wall and CPU seconds, beside kubectl.

    python bench/attach.py [--pods 512] [--runs 5]    prints one JSON document

The kind cluster of HARNESS_CLUSTER_NAME is used, or created, and stays. The 16 pods run a command and end.
The many pods fit no node: the API server has their objects, and there are no logs to read. `ratio` is the
wall time divided by that of `kubectl get pods -o json` for the same pods.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from harness import run  # noqa: E402
from harness.context import RunContext  # noqa: E402
from harness.core.kubernetes import Kube, Object, condition  # noqa: E402
from harness.settings import load  # noqa: E402

FINISHED = 16
COMMAND = (
    sys.executable,
    "-c",
    "import sys; from harness.cli.main import main; sys.argv[0] = 'harness'; main()",
)


def job(name: str, namespace: str, image: str, pods: int, **pod: Any) -> Object:
    """Return an Indexed Job whose pods print one line and end. `pod` are more fields of their spec."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "echo torchrun --nproc-per-node=1; exit 0"],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    spec = {"restartPolicy": "Never", "containers": [container], **pod}
    counts = {"completions": pods, "parallelism": pods, "completionMode": "Indexed", "backoffLimit": 0}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**counts, "template": {"spec": spec}},
    }


def measured(command: list[str], runs: int, env: dict[str, str] | None = None) -> dict[str, float]:
    """Return the medians of wall and CPU seconds of a command."""
    walls, cpus = [], []
    for _ in range(runs):
        before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, env=env)
        walls.append(time.monotonic() - begun)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {"wall": round(median(walls), 2), "cpu": round(median(cpus), 2)}


def compared(kube: Kube, namespace: str, name: str, runs: int, folder: Path) -> dict[str, Any]:
    """Return the figures of `harness why` and of kubectl for one job, and the verdict."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HARNESS_STATE_DIR": str(folder / "state")}
    where = ["--kubeconfig", str(kube.kubeconfig), "-n", namespace]
    why = [*COMMAND, "why", f"job/{name}", *where, "--runs-dir", str(folder / "runs"), "--json"]
    kubectl = ["kubectl", *where, "get", "pods", "-l", f"job-name={name}", "-o", "json"]
    verdict = json.loads(subprocess.run(why, capture_output=True, text=True, check=False, env=env).stdout)
    attached, listed = measured(why, runs, env), measured(kubectl, runs)
    ratio = round(attached["wall"] / listed["wall"], 1)
    answer = f"{verdict['verdict']} {verdict['cause']}"
    return {"why": attached, "kubectl": listed, "ratio": ratio, "verdict": answer}


def completed(name: str) -> Callable[[dict[str, Object]], str | None]:
    def unmet(jobs: dict[str, Object]) -> str | None:
        return None if condition(jobs.get(name, {}), "Complete").get("status") == "True" else "not Complete"

    return unmet


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=512)
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    settings = load(keep_cluster=True)
    context = RunContext(settings=settings, progress=lambda text: print(text, file=sys.stderr))
    with run.cluster(context) as ready, tempfile.TemporaryDirectory() as name:
        kube, folder, namespace = ready.kube, Path(name), f"attach-{secrets.token_hex(3)}"
        kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        try:
            kube.apply(job("finished", namespace, ready.worker.tag, FINISHED))
            kube.wait(
                "16 pods to end", "batch/v1", "Job", completed("finished"), seconds=300, namespace=namespace
            )
            found = {str(FINISHED): compared(kube, namespace, "finished", asked.runs, folder)}
            kube.apply(
                job("many", namespace, ready.worker.tag, asked.pods, nodeSelector={"bench/nowhere": "true"})
            )
            kube.wait(
                "the pods",
                "v1",
                "Pod",
                lambda pods: None if len(pods) >= asked.pods else str(len(pods)),
                seconds=300,
                namespace=namespace,
                selector="job-name=many",
            )
            found[str(asked.pods)] = compared(kube, namespace, "many", asked.runs, folder)
        finally:
            kube.delete("v1", "Namespace", namespace)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
