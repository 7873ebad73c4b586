"""Secrets of the user that the pods of a launch get: read before the launch, copied into its namespace.

A value comes from a Secret of the cluster or from a variable of this process. It goes to the API server
alone: not into a file, not into an argument of a program, and the bundle's redactor knows it.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.core.errors import UsageError
from harness.core.kubeconfig import namespace_of
from harness.core.kubernetes import Kube, Object

HF_TOKEN = "hf-token"  # noqa: S105 - the Secret's name
HF_KEY = "HUGGINGFACE_HUB_TOKEN"
"""The Secret and its key, as the guide has them."""
_HF_VARIABLES = (HF_KEY, "HF_TOKEN")
_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_ASKED = re.compile(rf"(?:(?P<namespace>{_NAME})/)?(?P<name>{_NAME})(?:=(?P<variable>[A-Z_][A-Z0-9_]*))?")
_EXPECTED = "NAME or NAMESPACE/NAME of a Secret, or NAME=VARIABLE of this environment, is expected"


@dataclass(frozen=True)
class Wanted:
    """A Secret that was asked for. Exactly one of its two sources is used."""

    name: str
    namespace: str | None = None
    """Of the Secret. None means the namespace of the kubeconfig's context."""
    variable: str | None = None
    """The variable of this process that holds the value, in place of a Secret of the cluster."""


@dataclass(frozen=True)
class UserSecret:
    """A Secret for the pods. Its values are in no text of it."""

    name: str
    data: Mapping[str, str] = field(repr=False)
    """Key → value in base64, as Kubernetes has it."""
    type: str = "Opaque"

    @property
    def values(self) -> list[str]:
        """Return the values as text, for the redactor and for the hub."""
        return [base64.b64decode(value).decode(errors="replace").strip() for value in self.data.values()]

    def copy(self, namespace: str) -> Object:
        """Return the object for a namespace."""
        metadata = {"name": self.name, "namespace": namespace}
        head = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
        return {**head, "type": self.type, "data": dict(self.data)}


def wanted(text: str) -> Wanted:
    """Return what one `--secret` asks for. Raises UsageError."""
    asked = _ASKED.fullmatch(text)
    if asked is None or (asked["namespace"] and asked["variable"]):
        # What was typed may be a value: it is not repeated.
        raise UsageError(f"--secret: {_EXPECTED}", hint="the value itself never belongs on a command line")
    return Wanted(asked["name"], asked["namespace"], asked["variable"])


def read(
    kube: Kube,
    asked: Iterable[Wanted],
    environment: Mapping[str, str] = os.environ,
    option: str = "--secret",
) -> list[UserSecret]:
    """Return the Secrets. Raises UsageError where one does not exist, or lacks the key that is used.

    `option`: what names them, for the error.
    """
    return [_read(kube, one, environment, option) for one in asked]


def _read(kube: Kube, asked: Wanted, environment: Mapping[str, str], option: str) -> UserSecret:
    if asked.variable is not None:
        return _of_variable(asked, asked.variable, environment)
    namespace = asked.namespace or namespace_of(kube.kubeconfig, kube.context)
    found = kube.get("v1", "Secret", asked.name, namespace)
    if found is None:
        variable = next((name for name in _HF_VARIABLES if environment.get(name)), None)
        if asked.name == HF_TOKEN and asked.namespace is None and variable is not None:
            return _of_variable(asked, variable, environment)
        raise UsageError(
            f"{option} {asked.name}: namespace {namespace} has no Secret of this name",
            hint=f"--secret NAMESPACE/{asked.name}, or --secret {asked.name}=VARIABLE"
            if option == "--secret"
            else "it is read in the namespace of the kubeconfig; HARNESS_IMAGE_PULL_SECRET names any other",
        )
    data = {str(key): str(value) for key, value in (found.get("data") or {}).items()}
    missing = [HF_KEY] if asked.name == HF_TOKEN and HF_KEY not in data else []
    if missing or not data:
        raise UsageError(
            f"--secret {asked.name}: {f'the key {HF_KEY}' if missing else 'a key'} is expected; the Secret "
            f"in namespace {namespace} has {', '.join(sorted(data)) or 'no key'}",
            hint=f"`kubectl create secret generic {asked.name} --from-literal` adds a key",
        )
    if asked.name == HF_TOKEN and not UserSecret(HF_TOKEN, {HF_KEY: data[HF_KEY]}).values[0]:
        raise UsageError(
            f"--secret {HF_TOKEN}: a token is expected; the key {HF_KEY} of the Secret in namespace "
            f"{namespace} is empty"
        )
    return UserSecret(asked.name, data, str(found.get("type") or "Opaque"))


def _of_variable(asked: Wanted, variable: str, environment: Mapping[str, str]) -> UserSecret:
    value = environment.get(variable, "")
    if not value.strip():
        raise UsageError(
            f"--secret {asked.name}: the variable {variable} is expected in the environment; it is "
            f"{'empty' if variable in environment else 'not set'}"
        )
    key = HF_KEY if asked.name == HF_TOKEN else variable
    return UserSecret(asked.name, {key: base64.b64encode(value.encode()).decode()})
