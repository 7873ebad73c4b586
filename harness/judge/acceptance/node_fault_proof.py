"""Distinguish a node's own faults from faults in the image, the resource request or a shared component.

A node is tainted only if the tests prove that the node itself is at fault. A cause that occurs on most nodes
is no such proof. For example, an image without CUDA fails everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.judge.acceptance.checks import NO_CUDA
from harness.judge.acceptance.fleet import Fleet
from harness.judge.acceptance.results import NodeResult

OWN = frozenset(
    {
        *("gpu.ecc", "gpu.remapped_rows", "gpu.throttled", "gpu.clocks", "gpu.pcie", "gpu.nvlink"),
        *("gpu.lost", "gpu.inforom"),
        *("compute.wrong", "compute.slow", "compute.unequal", "memory.slow", "copy.slow"),
        *("training.not_reproducible", "straggler.rank", "clock.wrong", "node.bad"),
    }
)
"""Causes that prove a hardware fault of the node. The evidence is either the node's own measurements or a
search across many nodes."""
COMPARED = frozenset({"gpu.absent", "gpu.fewer", "gpu.driver", "memlock.low", "shm.full"})
"""Causes that can originate in the node, the image or the resource request. Such a cause counts as the node's
own fault only if it does not occur on most of the other nodes."""


def doubtful(fleet: Fleet, *, force: bool = False) -> dict[str, str]:
    """Map each failed node that may not itself be at fault to a reason for doubt.

    If more than half of the nodes fail with the same cause, all failed nodes are included. With `force`, such
    a cause counts as each node's own fault.
    """
    reporting = [node for node in fleet.nodes if node.answered]
    failed = [node for node in fleet.nodes if node.verdict == "FAIL"]
    if not force and (shared := shared_cause(fleet)) is not None:
        reason = f"{shared.sentence}; --force taints them anyway"
        return {node.node: _doubt(node, reporting) or reason for node in failed}
    return {node.node: doubt for node in failed if (doubt := _doubt(node, reporting, force)) is not None}


@dataclass(frozen=True)
class Shared:
    """A cause that occurs on more than half of the nodes."""

    cause: str
    count: int
    answered: int

    @property
    def sentence(self) -> str:
        return f"{self.count} of {self.answered} nodes failed with {self.cause}: look for a common reason"


def shared_cause(fleet: Fleet) -> Shared | None:
    """Return the failure cause of more than half of the nodes, and of at least two, or None."""
    reporting = [node for node in fleet.nodes if node.answered]
    causes = dict.fromkeys(cell.cause for node in reporting for cell in node.cells if cell.verdict == "FAIL")
    counts = {cause: sum(_fails(node, cause) for node in reporting) for cause in causes if cause}
    cause, count = max(counts.items(), key=lambda each: each[1], default=("", 0))
    return Shared(cause, count, len(reporting)) if _majority(count, reporting) else None


def image_at_fault(fleet: Fleet) -> str | None:
    """Return the reason why no node can be tested with the image, or None if the image is usable."""
    texts = (cell.text for node in fleet.nodes for cell in node.cells if cell.cause == NO_CUDA)
    return next(texts, None)


def _majority(count: int, reporting: list[NodeResult]) -> bool:
    return count > 1 and 2 * count > len(reporting)


def _doubt(node: NodeResult, reporting: list[NodeResult], force: bool = False) -> str | None:
    causes = dict.fromkeys(cell.cause for cell in node.cells if cell.verdict == "FAIL")
    reasons = []
    for cause in causes:
        failed_count = sum(_fails(other, cause) for other in reporting)
        if cause not in OWN | COMPARED:
            reasons.append(f"{cause or 'a failure without a cause'} might not be the node's own fault")
        elif _majority(failed_count, reporting) and not force:
            reasons.append(Shared(cause, failed_count, len(reporting)).sentence)
        elif cause in COMPARED and len(reporting) < 2:
            reasons.append(f"{cause} may be caused by the image: test at least two nodes to compare them")
        else:
            return None
    return "; ".join(reasons) or "no check of this node failed"


def _fails(node: NodeResult, cause: str | None) -> bool:
    return any(cell.verdict == "FAIL" and cell.cause == cause for cell in node.cells)
