"""Find mistakes that the manifest of any kind of workload with a pod template can contain."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from harness.core.input_limits import ranks_problem, shown
from harness.core.kubernetes import Object
from harness.launch.labels import QUEUE_LABEL
from harness.launch.workloads import nproc_per_node

OTHER_KINDS = {"Service", "ConfigMap", "ServiceAccount", "PersistentVolumeClaim"}
"""The kinds of objects that a manifest can contain besides its workload."""


_TORCHRUN = re.compile(r"\btorchrun\b|torch\.distributed\.(run|launch)")


def _text(container: Object) -> str:
    words = [container.get("command") or [], container.get("args") or []]
    return " ".join(str(word) for part in words if isinstance(part, list) for word in part)


def mistakes_in(document: Object, other_objects: Sequence[Object]) -> Iterable[str]:
    """Yield a message for each mistake, in the form "field: expected …, found …"."""
    spec = document.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    pod = template.get("spec") if isinstance(template, dict) else None
    containers = pod.get("containers") if isinstance(pod, dict) else None
    labels = (template.get("metadata") or {}).get("labels") or {} if isinstance(template, dict) else {}
    if QUEUE_LABEL in labels:
        yield (
            f"spec.template.metadata.labels: move {QUEUE_LABEL} to metadata.labels of the "
            f"{document['kind']}, so that Kueue admits all of its pods together"
        )
    if not isinstance(containers, list) or not containers or not isinstance(containers[0], dict):
        yield "spec.template.spec.containers: expected at least one container"
        return
    worker = containers[0]
    for name in ("name", "image"):
        if not isinstance(worker.get(name), str) or not worker[name]:
            yield f"containers[0].{name}: expected a string, found {shown(worker.get(name))}"
    command = worker.get("command")
    if not isinstance(command, list) or not command:
        yield (
            "containers[0].command: expected a list, because the harness wraps the command in an init "
            "and does not know the image's entry point"
        )
        return
    runs = [_text(each) for each in containers if isinstance(each, dict)]
    if not _TORCHRUN.search(runs[0]) and (other := next(filter(_TORCHRUN.search, runs[1:]), None)):
        ranks = next(each.get("name") for each in containers if _text(each) == other)
        yield (
            f"containers[0]: the first container must run the ranks, but torchrun runs in {ranks} and "
            f"not in {worker.get('name')}; put {ranks} first"
        )
    processes = nproc_per_node.read(shlex.join(map(str, [*command, *(worker.get("args") or [])])), {})
    if processes.wrong:
        yield f"--nproc_per_node: expected a number of at least 1, found {shown(processes.wrong)}"
    elif problem := ranks_problem(1, processes.guess):
        yield problem
    for each in other_objects:
        if each.get("kind") not in OTHER_KINDS:
            yield (
                f"{each.get('kind')}: besides the workload, only these kinds are supported: "
                f"{', '.join(sorted(OTHER_KINDS))}"
            )
