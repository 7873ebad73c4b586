"""The Indexed Job that `harness netcheck` launches. Its pods run only netcheck (files/netcheck.yaml)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import yaml

from harness.evidence.schema.bundle import Purpose
from harness.launch.workloads.indexed_job import IndexedJobWorkload

_SOURCE = Path(__file__).parents[1] / "files" / "netcheck.yaml"


class NetcheckJob(IndexedJobWorkload):
    """An Indexed Job that only runs netcheck and logs nothing to Pluto."""

    purpose: ClassVar[Purpose] = "netcheck"


def job(nodes: int, image: str | None = None, bandwidth: bool = False) -> NetcheckJob:
    """Return the Job in files/netcheck.yaml with `nodes` pods. The default image is the worker image.

    If `bandwidth` is true, netcheck also measures the bandwidth between each pair of pods.
    """
    service, document = yaml.load_all(_SOURCE.read_text(), yaml.CSafeLoader)
    spec = document["spec"]
    spec["completions"] = spec["parallelism"] = spec["maxFailedIndexes"] = nodes
    container = spec["template"]["spec"]["containers"][0]
    container["image"] = image or container["image"]
    container["command"] += ["--bandwidth"] * bandwidth
    container["env"] += [{"name": name, "value": str(nodes)} for name in ("NNODES", "WORLD_SIZE")]
    return NetcheckJob(document, (service,), str(_SOURCE), own=True)
