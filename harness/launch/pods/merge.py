"""Merge a user's file into a pod template with `kubectl patch --type strategic`.

kubectl merges locally, without a cluster, and uses Kubernetes's merge keys for lists. Tolerations are an
exception: Kubernetes would replace the list, but here the file's tolerations are added to it. The file can
change only values on which the launch does not depend.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.core import processes
from harness.core.errors import UsageError
from harness.core.input_limits import listed, shown
from harness.core.kubernetes import Object
from harness.core.user_yaml import yaml_document
from harness.launch.pods import fields as pod_fields

EXAMPLE = "write a pod's metadata and spec, for example `spec: {tolerations: [{operator: Exists}]}`"
GPU = "nvidia.com/gpu"
_HEAD = {"apiVersion": "v1", "kind": "Pod"}
_MERGE = (*("--kubeconfig=/dev/null", "patch", "--local", "--type=strategic"), *("-f", "-", "-o", "json"))
_SECONDS = 30
_KEYS = ("name", "mountPath", "containerPort", "topologyKey", "key")
"""Fields that identify an item in a list of a pod's spec, such as a container's name."""
_FREE = {("spec", "tolerations"), ("spec", "topologySpreadConstraints")}
"""Paths of values that the --pod file can change. The file can also change containers' requests and limits,
except for GPUs."""


def check(file: Path, container: str) -> None:
    """Raise UsageError if the file is missing, does not contain part of a pod in YAML, or names another
    container.

    `container` is the name of the ranks' container.
    """
    option = f"--pod {file}"
    document = yaml_document(file, "--pod", hint=EXAMPLE)
    if not isinstance(document, dict) or not set(document) <= {*_HEAD, "metadata", "spec"}:
        content = shown(sorted(map(str, document)) if isinstance(document, dict) else document)
        raise UsageError(f"{option}: expected the metadata and spec of a pod, found {content}", hint=EXAMPLE)
    if (kind := document.get("kind", "Pod")) != "Pod" or document.get("apiVersion", "v1") != "v1":
        raise UsageError(
            f"{option}: expected apiVersion v1 and kind Pod, found "
            f"{shown(document.get('apiVersion', 'v1'))} and {shown(kind)}",
            hint="remove everything except the pod template",
        )
    patch = {part: document[part] for part in ("metadata", "spec") if document.get(part) is not None}
    spec = patch.get("spec", {})
    fields = (
        {name: value for name, value in spec.items() if name != "template"}
        if isinstance(spec, dict)
        else spec
    )
    if problems := listed([*_head_problems(patch), *pod_fields.problems(fields, "V1PodSpec", "spec")]):
        raise UsageError(f"{option}: {problems}", hint=EXAMPLE)
    if problems := listed(_container_problems(patch, container)):
        raise UsageError(
            f"{option}: {problems}", hint="the file can change this container, but it cannot add containers"
        )


def merged(template: Object, file: Path, kubectl: str) -> Object:
    """Return the pod template merged with a checked file.

    Raises UsageError if the file would change a value that the launch sets.
    """
    base = {**_HEAD, **template, "metadata": {**(template.get("metadata") or {}), "name": "template"}}
    completed = processes.run(
        [kubectl, *_MERGE, f"--patch-file={file}"],
        stdin=json.dumps(base),
        timeout=_SECONDS,
        check=False,
        hint="--pod requires kubectl; run `harness doctor` to see which programs are missing",
    )
    if completed.returncode:
        raise UsageError(f"--pod {file} cannot be merged: {completed.stderr.strip()}", hint=EXAMPLE)
    pod = json.loads(completed.stdout)
    result: Object = {"metadata": pod.get("metadata") or {}, "spec": pod.get("spec") or {}}
    result["metadata"].pop("name", None)
    if changes := listed(f"{path}" for path in _differences(template, result, ())):
        raise UsageError(
            f"--pod {file} changes or removes fields that the launch sets: {changes}",
            hint="remove these fields from the file; use the command's options for the image, the GPUs and "
            "the command",
        )
    if problem := _gpus(template, result):
        raise UsageError(f"--pod {file}: {problem}", hint="use --gpus-per-pod to set a pod's number of GPUs")
    _add_tolerations(template, result)
    return result


def _add_tolerations(template: Object, result: Object) -> None:
    """Combine the tolerations from the template and the file."""
    tolerations = result["spec"].get("tolerations") or []
    own = [each for each in template["spec"].get("tolerations") or [] if each not in tolerations]
    if own or tolerations:
        result["spec"]["tolerations"] = [*own, *tolerations]


def _head_problems(patch: Object) -> Iterator[str]:
    for part, value in patch.items():
        if not isinstance(value, dict):
            yield f"{part}: expected a mapping, found {shown(value)}"
    metadata = patch.get("metadata") or {}
    for name, value in metadata.items() if isinstance(metadata, dict) else ():
        if name not in ("labels", "annotations"):
            yield f"metadata.{name}: the file can set only labels and annotations in metadata"
        elif not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            yield f"metadata.{name}: expected a mapping of strings, found {shown(value)}"
    spec = patch.get("spec") or {}
    if isinstance(spec, dict) and "template" in spec:
        yield "spec.template: move the template's metadata and spec to the top level of the file"


def _container_problems(patch: Object, container: str) -> Iterator[str]:
    for at, each in enumerate((patch.get("spec") or {}).get("containers") or []):
        if each.get("name") != container and "$patch" not in each:
            yield f"spec.containers[{at}].name: expected {container}, found {shown(each.get('name'))}"


def _differences(expected: Any, actual: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths of values in `expected` that are missing or different in `actual`."""
    if path in _FREE or (len(path) == 5 and path[-2] in ("requests", "limits")):
        return
    if isinstance(expected, dict):
        for name, value in expected.items():
            if not isinstance(actual, dict) or (name not in actual and value not in (None, {}, [])):
                yield ".".join([*path, name])
            else:
                yield from _differences(value, actual.get(name), (*path, name))
    elif isinstance(expected, list) and expected and all(isinstance(each, dict) for each in expected):
        for each in expected:
            key = next((key for key in _KEYS if key in each), None)
            elements = actual if isinstance(actual, list) else []
            counterpart = next((one for one in elements if key and one.get(key) == each[key]), None)
            if counterpart is None and each not in elements:
                yield f"{'.'.join(path)}[{each.get(key, '') if key else shown(each)}]"
            elif key:
                yield from _differences(each, counterpart, (*path, str(each[key])))
    elif expected != actual and expected is not None:
        yield ".".join(path)


def _gpus(template: Object, result: Object) -> str | None:
    """Return an error message if merging changed the number of GPUs, otherwise None."""
    before, after = (_amounts(each["spec"]) for each in (template, result))
    if before == after:
        return None
    return f"the launch requests {GPU}: {before or 'none'}, but the file changes this to {after or 'none'}"


def _amounts(spec: Object) -> list[str]:
    resources = [each.get("resources") or {} for each in spec.get("containers") or []]
    parts = [part for each in resources for part in each.values() if isinstance(part, dict)]
    return [str(part[GPU]) for part in parts if GPU in part]
