"""Launch, observe and judge a job of many pods: API requests a pod, memory, and how late the evidence is.

    python bench/many_pods.py [--pods 256]            prints one JSON document

A kind cluster is made, or the one of HARNESS_CLUSTER_NAME is used, and stays. All pods of an Indexed Job run
on simulated nodes (KWOK), which run nothing: no rank logs, so the verdict must not be a PASS. Beside the
harness, a bare watch in a process of its own receives the same pods. `late_ms` is how much later the harness
had a version of a pod in its evidence.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/k8s")]

from simulated_nodes import MARK, TOLERATION, simulated  # noqa: E402

from harness import run  # noqa: E402
from harness.context import RunContext  # noqa: E402
from harness.core.kubernetes import Kube, events  # noqa: E402
from harness.evidence.io.reader import Bundle  # noqa: E402
from harness.launch import workload_file  # noqa: E402
from harness.launch.workloads.base import Workload  # noqa: E402
from harness.provision.source.kwok import kwok  # noqa: E402
from harness.run import cluster_of  # noqa: E402
from harness.settings import load  # noqa: E402

A_NODE = 16
"""Pods on each simulated node."""


def job(pods: int, folder: Path) -> Workload:
    """Return manifests/indexed-job.yaml with so many pods on simulated nodes."""
    documents = list(yaml.safe_load_all((ROOT / "manifests/indexed-job.yaml").read_text()))
    spec = documents[-1]["spec"]
    spec["completions"] = spec["parallelism"] = pods
    pod = spec["template"]["spec"]
    pod["nodeSelector"], pod["tolerations"] = {MARK: "fake"}, [TOLERATION]
    path = folder / "many-pods.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return workload_file.load(path)


def watch(kubeconfig: str, context: str, file: str) -> None:
    """Write when each version of each pod came, until the process is ended. Runs in a process of its own."""
    kube = Kube(Path(kubeconfig), context, Path(file).with_suffix(".cache"))
    pods = kube.resource("v1", "Pod")
    version = pods.get().to_dict()["metadata"]["resourceVersion"]
    with open(file, "w", buffering=1) as out:
        for event in events(pods, timeout=3600, resource_version=version):
            print(event["raw_object"]["metadata"]["resourceVersion"], time.time(), file=out)


def lateness(bundle: Bundle, file: Path) -> list[float]:
    """Return for each version of a pod how many ms after the bare watch the harness had it."""
    bare = dict(line.split() for line in file.read_text().splitlines())
    late = []
    for line in (bundle.path / "objects/pod.jsonl").read_text().splitlines():
        seen: dict[str, Any] = json.loads(line)
        at = bare.get(seen["object"]["metadata"]["resourceVersion"])
        if at is not None:
            late.append(1000 * (datetime.fromisoformat(seen["received_at"]).timestamp() - float(at)))
    return late


def measured(pods: int, folder: Path) -> dict[str, Any]:
    """Launch once and return the figures."""
    settings = load(runs_dir=folder / "runs", keep_cluster=True)
    context = RunContext(settings=settings, progress=lambda text: print(text, file=sys.stderr))
    chosen = cluster_of(settings)
    names = [f"many-{number:02}" for number in range(-(-pods // A_NODE))]
    with run.cluster(context) as ready, simulated(ready.kube, kwok(context), folder / "kwok.log", names, 0):
        asked: Counter[str] = Counter()
        ready.kube.on_response = lambda method, _url, _status: asked.update([method])
        file, process = folder / "watched", psutil.Process()
        watching = [
            sys.executable,
            __file__,
            "--watch",
            str(chosen.kubeconfig),
            str(chosen.context),
            str(file),
        ]
        with subprocess.Popen(watching) as watcher:
            while not file.exists():
                time.sleep(0.1)
            before, begun = process.memory_info().rss, process.cpu_times().user
            outcome = run.launch(job(pods, folder), context, ready)
            spent = process.cpu_times().user - begun
            watcher.terminate()
        bundle = Bundle.open(outcome.bundle)
        late = lateness(bundle, file)
        assert outcome.verdict.verdict != "PASS", outcome.verdict.explanation
        assert len(bundle.pod_attempts()) == pods, (
            f"{len(bundle.pod_attempts())} of {pods} pods are in the evidence"
        )
        stages = {stage.name: stage.seconds for stage in bundle.manifest.stages} if bundle.manifest else {}
        return {
            "pods": pods,
            "verdict": f"{outcome.verdict.verdict} {outcome.verdict.cause}",
            "requests": dict(asked),
            "requests_a_pod": round(sum(asked.values()) / pods, 2),
            "resident_mib_before_and_after": [before >> 20, process.memory_info().rss >> 20],
            "cpu_seconds": round(spent, 1),
            "versions_compared": len(late),
            "late_ms_p50_p99": [round(median(late), 1), round(quantiles(late, n=100)[98], 1)]
            if late
            else None,
            "stages": {name: round(seconds, 1) for name, seconds in stages.items()},
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=256)
    parser.add_argument("--watch", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.watch:
        watch(*asked.watch)
        return 0
    os.environ.setdefault("HARNESS_TRACKER", "embedded")
    with tempfile.TemporaryDirectory(prefix="bench-many-") as folder:
        print(json.dumps(measured(asked.pods, Path(folder)), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
