"""Tell a node's own faults from those of the image, the request, or what all nodes have in common. Pure.

Other people's work is kept off a node only where the tests prove that the node itself is at fault. A cause
that most nodes share is not: an image without CUDA fails everywhere.
"""

from __future__ import annotations

from harness.judge.fleet import Fleet, NodeResult

OWN = frozenset(
    {
        *("gpu.ecc", "gpu.remapped_rows", "gpu.throttled", "gpu.clocks", "gpu.pcie", "gpu.nvlink"),
        *("compute.wrong", "compute.slow", "compute.unequal", "memory.slow", "copy.slow"),
        *("training.not_reproducible", "straggler.rank", "clock.wrong", "node.bad"),
    }
)
"""Causes in a node's hardware, measured on the node, or found by a search among many."""
COMPARED = frozenset({"gpu.absent", "gpu.fewer", "gpu.driver", "memlock.low", "shm.full"})
"""Causes of a node, an image or a request: a node's own only where other nodes do not have them."""


def doubtful(found: Fleet) -> dict[str, str]:
    """Return the failed nodes whose fault is not proved to be their own, each with the reason."""
    answered = [node for node in found.nodes if node.answered]
    failed = [node for node in found.nodes if node.verdict == "FAIL"]
    return {node.node: why for node in failed if (why := _doubt(node, answered)) is not None}


def _doubt(node: NodeResult, answered: list[NodeResult]) -> str | None:
    causes = dict.fromkeys(cell.cause for cell in node.cells if cell.verdict == "FAIL")
    reasons = []
    for cause in causes:
        having = sum(_fails(other, cause) for other in answered)
        if cause not in OWN | COMPARED:
            reasons.append(f"{cause or 'a failure without a cause'} need not be the node's own fault")
        elif having > 1 and 2 * having > len(answered):
            reasons.append(f"{cause} is on {having} of {len(answered)} nodes: look at what they share")
        elif cause in COMPARED and len(answered) < 2:
            reasons.append(f"{cause} may be the image's: no other node was tested with it")
        else:
            return None
    return "; ".join(reasons) or "no check of this node failed"


def _fails(node: NodeResult, cause: str | None) -> bool:
    return any(cell.verdict == "FAIL" and cell.cause == cause for cell in node.cells)
