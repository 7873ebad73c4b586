"""Change the controllers' manifests so that they start faster in a new harness cluster.

On a user's cluster, the published manifests are applied instead (harness/provision/existing.py), because its
control plane might not accept pods and its users read the field descriptions.
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
"""The names of volumes in the published Deployments. If Kueue creates its own certificates, it writes them to
the `visibility` volume."""
_METRICS = "/etc/kueue/metrics/certs"
"""The path at which Kueue expects its metrics certificates if it does not create them itself."""
_API_SERVER = (
    {"name": "KUBERNETES_SERVICE_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
    {"name": "KUBERNETES_SERVICE_PORT", "value": "6443"},
)
"""Environment variables with the API server's address: the IP address of the pod's node, and the port on
which kubeadm's API server listens.

A pod's own variables override those that the kubelet sets.
"""
_VALUES = ("default", "enum", "example")
"""Schema fields that contain values instead of schemas. A `description` inside them is data, and is therefore
kept."""


def quick(document: Object) -> Object:
    """Return an object of a published manifest, changed so that it starts faster in a new harness cluster.

    Only Deployments, CRDs and the controllers' configurations are changed.
    """
    changes = {DEPLOYMENT: at_once, DEFINITION: undescribed, CONFIGURATION: single_replica}
    change = changes.get(document["kind"])
    return change(document) if change else document


def at_once(deployment: Object) -> Object:
    """Return the Deployment, changed to run its pods on the control plane and to probe their readiness every
    second. The control plane is Ready before the other nodes, and the pods get a toleration for its taint.
    They reach the API server at the node's own address, because the API server's Service works only seconds
    later, after kube-proxy has written its rules. Kueue's published probe has an initial delay of 5 s and a
    period of 10 s.
    """
    changed = copy.deepcopy(deployment)
    spec = changed["spec"]["template"]["spec"]
    spec["nodeSelector"] = {**spec.get("nodeSelector", {}), CONTROL_PLANE: ""}
    toleration = {"key": CONTROL_PLANE, "operator": "Exists", "effect": "NoSchedule"}
    spec["tolerations"] = [*spec.get("tolerations", []), toleration]
    _mount_certificates(spec)
    for container in spec["containers"]:
        container["env"] = [*container.get("env", []), *_API_SERVER]
        if "readinessProbe" in container:
            container["readinessProbe"] |= {"initialDelaySeconds": 0, "periodSeconds": 1}
    return changed


def _mount_certificates(spec: Object) -> None:
    """Mount the webhooks' certificates at every path where Kueue expects them (see `single_replica`)."""
    volumes = {each["name"]: each for each in spec.get("volumes", [])}
    if _VISIBILITY in volumes:
        volumes[_VISIBILITY] = {**volumes[_CERTIFICATES], "name": _VISIBILITY}
        spec["volumes"] = list(volumes.values())
    for container in spec["containers"]:
        mounts = container.get("volumeMounts", [])
        mounts.extend([{**each, "mountPath": _METRICS} for each in mounts if each["name"] == _CERTIFICATES])


def single_replica(configuration: Object) -> Object:
    """Return a controller's configuration for a single replica with certificates that already exist.

    Without leader election, the controller continues immediately when a paused cluster is started again. With
    leader election, it would wait 15 s for the old lease to expire. If Kueue manages its own certificates, it
    starts once to create them, and again 2 s later to use them. The certificates that the harness creates are
    valid for longer than any cluster exists (certificates.SERVER_DAYS).
    """
    if _FILE not in configuration.get("data", {}):
        return configuration
    settings = yaml.safe_load(configuration["data"][_FILE])
    settings["leaderElection"] = {**settings.get("leaderElection", {}), "leaderElect": False}
    text = yaml.safe_dump({**settings, "internalCertManagement": {"enable": False}})
    return {**configuration, "data": {**configuration["data"], _FILE: text}}


def undescribed(definition: Object) -> Object:
    """Return the CRD without its field descriptions.

    Descriptions make up three quarters of JobSet's and Kueue's CRDs (1.2 MB). Before the API server serves a
    CRD, it decodes, compares and stores the CRD several times. With descriptions, this takes 10 s of CPU
    time.
    """
    versions = definition["spec"]["versions"]
    stripped = [{**each, "schema": _bare(each["schema"])} if "schema" in each else each for each in versions]
    return {**definition, "spec": {**definition["spec"], "versions": stripped}}


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
