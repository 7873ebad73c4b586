"""Figures of bench/torchrun_scale.py: what is followed, what is compared, and the ranges that are kept."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import psutil
from prometheus_client.parser import text_string_to_metric_families

from harness.core.kubernetes import Kube, Object, events


class Follower(threading.Thread):
    """Notes when each object of a kind is first seen, and first over."""

    def __init__(
        self, kube: Kube, namespace: str, arm: tuple[str, str], note: Callable[[Object], None]
    ) -> None:
        super().__init__(daemon=True)
        self.kube, self.namespace, self.note = Kube(kube.kubeconfig), namespace, note
        self.resource = self.kube.resource(*arm)
        self.stopped = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                listed = self.resource.get(namespace=self.namespace).to_dict()
                for item in listed["items"]:
                    self.note(item)
                version = listed["metadata"]["resourceVersion"]
                for event in events(
                    self.resource, timeout=30, namespace=self.namespace, resource_version=version
                ):
                    self.note(event["object"])
                    if self.stopped.is_set():
                        return
            except Exception as error:  # the connection, an expired version: list again
                print(f"watch: {error!r}", file=sys.stderr)
                time.sleep(0.2)


class Memory:
    """The most that a process of this machine held, in MiB. A container of a kind node is one too."""

    def __init__(self, word: str) -> None:
        self.peak: float | None = None
        found = [process for process in psutil.process_iter() if word and _says(process, word)]
        self.process = max(found, key=lambda process: process.memory_info().rss, default=None)
        if word and self.process is None:
            raise SystemExit(f"no process whose command line has {word!r}")

    def look(self) -> None:
        if self.process is not None:
            now = self.process.memory_info().rss / 2**20
            self.peak = round(max(self.peak or 0.0, now), 1)


def _says(process: psutil.Process, word: str) -> bool:
    try:
        return word in " ".join(process.cmdline())
    except psutil.Error:
        return False


def spread(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"p50": round(ordered[len(ordered) // 2], 3), "p99": round(ordered[int(len(ordered) * 0.99)], 3)}


def requests(kube: Kube) -> Counter[tuple[str, str]]:
    """Return how often the API server has answered, by verb and resource."""
    found: Counter[tuple[str, str]] = Counter()
    for family in text_string_to_metric_families(kube.fetch("/metrics", seconds=60).data.decode()):
        for sample in family.samples:
            if sample.name == "apiserver_request_total":
                labels = sample.labels
                resource = "/".join(part for part in (labels["resource"], labels["subresource"]) if part)
                found[labels["verb"], resource] += int(sample.value)
    return found


def own_requests(port: int) -> Counter[tuple[str, str]]:
    """Return how often our controller has asked the API server, by verb and resource.

    Watches and the Lease are left out: their number depends on how long a run takes, not on its jobs.
    """
    found: Counter[tuple[str, str]] = Counter()
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "torchrun_api_requests_total":
                verb, resource = sample.labels["verb"], sample.labels["resource"]
                if verb != "watch" and resource not in ("", "leases"):
                    found[verb, resource] += int(sample.value)
    return found


def ratio(result: dict[str, Any], one: str, floor: str) -> dict[str, float]:
    more = result[one]["requests_per_job"] - result[floor]["requests_per_job"]
    return {
        "seconds": round(result[one]["seconds"] / result[floor]["seconds"], 2),
        "requests_per_job_more": round(more, 1),
    }


def beside(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """Return how much longer jobs wait for their JobSet than those of Trainer, and what more memory it takes.

    How long an end takes to be said is a difference: theirs may be next to nothing.
    """
    return {
        "to_jobset_p50": round(ours["to_jobset_seconds"]["p50"] / theirs["to_jobset_seconds"]["p50"], 2),
        "to_jobset_p99": round(ours["to_jobset_seconds"]["p99"] / theirs["to_jobset_seconds"]["p99"], 2),
        "to_told_p99_more": round(ours["to_told_seconds"]["p99"] - theirs["to_told_seconds"]["p99"], 2),
        "memory": round(ours["memory_mib"] / theirs["memory_mib"], 2),
    }


def left(result: dict[str, Any], ranges: dict[str, Any]) -> list[str]:
    """Return the figures that are out of their ranges. A range is [least, most]; its key is dotted."""
    found = []
    for path, (least, most) in ranges.items():
        value: Any = result
        for part in path.split("."):
            value = value[part]
        if not least <= value <= most:
            found.append(f"{path} is {value}: expected {least} to {most}")
    return found
