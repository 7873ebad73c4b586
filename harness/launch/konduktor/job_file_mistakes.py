"""Find the mistakes in a job file before any object is created.

For most of these mistakes, konduktor itself prints a traceback. It silently accepts some values that later
fail in the cluster (names longer than 40 characters, `A_b`) or have no effect (`setup`, `experimental`). The
fields are those of konduktor-nightly 0.1.0.dev20261027031956 (utils/schemas.py, resource.py, task.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from harness.core.input_limits import (
    MAX_KONDUKTOR_NODES,
    MAX_SCRIPT_BYTES,
    count_problem,
    environment_problems,
    image_problem,
    shown,
    text_problem,
)

DURATION_LABEL = "maxRunDurationSeconds"
MAX_NAME = 40
_FIELDS = (
    *("name", "num_nodes", "resources", "envs", "run", "workdir", "file_mounts", "serving"),
    *("event_callback", "service", "inputs", "outputs"),
)
_UNUSED = {
    "setup": "konduktor never runs these commands: move them to run",
    "experimental": "konduktor ignores this field: put kubernetes.pod_config into a konduktor config file, "
    "and set HARNESS_KONDUKTOR_CONFIG to its path",
}
_RESOURCES = ("cpus", "memory", "image_id", "labels", "accelerators", "job_config", "disk_size")
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", re.ASCII)


def mistakes(document: Any) -> Iterator[str]:
    """Yield a message for each mistake, in the form "field: expected …, found …"."""
    if document is None:
        yield "the file is empty; expected name, run and resources"
        return
    if not isinstance(document, dict):
        yield f"expected a mapping of fields, found {_kind(document)}"
        return
    yield from _unknown(document, _FIELDS, "")
    name = document.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        length = f" ({len(name)} characters)" if isinstance(name, str) and len(name) > MAX_NAME else ""
        yield (
            f"name: expected at most {MAX_NAME} lower-case letters, digits and '-', beginning with a letter "
            f"(konduktor and JobSet append suffixes to the name), found {shown(name)}{length}"
        )
    nodes = count_problem("num_nodes", document.get("num_nodes", 1), MAX_KONDUKTOR_NODES, "nodes")
    if nodes is not None:
        yield nodes
    run = document.get("run")
    if not isinstance(run, str) or not run.strip():
        yield f"run: expected the commands for every node, as text, found {_kind(run)}"
    elif problem := text_problem("run", run, MAX_SCRIPT_BYTES):
        yield problem
    yield from _envs(document.get("envs"))
    yield from _resources(document.get("resources"))


def _kind(value: Any) -> str:
    """Return the name of a value's YAML type, for messages."""
    if value is None:
        return "nothing"
    kinds = {dict: "a mapping", list: "a list", str: "text", bool: "true or false"}
    return f"blank {kinds[str]}" if value == "" else kinds.get(type(value), "a number")


def _unknown(mapping: dict[Any, Any], fields: Iterable[str], prefix: str) -> Iterator[str]:
    for field in mapping:
        if field in fields:
            continue
        if not prefix and field in _UNUSED:
            yield f"{field}: {_UNUSED[field]}"
            continue
        close = get_close_matches(str(field)[:64], fields, 1)
        suggestion = f"did you mean {close[0]!r}?" if close else f"konduktor's fields are {', '.join(fields)}"
        yield f"{prefix}{str(field)[:64]}: konduktor has no such field; {suggestion}"


def _envs(envs: Any) -> Iterator[str]:
    if envs is None:
        return
    if not isinstance(envs, dict):
        yield f"envs: expected a mapping of names to values, found {_kind(envs)}"
        return
    for name, value in envs.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            yield (
                "envs: expected a name of letters, digits and '_' that does not begin with a digit, "
                f"found {shown(name)}"
            )
        elif value is None or isinstance(value, dict | list):
            yield f'envs.{name}: expected a string ("" for an empty value) or a number, found {_kind(value)}'
    yield from environment_problems("envs", [(str(name), str(value)) for name, value in envs.items()])


def _resources(resources: Any) -> Iterator[str]:
    if not isinstance(resources, dict):
        yield "resources: expected a mapping with cpus, memory and image_id"
        return
    yield from _unknown(resources, _RESOURCES, "resources.")
    yield from _amount(resources, "cpus", r"\d{1,9}(\.\d{1,20})?", "a number of CPUs, e.g. 2 or 0.5")
    yield from _amount(resources, "memory", r"\d{1,9}", "a whole number of GiB")
    yield from _image(resources.get("image_id"))
    yield from _labels(resources.get("labels"))


def _amount(resources: dict[str, Any], field: str, shape: str, expected: str) -> Iterator[str]:
    value = resources.get(field)
    number = isinstance(value, int | float | str) and not isinstance(value, bool)
    if not number or not re.fullmatch(shape, str(value), re.ASCII) or float(value or 0) <= 0:
        yield f"resources.{field}: expected {expected}, found {'nothing' if value is None else shown(value)}"


def _image(image: Any) -> Iterator[str]:
    if not isinstance(image, str) or not image.strip():
        yield f"resources.image_id: expected the name of an image, found {_kind(image)}"
    elif problem := image_problem("resources.image_id", image):
        yield problem
    elif image.endswith(":latest") or ("@" not in image and ":" not in image.rsplit("/", 1)[-1]):
        yield (
            "resources.image_id: expected an image with a digest, or with a tag other than latest, "
            f"found {image!r}"
        )


def _labels(labels: Any) -> Iterator[str]:
    if labels is None:
        return
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        yield "resources.labels: expected a mapping of strings to strings (put numbers in quotes)"
        return
    for key, value in labels.items():
        if not isinstance(key, str) or not _LABEL_KEY.fullmatch(key):
            yield f"resources.labels: {shown(key)} is not a valid Kubernetes label name"
        elif not _LABEL_VALUE.fullmatch(value):
            yield (
                f"resources.labels.{key}: expected at most 63 letters, digits, '-', '_' and '.', with a "
                f"letter or digit at both ends, found {shown(value)}"
            )
    duration = labels.get(DURATION_LABEL, "1")
    if not re.fullmatch(r"\d{1,9}", duration, re.ASCII):
        yield (
            f"resources.labels.{DURATION_LABEL}: expected a whole number of seconds, found {shown(duration)}"
        )
