"""Read the Secrets that a user requests for a launch's pods, and copy them into the launch's namespace.

A value comes from a Secret in the cluster or from an environment variable. It is sent only to the API server.
It is never written to a file or passed as an argument, and the bundle's redactor removes it from evidence.
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
"""The key of the Hugging Face token in the Secret HF_TOKEN."""
_HF_VARIABLES = (HF_KEY, "HF_TOKEN")
_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_SECRET_OPTION = re.compile(
    rf"(?:(?P<namespace>{_NAME})/)?(?P<name>{_NAME})(?:=(?P<variable>[A-Z_][A-Z0-9_]*))?"
)
_SYNTAX = "expected NAME or NAMESPACE/NAME of a Secret, or NAME=VARIABLE with a variable in your environment"


@dataclass(frozen=True)
class Wanted:
    """A Secret that the user requests. Its values come from the cluster or from an environment variable."""

    name: str
    namespace: str | None = None
    """The Secret's namespace. None means the namespace of the kubeconfig's context."""
    variable: str | None = None
    """The environment variable that contains the value. None means that the value is in a Secret in the
    cluster."""


@dataclass(frozen=True)
class UserSecret:
    """A Secret for the pods. Its repr does not contain the values."""

    name: str
    data: Mapping[str, str] = field(repr=False)
    """The values, keyed by name and encoded in base64 as in Kubernetes."""
    type: str = "Opaque"

    @property
    def values(self) -> list[str]:
        """Return the decoded values, for the redactor and for requests to the Hugging Face hub."""
        return [base64.b64decode(value).decode(errors="replace").strip() for value in self.data.values()]

    def copy(self, namespace: str) -> Object:
        """Return the Secret as a Kubernetes object in the given namespace."""
        metadata = {"name": self.name, "namespace": namespace}
        head = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
        return {**head, "type": self.type, "data": dict(self.data)}


def wanted(text: str) -> Wanted:
    """Return the Secret that a `--secret` option requests. Raises UsageError."""
    match = _SECRET_OPTION.fullmatch(text)
    if match is None or (match["namespace"] and match["variable"]):
        # The text may be a secret value, so the message does not repeat it.
        raise UsageError(f"--secret: {_SYNTAX}", hint="never put a secret's value on a command line")
    return Wanted(match["name"], match["namespace"], match["variable"])


def read(
    kube: Kube,
    requests: Iterable[Wanted],
    environment: Mapping[str, str] = os.environ,
    option: str = "--secret",
) -> list[UserSecret]:
    """Return the requested Secrets. Raises UsageError if a Secret or a required key in it does not exist.

    `option` is the command-line option that names the Secrets, for the error message.
    """
    return [_read(kube, one, environment, option) for one in requests]


def _read(kube: Kube, request: Wanted, environment: Mapping[str, str], option: str) -> UserSecret:
    if request.variable is not None:
        return _of_variable(request, request.variable, environment)
    namespace = request.namespace or namespace_of(kube.kubeconfig, kube.context)
    secret = kube.get("v1", "Secret", request.name, namespace)
    if secret is None:
        variable = next((name for name in _HF_VARIABLES if environment.get(name)), None)
        if request.name == HF_TOKEN and request.namespace is None and variable is not None:
            return _of_variable(request, variable, environment)
        raise UsageError(
            f"{option} {request.name}: namespace {namespace} has no Secret with this name",
            hint=f"use --secret NAMESPACE/{request.name}, or --secret {request.name}=VARIABLE"
            if option == "--secret"
            else "create it, or set HARNESS_IMAGE_PULL_SECRET to NAMESPACE/NAME",
        )
    data = {str(key): str(value) for key, value in (secret.get("data") or {}).items()}
    missing = [HF_KEY] if request.name == HF_TOKEN and HF_KEY not in data else []
    if missing or not data:
        raise UsageError(
            f"--secret {request.name}: expected {f'the key {HF_KEY}' if missing else 'a key'}, but the "
            f"Secret in namespace {namespace} has {', '.join(sorted(data)) or 'no key'}",
            hint=f"add the key to the Secret, for example with `kubectl edit secret {request.name} -n "
            f"{namespace}`",
        )
    if request.name == HF_TOKEN and not UserSecret(HF_TOKEN, {HF_KEY: data[HF_KEY]}).values[0]:
        raise UsageError(
            f"--secret {HF_TOKEN}: expected a token in the key {HF_KEY}, but this key of the Secret in "
            "namespace "
            f"{namespace} is empty"
        )
    return UserSecret(request.name, data, str(secret.get("type") or "Opaque"))


def _of_variable(request: Wanted, variable: str, environment: Mapping[str, str]) -> UserSecret:
    value = environment.get(variable, "")
    if not value.strip():
        raise UsageError(
            f"--secret {request.name}: expected a value in the environment variable {variable}, but it is "
            f"{'empty' if variable in environment else 'not set'}"
        )
    key = HF_KEY if request.name == HF_TOKEN else variable
    return UserSecret(request.name, {key: base64.b64encode(value.encode()).decode()})
