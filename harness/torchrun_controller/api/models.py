"""TorchrunQueue and TorchrunJob as typed models. The CRDs are generated from them (crd.py).

They have the fields of the original's README (`jobQueue`, `numGPUs`, `kaiQueue`, `nodeResources`, `storage`)
and of its code (`queue`, `numNodes`, `podTemplate`, `resources`). What an object leaves out has the same
default in the CRD and here, also where the object around it is left out.
"""

from __future__ import annotations

from harness.torchrun_controller.api.job import (
    FINISHED,
    JobSpec,
    JobStatus,
    Phase,
    Reliability,
    Workers,
    WorkspaceStorage,
)
from harness.torchrun_controller.api.queue import (
    QueueSpec,
    QueueStatus,
    ResourceStatus,
    ResourceTemplate,
)
from harness.torchrun_controller.api.shared import (
    Claim,
    Distributed,
    Scheduling,
    Storage,
)

__all__ = [
    "FINISHED",
    "Claim",
    "Distributed",
    "JobSpec",
    "JobStatus",
    "Phase",
    "QueueSpec",
    "QueueStatus",
    "Reliability",
    "ResourceStatus",
    "ResourceTemplate",
    "Scheduling",
    "Storage",
    "Workers",
    "WorkspaceStorage",
]
