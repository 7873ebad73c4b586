"""Merge a user's file into a pod template, as `kubectl patch --type strategic` does.

kubectl itself merges (`--local`, no cluster is asked), so lists merge by the keys that Kubernetes gives them.
Tolerations are the exception: Kubernetes replaces the list, and here the file's are added to it. Whatever the
launch relies on in the template must be there afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.core import processes
from harness.core.bounds import listed, shown
from harness.core.errors import UsageError
from harness.core.kubernetes import Object
from harness.core.user_yaml import yaml_document
from harness.launch.pods import fields as pod_fields

EXAMPLE = "metadata and spec of a pod are expected, as in `spec: {tolerations: [{operator: Exists}]}`"
GPU = "nvidia.com/gpu"
_HEAD = {"apiVersion": "v1", "kind": "Pod"}
_MERGE = (*("--kubeconfig=/dev/null", "patch", "--local", "--type=strategic"), *("-f", "-", "-o", "json"))
_SECONDS = 30
_KEYS = ("name", "mountPath", "containerPort", "topologyKey", "key")
"""By one of these, an item of a list is found again."""
_FREE = {("spec", "tolerations"), ("spec", "topologySpreadConstraints")}
"""Paths that a file may change. The requests and limits of containers are free too, GPUs excepted."""


def check(file: Path, container: str) -> None:
    """Raise UsageError for a file that is missing, no YAML, no pod, or that names another container.

    `container` is the one of the ranks.
    """
    what = f"--pod {file}"
    document = yaml_document(file, "--pod", hint=EXAMPLE)
    if not isinstance(document, dict) or not set(document) <= {*_HEAD, "metadata", "spec"}:
        seen = shown(sorted(map(str, document)) if isinstance(document, dict) else document)
        raise UsageError(f"{what} is no part of a pod; found {seen}", hint=EXAMPLE)
    if (kind := document.get("kind", "Pod")) != "Pod" or document.get("apiVersion", "v1") != "v1":
        raise UsageError(
            f"{what}: a Pod of v1 is expected; found {shown(kind)}", hint="give its pod template alone"
        )
    found = {part: document[part] for part in ("metadata", "spec") if document.get(part) is not None}
    spec = found.get("spec", {})
    fields = (
        {name: value for name, value in spec.items() if name != "template"}
        if isinstance(spec, dict)
        else spec
    )
    if problems := listed([*_head_problems(found), *pod_fields.problems(fields, "V1PodSpec", "spec")]):
        raise UsageError(f"{what}: {problems}", hint=EXAMPLE)
    if problems := listed(_container_problems(found, container)):
        raise UsageError(
            f"{what}: {problems}", hint="the file changes that container; it adds none beside it"
        )


def merged(template: Object, file: Path, kubectl: str) -> Object:
    """Return the pod template with what a checked file adds. Raises UsageError where that would break it."""
    base = {**_HEAD, **template, "metadata": {**(template.get("metadata") or {}), "name": "template"}}
    done = processes.run(
        [kubectl, *_MERGE, f"--patch-file={file}"],
        stdin=json.dumps(base),
        timeout=_SECONDS,
        check=False,
        hint="--pod needs kubectl: `harness doctor` shows what is missing",
    )
    if done.returncode:
        raise UsageError(f"--pod {file} cannot be merged: {done.stderr.strip()}", hint=EXAMPLE)
    found = json.loads(done.stdout)
    result: Object = {"metadata": found.get("metadata") or {}, "spec": found.get("spec") or {}}
    result["metadata"].pop("name", None)
    if lost := listed(f"{path} is gone or changed" for path in _lost(template, result, ())):
        raise UsageError(
            f"--pod {file}: the launch sets {lost}",
            hint="leave that out of the file; image, GPUs and command have options of their own",
        )
    if problem := _gpus(template, result):
        raise UsageError(f"--pod {file}: {problem}", hint="--gpus-per-pod says how many GPUs a pod gets")
    _add_tolerations(template, result)
    return result


def _add_tolerations(template: Object, result: Object) -> None:
    """Keep the template's own tolerations beside those of the file."""
    given = result["spec"].get("tolerations") or []
    own = [each for each in template["spec"].get("tolerations") or [] if each not in given]
    if own or given:
        result["spec"]["tolerations"] = [*own, *given]


def _head_problems(patch: Object) -> Iterator[str]:
    for part, value in patch.items():
        if not isinstance(value, dict):
            yield f"{part}: a mapping is expected; found {shown(value)}"
    metadata = patch.get("metadata") or {}
    for name, value in metadata.items() if isinstance(metadata, dict) else ():
        if name not in ("labels", "annotations"):
            yield f"metadata.{name}: labels and annotations can be added, and nothing else"
        elif not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            yield f"metadata.{name}: a mapping of texts is expected; found {shown(value)}"
    spec = patch.get("spec") or {}
    if isinstance(spec, dict) and "template" in spec:
        yield "spec.template: the content of the template alone is expected, its metadata and spec"


def _container_problems(patch: Object, container: str) -> Iterator[str]:
    for at, each in enumerate((patch.get("spec") or {}).get("containers") or []):
        if each.get("name") != container and "$patch" not in each:
            yield f"spec.containers[{at}].name: {container} is expected; found {shown(each.get('name'))}"


def _lost(wanted: Any, found: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths of values in `wanted` that are not in `found`."""
    if path in _FREE or (len(path) == 5 and path[-2] in ("requests", "limits")):
        return
    if isinstance(wanted, dict):
        for name, value in wanted.items():
            if not isinstance(found, dict) or (name not in found and value not in (None, {}, [])):
                yield ".".join([*path, name])
            else:
                yield from _lost(value, found.get(name), (*path, name))
    elif isinstance(wanted, list) and wanted and all(isinstance(each, dict) for each in wanted):
        for each in wanted:
            key = next((key for key in _KEYS if key in each), None)
            there = found if isinstance(found, list) else []
            again = next((one for one in there if key and one.get(key) == each[key]), None)
            if again is None and each not in there:
                yield f"{'.'.join(path)}[{each.get(key, '') if key else shown(each)}]"
            elif key:
                yield from _lost(each, again, (*path, str(each[key])))
    elif wanted != found and wanted is not None:
        yield ".".join(path)


def _gpus(template: Object, result: Object) -> str | None:
    """Return what the merge changed in the number of GPUs, or None."""
    before, after = (_amounts(each["spec"]) for each in (template, result))
    if before == after:
        return None
    return f"{GPU} is set by the launch: {before or 'none'}; found {after or 'none'}"


def _amounts(spec: Object) -> list[str]:
    resources = [each.get("resources") or {} for each in spec.get("containers") or []]
    parts = [part for each in resources for part in each.values() if isinstance(part, dict)]
    return [str(part[GPU]) for part in parts if GPU in part]
