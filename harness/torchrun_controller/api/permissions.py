"""Define who may set each field of a job and of its pods.

A job may set a field if the field is free, or if the job's queue lists the value. Fields that are not in the
tables are refused, including those that later Kubernetes versions add. A queue's author controls every field
in the pod template, except those that give a pod access to its node. These also need an entry in the queue's
`privileges`, so that no template grants them by accident.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

By = Literal[
    "free",
    "fields",
    "images",
    "secrets",
    "configMaps",
    "claims",
    "priorityClasses",
    "tolerations",
    "volumes",
    "labels",
    "annotations",
    "mounts",
    "source",
]
"""The condition under which a job may set a field. If it is `free`, any job may set the field. Most other
conditions name a list in the queue's `overrides`, which must contain an entry for the value. The entries in
`fields` are paths. `mounts` and `source` are not lists but rules: a job may mount its own volumes, and may
get its code from an archive or from git. Other mounts and sources need an entry in `fields`.
"""
_CLAIMS = ("workspace", "datasets", "checkpoints")
_VOLUME = "volumes.additionalVolumes[]"


def _all(by: By, *paths: str) -> dict[str, By]:
    return dict.fromkeys(paths, by)


def _below(parent: str, *fields: str) -> list[str]:
    return [f"{parent}.{field}" for field in fields]


JOB: Mapping[str, By] = {
    **_all("free", "queue", "jobQueue", "command", "setupCommand", "suspend", "cancel"),
    **_all("free", "numGPUs", "numNodes", "minNodes", "maxNodes", "processesPerNode"),
    **_all("free", "distributed", "reliability", "env[].name", "env[].value", f"{_VOLUME}.name"),
    **_all("free", *_below("workspaceStorage", "url", "ref", "size"), "storage.shmSizePerGPU"),
    **_all("images", "image", "workspaceStorage.image"),
    **_all("secrets", "env[].valueFrom.secretKeyRef", f"{_VOLUME}.secret", "workspaceStorage.secretName"),
    **_all("configMaps", "env[].valueFrom.configMapKeyRef", f"{_VOLUME}.configMap"),
    **_all("claims", f"{_VOLUME}.persistentVolumeClaim", "workspaceStorage.claimName"),
    **_all("priorityClasses", "scheduling.priorityClassName"),
    **_all("tolerations", "scheduling.tolerations[]"),
    **_all("volumes", _VOLUME),
    **_all("mounts", "volumes.additionalMounts[]"),
    **_all("labels", "labels"),
    **_all("annotations", "annotations"),
    **_all("source", "workspaceStorage.source"),
    **_all("fields", *_below("env[].valueFrom", "fieldRef", "resourceFieldRef", "fileKeyRef")),
    **_all("fields", *_below("scheduling", "scheduler", "nodeSelector", "affinity")),
    **_all(
        "fields",
        *_below("workspaceStorage", "storageClass", "accessMode", "mountPath", "imagePullPolicy"),
    ),
    **{
        path: by
        for claim in _CLAIMS
        for path, by in {
            **_all("free", *_below(f"storage.{claim}", "size", "sizePerGPU")),
            **_all("claims", f"storage.{claim}.claimName"),
            **_all(
                "fields", *_below(f"storage.{claim}", "enabled", "storageClass", "accessMode", "mountPath")
            ),
        }.items()
    },
}
"""The condition for each field in a TorchrunJob's spec.

