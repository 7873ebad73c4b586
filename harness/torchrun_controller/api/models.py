"""The typed models of TorchrunQueue and TorchrunJob, from which crd_generator.py generates the CRDs.

The models accept the fields in the original operator's README (`jobQueue`, `numGPUs`, `kaiQueue`,
`nodeResources`, `storage`) and the fields in its code (`queue`, `numNodes`, `podTemplate`, `resources`). An
omitted field has the same default in the CRD and in the model, even if its parent object is omitted too.
"""

from __future__ import annotations

from harness.torchrun_controller.api.job_fields import (
    FINISHED,
    JobSpec,
    JobStatus,
    Phase,
    Reliability,
    Workers,
    WorkspaceStorage,
)
from harness.torchrun_controller.api.queue_fields import (
    QueueSpec,
    QueueStatus,
    ResourceStatus,
    ResourceTemplate,
)
from harness.torchrun_controller.api.shared_fields import (
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
