"""Change the controllers' manifests for a new cluster of the harness's own, that somebody waits for.

A cluster of a user gets them as they are published (harness/provision/existing.py): it may have no node of a
control plane that takes pods, and its users read the descriptions.
"""

from __future__ import annotations

import copy
from typing import Any

import yaml

from harness.core.kubernetes import Object

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
DEPLOYMENT, DEFINITION, CONFIGURATION = "Deployment", "CustomResourceDefinition", "ConfigMap"
_FILE = "controller_manager_config.yaml"
_CERTIFICATES, _VISIBILITY = "cert", "visibility"
"""Volumes of the published Deployments. Kueue writes a certificate into the second one, if it makes any."""
_METRICS = "/etc/kueue/metrics/certs"
"""Where a Kueue that makes no certificates looks for those of its metrics."""
_API_SERVER = (
    {"name": "KUBERNETES_SERVICE_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
    {"name": "KUBERNETES_SERVICE_PORT", "value": "6443"},
)
"""A pod's own variables come before the kubelet's. kubeadm's API server is at this port."""
_VALUES = ("default", "enum", "example")
"""Fields of a schema that hold values and no schemas: a `description` in them is somebody's data."""


def quick(document: Object) -> Object:
    """Return the object as a new cluster gets it.

    Deployments, definitions and the controllers' own configurations are changed.
    """
    changes = {DEPLOYMENT: at_once, DEFINITION: undescribed, CONFIGURATION: alone}
    change = changes.get(document["kind"])
    return change(document) if change else document


def at_once(deployment: Object) -> Object:
    """Return the Deployment with its pods on the control plane, asked every second whether they serve.

    That node is Ready before the others, and its taint is tolerated. Its pods reach the API server by the
    node's own address: its Service leads nowhere until kube-proxy has written its rules, seconds later. Kueue
    is asked from 5 s after its start every 10 s otherwise.
    """
    changed = copy.deepcopy(deployment)
    spec = changed["spec"]["template"]["spec"]
    spec["nodeSelector"] = {**spec.get("nodeSelector", {}), CONTROL_PLANE: ""}
    tolerated = {"key": CONTROL_PLANE, "operator": "Exists", "effect": "NoSchedule"}
    spec["tolerations"] = [*spec.get("tolerations", []), tolerated]
    _mount_certificates(spec)
    for container in spec["containers"]:
        container["env"] = [*container.get("env", []), *_API_SERVER]
        if "readinessProbe" in container:
            container["readinessProbe"] |= {"initialDelaySeconds": 0, "periodSeconds": 1}
    return changed


def _mount_certificates(spec: Object) -> None:
    """Mount the webhooks' certificates wherever Kueue, which makes none (`alone`), needs some."""
    volumes = {each["name"]: each for each in spec.get("volumes", [])}
    if _VISIBILITY in volumes:
        volumes[_VISIBILITY] = {**volumes[_CERTIFICATES], "name": _VISIBILITY}
        spec["volumes"] = list(volumes.values())
    for container in spec["containers"]:
        mounts = container.get("volumeMounts", [])
        mounts.extend([{**each, "mountPath": _METRICS} for each in mounts if each["name"] == _CERTIFICATES])


def alone(configuration: Object) -> Object:
    """Return the configuration of a controller that is the only one, and is given its certificates.

    Without an election it goes on at once after a pause, and not when the old lease has expired, 15 s later.
    Kueue starts twice where it makes certificates: first to look after them, and then to serve, 2 s later.
    Those that are given are valid for longer than any cluster lives (certificates.SERVER_DAYS).
    """
    if _FILE not in configuration.get("data", {}):
        return configuration
    settings = yaml.safe_load(configuration["data"][_FILE])
    settings["leaderElection"] = {**settings.get("leaderElection", {}), "leaderElect": False}
    text = yaml.safe_dump({**settings, "internalCertManagement": {"enable": False}})
    return {**configuration, "data": {**configuration["data"], _FILE: text}}


def undescribed(definition: Object) -> Object:
    """Return the definition without the descriptions of its fields.

    They are three quarters of the 1.2 MB of JobSet's and Kueue's. The API server decodes, compares and stores
    each definition several times until it serves: with them that took 10 s of a processor.
    """
    versions = definition["spec"]["versions"]
    bare = [{**each, "schema": _bare(each["schema"])} if "schema" in each else each for each in versions]
    return {**definition, "spec": {**definition["spec"], "versions": bare}}


def _bare(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bare(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value if name in _VALUES else _bare(value)
        for name, value in schema.items()
        if not (name == "description" and isinstance(value, str))
    }
