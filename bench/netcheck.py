"""What --netcheck adds to a healthy job: seconds from its last container's start to its first rank's.

    python bench/netcheck.py runs/2026*

Compares bundles of one workload with and without --netcheck. A rank starts with the first frame of its
ground truth, after torchrun's rendezvous.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from harness.core.clock import seconds
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.ground_truth import TruthStart


def took(bundle: Bundle) -> float | None:
    """Return the seconds, or None for a bundle without ranks that started."""
    manifest = bundle.manifest
    if manifest is None or manifest.launch is None or manifest.expected is None:
        return None
    running = [
        seen.received_at
        for pod in bundle.pods().values()
        if (seen := next((s for s in pod.history if s.object["status"].get("phase") == "Running"), None))
    ]
    starts = [
        line.time_ms / 1000
        for rank in range(manifest.expected.ranks)
        for _, line in bundle.truth(rank)
        if isinstance(line, TruthStart)
    ]
    began = max((seconds(at) or 0.0 for at in running), default=0.0)
    return min(starts) - began if starts and began else None


def main(paths: Sequence[str]) -> int:
    """Print the medians. Returns the exit code."""
    found: dict[str, list[float]] = {"without": [], "with": []}
    for path in paths:
        bundle = Bundle.open(Path(path))
        launch = bundle.manifest.launch if bundle.manifest else None
        if launch is not None and (value := took(bundle)) is not None:
            found["with" if launch.netcheck else "without"].append(value)
    if not all(found.values()):
        print("bundles with and without --netcheck are needed", file=sys.stderr)
        return 64
    for name, values in found.items():
        said = ", ".join(f"{value:.2f}" for value in values)
        print(f"{name:8} --netcheck: median {median(values):.2f} s of {len(values)}: {said}")
    print(f"netcheck adds {median(found['with']) - median(found['without']):.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
