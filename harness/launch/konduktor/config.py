"""Build konduktor's config.yaml, which contains the launch settings that are not in the job file.

konduktor reads node selectors, pull policies and similar settings only from its config. It ignores
experimental.config_overrides in a job file. A user's config is merged with the harness's config, whose values
take precedence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core.errors import UsageError
from harness.core.kubernetes import Object
from harness.core.user_yaml import yaml_document
from harness.launch import inits
from harness.launch.labels import NONCE_LABEL
from harness.launch.mounts import netcheck, recorder
from harness.provision.images import scripts

_COPIED = ("pod_config", "jobset_config")


@dataclass(frozen=True)
class Submission:
    """The input to one call of `konduktor launch`."""

    namespace: str
    nonce: str
    job_yaml: str
    secret_env: dict[str, tuple[str, str]]
    """The environment variables that ranks read from Secrets. Maps each variable's name to (Secret, key)."""
    cpu_request: str | None = None
    """Each pod's CPU request, which replaces the job's CPU request. The CPU limit does not change."""
    users: Object = field(default_factory=dict)
    """The settings from the user's config, as `users_config` returns them."""
    files: list[Object] = field(default_factory=list)
    """The volumeMounts for scripts that have changed since the image was built
    (provision/images/scripts.py)."""
    pull_secret: str | None = None
    """The pull secret for the image, in the launch's namespace."""
    recorder: bool = False
    """Whether the recorder that wraps the Pluto client is mounted (harness/launch/mounts/recorder.py)."""
    netcheck: bool = False
    """Whether netcheck is mounted (harness/launch/mounts/netcheck.py)."""


def users_config(path: Path | None) -> Object:
    """Return kubernetes.pod_config and kubernetes.jobset_config from a user's konduktor config.

    All other settings are ignored, because they could make the job run on another cluster. Raises UsageError
    if the file is not a konduktor config.
    """
    if path is None:
        return {}
    try:
        document = yaml_document(path, "HARNESS_KONDUKTOR_CONFIG")
        settings = (document or {}).get("kubernetes") or {}
        copied = {name: settings[name] for name in _COPIED if name in settings}
    except (AttributeError, TypeError) as error:
        raise UsageError(f"HARNESS_KONDUKTOR_CONFIG {path} is not a konduktor config: {error}") from None
    if not all(isinstance(value, dict) for value in copied.values()):
        raise UsageError(f"HARNESS_KONDUKTOR_CONFIG {path}: {' and '.join(_COPIED)} must be mappings")
    return copied


def konduktor_config(submission: Submission) -> Object:
    """Return a launch's config.yaml, with the launch's label, Secret references, topology spread constraint
    and init."""
    env = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for name, (secret, key) in submission.secret_env.items()
    ]
    label = {NONCE_LABEL: submission.nonce}
    container: Object = {"env": env, "command": [inits.KONDUKTOR]}
    if submission.cpu_request is not None:
        container["resources"] = {"requests": {"cpu": submission.cpu_request}}
    volumes, mounts = scripts.volumes(submission.files), list(submission.files)
    if submission.recorder:
        volumes, mounts = [*volumes, recorder.MOUNTED.volume()], [*mounts, recorder.MOUNTED.mount()]
    if submission.netcheck:
        volumes, mounts = [*volumes, netcheck.MOUNTED.volume()], [*mounts, netcheck.MOUNTED.mount()]
    if volumes:
        container["volumeMounts"] = mounts
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": label},
    }
    pod: Object = {
        "metadata": {"labels": label},
        "spec": {"containers": [container], "topologySpreadConstraints": [spread]},
    }
    if volumes:
        pod["spec"]["volumes"] = volumes
    if submission.pull_secret is not None:
        pod["spec"]["imagePullSecrets"] = [{"name": submission.pull_secret}]
    default = {"pod_config": {"spec": {"containers": [{"imagePullPolicy": "IfNotPresent"}]}}}
    launch_config = {"pod_config": pod, "jobset_config": {"metadata": {"labels": label}}}
    return {
        "apt": {"skip": True},
        "logs": {"backend": "victoria", "timeout": 5},
        "kubernetes": _overlaid(_overlaid(default, submission.users), launch_config),
    }


def _overlaid(base: Any, override: Any, key: str = "") -> Any:
    """Merge two configs in the way that konduktor does. `override` takes precedence.

    Mappings are merged field by field, and the first containers are merged into one. Other lists are
    concatenated.
    """
    if isinstance(base, dict) and isinstance(override, dict):
        return {**base, **{name: _overlaid(base.get(name), value, name) for name, value in override.items()}}
    if isinstance(base, list) and isinstance(override, list):
        if key == "containers" and base and override:
            return [_overlaid(base[0], override[0]), *base[1:], *override[1:]]
        return base + override
    return override
