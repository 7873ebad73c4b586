"""Exclude the speed of shared GPUs from the verdict, because other processes may have used them.

The node's labels, or the pod itself (workers/acceptance/gpu_sharing.py), show whether a GPU is shared. A
wrong computation result on a shared GPU is still a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.evidence.kubernetes.gpu_nodes import Parts
from harness.evidence.schema.acceptance import AcceptanceCheck
from harness.judge.acceptance.results import Cell
from harness.workers.acceptance.gpu_sharing import CAUSES, excuse, excused

SHARED = "fleet.shared"
WHOLE_ONLY = "a GPU is accepted only if it is neither split nor shared"


def proved_by(checks: Sequence[AcceptanceCheck | Cell]) -> Parts | None:
    """Return how the node's GPUs are shared or split, according to the checks in its pod, or None."""
    check = next((one for one in checks if one.verdict == "UNKNOWN" and one.cause in CAUSES), None)
    if check is None:
        return None
    return Parts("gpu.mig" if check.cause == "gpu.mig" else "gpu.shared", check.text)


def fair(check: AcceptanceCheck, shared: Parts | None) -> AcceptanceCheck:
    """Return the check. If the shared GPUs may explain its failure, return it with the verdict UNKNOWN."""
    if shared is None or not excuse(check.verdict, check.cause):
        return check
    text = excused(check.text, shared.text)
    return check.model_copy(update={"verdict": "UNKNOWN", "text": text, "cause": shared.cause})


def fair_cells(cells: Sequence[Cell], shared: Parts | None) -> list[Cell]:
    """Return a node's results. Results that GPU sharing can explain are changed to UNKNOWN.

    `shared` describes how the GPUs are shared or split according to the node's labels, or is None.
    """
    parts = shared or proved_by(cells)
    if parts is None:
        return list(cells)
    result = [
        replace(cell, verdict="UNKNOWN", text=excused(cell.text, parts.text), cause=parts.cause)
        if excuse(cell.verdict, cell.cause)
        else cell
        for cell in cells
    ]
    if shared is not None:
        result.append(Cell(SHARED, "UNKNOWN", f"the node {shared.text}; {WHOLE_ONLY}", cause=shared.cause))
    return result
