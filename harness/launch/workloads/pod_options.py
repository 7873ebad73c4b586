"""Apply `--pod FILE` and `--env NAME=VALUE` to the pods of workloads that the harness generates.

If a variable's name indicates a secret, its value must come from the harness's environment (`--env NAME`), so
that the value does not appear in a process list. The launch stores the value in a Secret, which the pods
reference.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from harness.core.errors import UsageError
from harness.core.input_limits import environment_problems, listed
from harness.core.kubernetes import Object
from harness.core.secret_rules import is_secret_name
from harness.evidence.io.redaction import secrets_in
from harness.launch.pods import merge
from harness.launch.workloads.pod_template_workload import PlainWorkload
from harness.settings import Settings

TAKEN_PREFIXES = ("HARNESS_", "PLUTO_URL_", "PLUTO_API_", "KONDUKTOR_")
TAKEN = frozenset({"NO_PROXY", "PLUTO_DISABLE_TELEMETRY"})
"""The environment variables that users cannot set, because a launch or a setting sets them
(harness.launch.prepare)."""
W = TypeVar("W", bound=PlainWorkload)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class PodOptions:
    """A file to merge into the pod template, and variables for the ranks' container."""

    file: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    kubectl: str = "kubectl"

    def applied(self, workload: W) -> W:
        """Return the workload with the file and the variables applied.

        Raises UsageError if the file or a variable is invalid.
        """
        if self.file is None and not self.env:
            return workload
        document = copy.deepcopy(workload.document)
        template = document["spec"]["template"]
        if self.file is not None:
            merge.check(self.file, workload.container)
            template = merge.merged(template, self.file, self.kubectl)
            document["spec"]["template"] = template
            _check_host_network(template["spec"], workload, self.file)
        container = template["spec"]["containers"][0]
        own = _names(workload.template["spec"]["containers"][0])
        _check_names(_names(container) - own | self.env.keys(), own)
        other_env = [each for each in container.get("env") or [] if each["name"] not in self.env]
        container["env"] = [*other_env, *(_variable(name, value) for name, value in self.env.items())]
        return replace(workload, document=document)


def pod_options(settings: Settings, words: Iterable[str] | None) -> PodOptions:
    """Return a command's pod options. Its `--env` options override the variables in the settings.

    Raises UsageError.
    """
    env = {**settings.env, **variables(words or ())}
    for name in env:
        if not _NAME.fullmatch(name):
            raise UsageError(f"--env: expected a variable name of letters, digits and _, found {name[:60]!r}")
    if problems := listed(environment_problems("--env", list(env.items()))):
        raise UsageError(problems)
    return PodOptions(file=settings.pod, env=env, kubectl=settings.kubectl_bin)


def variables(words: Iterable[str]) -> dict[str, str]:
    """Return the variables from `--env NAME=VALUE` and `--env NAME`. Raises UsageError.

    In the second form, the value comes from this process's environment.
    """
    values: dict[str, str] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if name in values:
            raise UsageError(f"--env {name} is set twice; set it only once")
        if not separator and name not in os.environ:
            raise UsageError(
                f"--env {name}: your environment does not contain this variable",
                hint="use --env NAME=VALUE, or export the variable first",
            )
        if separator and (is_secret_name(name) or secrets_in(value.replace("$", "_"))):
            raise UsageError(
                f"--env {name}=…: other users of this machine can read secrets from a command line",
                hint=f"export {name}, and use `--env {name}` without a value",
            )
        values[name] = value if separator else os.environ[name]
    return values


def by_reference(document: Object, workload: PlainWorkload) -> tuple[Object, str]:
    """Return a copy of an object in which references to a Secret replace the secret values, and a comment.

    The comment explains how to create the Secret. It is empty if there are no secret values.
    """
    names = sorted(workload.secret_envs)
    if not names:
        return document, ""
    result, secret = copy.deepcopy(document), f"{workload.name}-env"
    container = result["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [
        {"name": each["name"], "valueFrom": {"secretKeyRef": {"name": secret, "key": each["name"]}}}
        if each["name"] in names
        else each
        for each in container["env"]
    ]
    return result, (
        f"# The pods read {', '.join(names)} from the Secret {secret}. To create it from NAME=VALUE lines:\n"
        f"# kubectl create secret generic {secret} --from-env-file=FILE\n"
    )


def _variable(name: str, value: str) -> Object:
    # The kubelet expands $(NAME) and replaces $$ with $ in values, but not in the content of Secrets.
    secret = is_secret_name(name) or secrets_in(value)
    return {"name": name, "value": value if secret else value.replace("$", "$$")}


def _names(container: Object) -> set[str]:
    return {str(each["name"]) for each in container.get("env") or []}


def _check_names(names: set[str], own: set[str]) -> None:
    """Raise UsageError if the launch itself sets one of the variables, because it would override the user's
    value."""
    if reserved := sorted(name for name in names if name in TAKEN | own or name.startswith(TAKEN_PREFIXES)):
        raise UsageError(
            f"the launch itself sets {', '.join(reserved)}",
            hint="do not set this with --env, --pod or HARNESS_ENV; use the command's options and "
            "HARNESS_… settings instead",
        )


def _check_host_network(spec: Object, workload: PlainWorkload, file: Path) -> None:
    policy = spec.get("dnsPolicy")
    if spec.get("hostNetwork") and workload.first_host is not None and policy != "ClusterFirstWithHostNet":
        raise UsageError(
            f"--pod {file}: with hostNetwork, pods can resolve each other's names only if dnsPolicy is "
            f"ClusterFirstWithHostNet; found {policy or 'no dnsPolicy'}",
            hint="add `dnsPolicy: ClusterFirstWithHostNet` to the spec in this file",
        )
