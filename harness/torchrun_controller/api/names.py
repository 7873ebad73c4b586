"""Names that the controller, the command line and the tests share."""

from __future__ import annotations

import hashlib

GROUP = "torchrun.ai"
VERSION = "v1alpha1"
API = f"{GROUP}/{VERSION}"
JOB_KIND = "TorchrunJob"
QUEUE_KIND = "TorchrunQueue"
JOBSET_API = "jobset.x-k8s.io/v1alpha2"
JOBSET_MANAGER = "jobset.sigs.k8s.io/jobset-controller"
"""The value of a JobSet's field managedBy with which the JobSet controller of this cluster reconciles it."""
KUEUE_API = "kueue.x-k8s.io/v1beta2"
KAI_API = "scheduling.run.ai/v2"

TRAINER = "trainer"
"""The name of the container in which torchrun runs. It is the first container in a pod template."""
NODES = "node"
"""The name of the replicated job in a JobSet. With it, the host name of pod 0 is `<job>-node-0-0.<job>`."""
LONGEST_JOB_NAME = 50
"""The maximum length of a job's name.

The host name of pod 9999, `<job>-node-0-9999`, is a DNS label and therefore limited to 63 characters.
"""

LONGEST_LABEL = 63
"""The maximum length of a label value."""
LONGEST_STATEFUL_SET_NAME = 52
"""The maximum length of a StatefulSet's name. Its pods have a label with this name, `-` and a hash of at most
10 characters. If the label is too long, the StatefulSet is accepted, but no pod is created.
"""
SYNC = "-sync"

JOB_LABEL = "torchrun-job-name"
"""The label on pods, JobSets and claims that contains the name of their job. The original operator uses the
same label, so `kubectl get pods -l torchrun-job-name=NAME` works with both.
"""
QUEUE_LABEL = "torchrun-queue-name"
NAMESPACE_LABEL = f"{GROUP}/queue-namespace"
"""The label on a kai-scheduler Queue that contains the namespace of its TorchrunQueue. The Queue itself is
cluster-scoped."""
GPU_TYPE_LABEL = f"{GROUP}/gpu-type"
TEMPLATE_ANNOTATION = f"{GROUP}/template"
"""The annotation on a JobSet that contains a digest of its spec."""
WORKSPACE_ANNOTATION = f"{GROUP}/workspace"
"""The annotation on a TorchrunJob that contains the digest of the uploaded workspace. The pods wait until
this code arrives."""
PARTS_ANNOTATION = f"{GROUP}/workspace-parts"
"""The annotation on a TorchrunJob that contains the number of Secrets that store its code. It is empty during
the upload."""
STORED_ANNOTATION = f"{GROUP}/workspace-kept"
"""The annotation on a TorchrunJob whose value is "true" if the job's code is stored in Secrets or in the
`<job>-sync-0` pod."""
GENERATION_ANNOTATION = f"{GROUP}/workspace-generation"
"""The annotation on a TorchrunJob that contains the generation of the code that was stored most recently."""
PART_LABEL = f"{GROUP}/workspace-of"
"""The label on the Secrets and the pod that store a job's code. It contains the job's UID."""
PART_KEY = "part"
MAX_PARTS = 8
"""The maximum number of Secrets for the code of one job. Each Secret contains up to 1 MB. The number is
limited, because a cluster's etcd stores only 2 GiB."""
UPLOADING, UPLOADING_TO_POD = "Uploading", "UploadingToPod"
"""Reasons of a job's WorkspaceReady condition while its code is uploaded to Secrets, or to the pod that
stores the code."""
ARCHIVE_PORT = 29400
SPARE_PARTS = 2
"""The number of additional Secrets that a pod can mount. They need not exist when the pod starts, but a later
sync may create them."""
NAMESPACES_ANNOTATION = f"{GROUP}/namespaces"
"""The annotation on a ClusterQueue that lists the namespaces whose TorchrunQueues may use it.

The value is a comma-separated list, or *. Only administrators can write the annotation, because a
ClusterQueue is cluster-scoped.
"""
FINALIZER = f"{GROUP}/kai-queue"
"""The finalizer on a TorchrunQueue. The controller removes it after it has deleted the kai-scheduler Queue.
That Queue is cluster-scoped, so the namespaced TorchrunQueue cannot be its owner.
"""
RESERVED = r"PET_\w+|TORCHRUN_\w+|JOB_COMPLETION_INDEX"
"""Matches names of environment variables that torchrun reads as options, or that the controller sets in the
pods."""
PERMITTED = {"PersistentVolumeClaim": "v1", "ConfigMap": "v1"}
"""The kinds permitted in a queue's resource templates. The controller's role permits no other kinds."""
FIELD_MANAGER = "torchrun-controller"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
ATTEMPT_LABEL = "jobset.sigs.k8s.io/restart-attempt"
KUEUE_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
KAI_QUEUE_LABEL = "kai.scheduler/queue"


def workspace_claim(job: str) -> str:
    """Return the name of a job's workspace claim."""
    return f"{job}-workspace"


def archive_server(job: str) -> str:
    """Return the name that the StatefulSet and its Service share. The StatefulSet's pod `<job>-sync-0` stores
    a job's code. Long job names are shortened, and end with a digest."""
    name = f"{job}{SYNC}"
    if len(name) <= LONGEST_STATEFUL_SET_NAME:
        return name
    digest = hashlib.sha256(job.encode()).hexdigest()[:8]
    return f"{job[: LONGEST_STATEFUL_SET_NAME - len(SYNC) - 9].rstrip('-')}-{digest}{SYNC}"


def queue_label(queue: str) -> str:
    """Return the value of QUEUE_LABEL for a TorchrunQueue, whose name can be longer than a label value."""
    return queue[:LONGEST_LABEL].rstrip("-.")


def workspace_part(job: str, index: int) -> str:
    """Return the name of the Secret that stores part `index` of a job's code."""
    return f"{job}-workspace-{index}"


def host(job: str, rank: int) -> str:
    """Return the host name of the pod with node rank `rank`.

    The other pods of the job can resolve this name.
    """
    return f"{job}-{NODES}-0-{rank}.{job}"


DATASETS = "-datasets"
"""The suffix of the name of the claim that all jobs of a queue share. Every other claim is used only by jobs
of one name."""
PLUGIN = "kubectl-torchrun"
"""The program that kubectl runs for `kubectl torchrun`."""
SETUP_FAILED = "setupCommand ended with exit code"
"""The beginning of the line that a trainer logs if its setup command fails. The exit code follows."""