A condition also applies to all fields below its path, except for fields with their own entry. `[]` stands for
each item of a list.
"""


def grantable() -> list[str]:
    """Return all paths that can be entries of `overrides.fields`: the paths that need an entry, and their
    parents."""
    paths = {path.replace("[]", "") for path, by in JOB.items() if by in ("fields", "mounts", "source")}
    parents = {path.rpartition(".")[0] for path in paths}
    above = {parent.rpartition(".")[0] for parent in parents}
    return sorted((paths | parents | above) - {"", "env", "volumes"})


Privilege = Literal[
    "hostPath",
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "hostPorts",
    "hostProbes",
    "hostProcess",
    "privileged",
    "capabilities",
    "procMount",
    "seLinux",
    "seccomp",
    "appArmor",
    "sysctls",
]
"""The privileges that a queue can list. Each covers fields that the "baseline" Pod Security Standard forbids
or restricts. Every added capability and every sysctl needs a privilege, although "baseline" permits some of
them.
"""
OWNER = ""
"""Marks a field that the queue's author may set in the pod template without a privilege."""
HARMLESS: Mapping[str, tuple[str, ...]] = {
    "procMount": ("Default",),
    "seccomp": ("RuntimeDefault", "Localhost"),
    "appArmor": ("RuntimeDefault", "Localhost"),
}
"""Values that need no privilege. Empty values, such as false and 0, do not need one either."""
_SECURITY: Mapping[str, str] = {
    "seLinuxOptions": "seLinux",
    "seccompProfile": OWNER,
    "seccompProfile.type": "seccomp",
    "appArmorProfile": OWNER,
    "appArmorProfile.type": "appArmor",
    "windowsOptions": OWNER,
    "windowsOptions.hostProcess": "hostProcess",
    **dict.fromkeys(("runAsUser", "runAsGroup", "runAsNonRoot"), OWNER),
}
"""The fields that exist in the security contexts of both pods and containers."""
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle.postStart", "lifecycle.preStop")
_CONTAINER: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("name", "image", "imagePullPolicy", "command", "args", "workingDir", "env", "envFrom", "ports"),
            *("lifecycle", "livenessProbe", "readinessProbe", "startupProbe", "resources", "resizePolicy"),
            *("restartPolicy", "restartPolicyRules", "stdin", "stdinOnce", "tty", "targetContainerName"),
            *("terminationMessagePath", "terminationMessagePolicy", "volumeDevices", "volumeMounts"),
            *_below("securityContext", "allowPrivilegeEscalation", "readOnlyRootFilesystem"),
            "securityContext.capabilities.drop",
        ),
        OWNER,
    ),
    **{f"{of}.{how}.host": "hostProbes" for of in _PROBES for how in ("httpGet", "tcpSocket")},
    **{f"securityContext.{field}": by for field, by in _SECURITY.items()},
    "ports[].hostPort": "hostPorts",
    "securityContext.privileged": "privileged",
    "securityContext.procMount": "procMount",
    "securityContext.capabilities.add": "capabilities",
}
_VOLUMES = (
    *("name", "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "configMap", "csi"),
    *("downwardAPI", "emptyDir", "ephemeral", "fc", "flexVolume", "flocker", "gcePersistentDisk", "gitRepo"),
    *(
        "glusterfs",
        "image",
        "iscsi",
        "nfs",
        "persistentVolumeClaim",
        "photonPersistentDisk",
        "portworxVolume",
    ),
    *("projected", "quobyte", "rbd", "scaleIO", "secret", "storageos", "vsphereVolume"),
)
POD: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "dnsConfig", "dnsPolicy"),
            *("enableServiceLinks", "evictionResponders", "hostAliases", "hostUsers", "hostname"),
            *("hostnameOverride", "imagePullSecrets", "nodeName", "nodeSelector", "os", "overhead"),
            *("preemptionPolicy", "priority", "priorityClassName", "readinessGates", "resourceClaims"),
            *("resources", "restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates"),
            *("schedulingGroup", "serviceAccount", "serviceAccountName", "setHostnameAsFQDN"),
            *("shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds", "tolerations"),
            *("topologySpreadConstraints", "workloadRef"),
            *_below("securityContext", "fsGroup", "fsGroupChangePolicy", "seLinuxChangePolicy"),
            *_below("securityContext", "supplementalGroups", "supplementalGroupsPolicy"),
            *_below("volumes[]", *_VOLUMES),
        ),
        OWNER,
    ),
    **{name: name for name in ("hostNetwork", "hostPID", "hostIPC")},
    **{f"securityContext.{field}": by for field, by in _SECURITY.items()},
    "securityContext.sysctls": "sysctls",
    "volumes[].hostPath": "hostPath",
    **{
        f"{containers}[].{field}": by
        for containers in ("containers", "initContainers", "ephemeralContainers")
        for field, by in _CONTAINER.items()
    },
}
"""Maps each PodSpec field to the privilege that it needs, or to OWNER. As in JOB, an entry also applies to
all fields below its path."""
