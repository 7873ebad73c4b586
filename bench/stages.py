"""Where the time of launches goes: median seconds of each stage over bundles, and its ratio to `observe`.

    python bench/stages.py runs/2026*

`observe` is the job itself, from submission to its end; everything else is what the harness adds. Ratios of
one set of runs on one machine can be compared; seconds of different machines cannot.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from harness.evidence.io.reader import Bundle


def main(paths: list[str]) -> int:
    seconds: dict[str, list[float]] = {}
    for path in paths:
        manifest = Bundle.open(Path(path)).manifest
        for stage in manifest.stages if manifest else []:
            seconds.setdefault(stage.name, []).append(stage.seconds)
    if "observe" not in seconds:
        print("no bundle with an observed launch among these", file=sys.stderr)
        return 64
    job = median(seconds["observe"])
    print(f"{'stage':28} {'n':>4} {'median s':>9} {'max s':>8} {'÷ observe':>9}")
    for name, values in seconds.items():
        middle = median(values)
        print(f"{name:28} {len(values):4} {middle:9.2f} {max(values):8.2f} {middle / job:9.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
