"""Names that the controller, the command line and the tests agree on."""

from __future__ import annotations

GROUP = "torchrun.ai"
VERSION = "v1alpha1"
API = f"{GROUP}/{VERSION}"
JOB_KIND = "TorchrunJob"
QUEUE_KIND = "TorchrunQueue"
JOBSET_API = "jobset.x-k8s.io/v1alpha2"
KUEUE_API = "kueue.x-k8s.io/v1beta2"
KAI_API = "scheduling.run.ai/v2"

TRAINER = "trainer"
"""The container that torchrun runs in. It is the first one of a pod template."""
NODES = "node"
"""The name of the replicated job: pod 0 has the host name `<job>-node-0-0.<job>`."""
LONGEST_JOB_NAME = 50
"""Pod 9999 has the host name `<job>-node-0-9999`, which is a DNS label of at most 63 characters."""

JOB_LABEL = "torchrun-job-name"
"""On pods, JobSets and claims, as the original has it: `kubectl get pods -l torchrun-job-name=NAME`."""
QUEUE_LABEL = "torchrun-queue-name"
GPU_TYPE_LABEL = f"{GROUP}/gpu-type"
TEMPLATE_ANNOTATION = f"{GROUP}/template"
"""On a JobSet: the digest of what it was made from."""
WORKSPACE_ANNOTATION = f"{GROUP}/workspace"
"""On a TorchrunJob: the digest of the workspace that the command line uploads. Its pods wait for it."""
PARTS_ANNOTATION = f"{GROUP}/workspace-parts"
"""On a TorchrunJob: how many Secrets keep its code; 0 when none does, empty while they are being made."""
KEPT_ANNOTATION = f"{GROUP}/workspace-kept"
"""On a TorchrunJob: true when the cluster keeps its code, in Secrets or in the pod that holds it."""
GENERATION_ANNOTATION = f"{GROUP}/workspace-generation"
"""On a TorchrunJob: the generation of the code that was kept last."""
PART_LABEL = f"{GROUP}/workspace-of"
"""On these Secrets: the UID of their job."""
PART_KEY = "part"
MAX_PARTS = 8
"""Secrets of 1 MB for the code of one job: etcd has 2 GiB for all that is in a cluster."""
UPLOADING, UPLOADING_TO_POD = "Uploading", "UploadingToPod"
"""Reasons of the condition WorkspaceReady: a job without and with a pod that holds its code."""
HOLDER_PORT = 29400
SPARE_PARTS = 2
"""Parts that pods look for besides: the code of a later sync may be larger."""
FINALIZER = f"{GROUP}/kai-queue"
"""On a TorchrunQueue: its kai-scheduler Queue is cluster-scoped, so no owner reference deletes it."""
RESERVED = r"PET_\w+|TORCHRUN_\w+|JOB_COMPLETION_INDEX"
"""Variables that torchrun reads as its options, or that the controller sets."""
PERMITTED = {"PersistentVolumeClaim": "v1", "ConfigMap": "v1"}
"""Kinds of a queue's resource templates. The controller's role allows it no others."""
FIELD_MANAGER = "torchrun-controller"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
ATTEMPT_LABEL = "jobset.sigs.k8s.io/restart-attempt"
KUEUE_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
KUEUE_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
KAI_QUEUE_LABEL = "kai.scheduler/queue"


def workspace_claim(job: str) -> str:
    """Return the name of a job's workspace claim."""
    return f"{job}-workspace"


def holder(job: str) -> str:
    """Return the name of the StatefulSet and Service of the pod that holds a job's code: `<job>-sync-0`."""
    return f"{job}-sync"


def workspace_part(job: str, index: int) -> str:
    """Return the name of a Secret that keeps a part of a job's code."""
    return f"{job}-workspace-{index}"


def host(job: str, rank: int) -> str:
    """Return the name by which the pods of a job reach the one of this node rank."""
    return f"{job}-{NODES}-0-{rank}.{job}"


PLUGIN = "kubectl-torchrun"
"""The program that kubectl runs for `kubectl torchrun`."""
SETUP_FAILED = "setupCommand ended with exit code"
"""The line by which a trainer says that its setup failed, before the code."""
