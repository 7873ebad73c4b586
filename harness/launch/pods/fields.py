"""Find unknown fields and values of the wrong type in a pod, using the Kubernetes client's models.

The API server also rejects such pods, but only after the cluster and a namespace have been created.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from kubernetes.client import models

from harness.core.input_limits import shown

_SCALARS: dict[str, Any] = {"str": str, "int": int, "bool": bool}
_WORDS = {"str": "a string", "int": "a whole number", "bool": "true or false"}
_QUANTITIES = (".sizeLimit", ".divisor")
"""String fields whose paths end in one of these suffixes also accept numbers."""
_MAPS_OF_QUANTITIES = (".requests", ".limits", ".overhead")


def problems(value: Any, kind: str, path: str, *, newer: bool = False) -> Iterator[str]:
    """Yield each problem in a value, with its path. `kind` is the value's type in the Kubernetes client.

    If `newer` is true, unknown fields are accepted unless they resemble a known field, because the cluster
    may be newer than the client.
    """
    if kind.startswith("List["):
        if not isinstance(value, list):
            yield f"{path}: expected a list, found {shown(value)}"
            return
        for at, each in enumerate(value):
            yield from problems(each, kind[5:-1], f"{path}[{at}]", newer=newer)
    elif kind.startswith("Dict["):
        if not isinstance(value, dict):
            yield f"{path}: expected a mapping, found {shown(value)}"
            return
        types = (str, int, float) if path.endswith(_MAPS_OF_QUANTITIES) else str
        for name, each in value.items():
            if each is not None and (not isinstance(each, types) or isinstance(each, bool)):
                yield f"{path}.{name}: expected a string, found {shown(each)}"
    elif hasattr(models, kind):
        yield from _field_problems(value, getattr(models, kind), path, newer)
    elif kind in _SCALARS and type(value) is not _SCALARS[kind]:
        if path.endswith(_QUANTITIES) and type(value) in (int, float):
            return
        # The message omits the value of an environment variable, because it may be a secret.
        actual = "" if path.endswith(".value") else f", found {shown(value)}"
        suggestion = ": put it in quotes" if kind == "str" and isinstance(value, int | float) else ""
        yield f"{path}: expected {_WORDS[kind]}{actual}{suggestion}"


def _field_problems(value: Any, model: Any, path: str, newer: bool) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: expected a mapping, found {shown(value)}"
        return
    kinds = {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}
    for name, each in value.items():
        if str(name).startswith("$"):  # The key is a merge directive, such as $patch.
            continue
        if name not in kinds:
            close_matches = difflib.get_close_matches(str(name), kinds, n=1)
            if close_matches or not newer:
                hint = f"; did you mean {close_matches[0]}?" if close_matches else ""
                yield f"{path}.{name}: Kubernetes has no such field{hint}"
        elif each is not None:
            yield from problems(each, kinds[name], f"{path}.{name}", newer=newer)
