"""How long the harness's commands take to start, beside bare Python, in one run.

Each round runs every command once, so that a busy moment meets all of them. Wall seconds of whole processes:
the median of the rounds, and the ratio to `python -c pass` in the same round. Ratios mean the same on another
machine; seconds do not.

    python bench/startup.py [--rounds 11]        prints the table of docs/performance.md
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

BIN = Path(sys.executable).parent
BARE = "python -c pass"
COMMANDS: dict[str, list[str]] = {
    BARE: [sys.executable, "-c", "pass"],
    "import typer": [sys.executable, "-c", "import typer"],
    "harness --help": [str(BIN / "harness"), "--help"],
    "harness run --help": [str(BIN / "harness"), "run", "--help"],
    "kubectl-torchrun --help": [str(BIN / "kubectl-torchrun"), "--help"],
    "harness runs": [str(BIN / "harness"), "runs"],
    "harness status": [str(BIN / "harness"), "status"],
    "import kubernetes": [sys.executable, "-c", "import kubernetes"],
}


def seconds(words: list[str], folder: str) -> float:
    """Run a command in an empty folder, with a cluster name that nobody has. Return its wall seconds."""
    environment = {**os.environ, "HARNESS_CLUSTER_NAME": "bench-startup-none"}
    start = time.perf_counter()
    subprocess.run(words, cwd=folder, env=environment, capture_output=True, check=False)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    seen: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for name, words in COMMANDS.items():
                took = seconds(words, folder)
                if number:  # the first round fills the caches
                    seen[name].append(took)
    load = os.getloadavg()[0]
    print(f"{rounds} rounds, {os.cpu_count()} processors, load {load:.1f} at the end\n")
    print("| command | seconds | × bare Python |\n|---|---|---|")
    for name, times in seen.items():
        ratio = median(one / bare for one, bare in zip(times, seen[BARE], strict=True))
        print(f"| `{name}` | {median(times):.3f} | {ratio:.1f} |")


if __name__ == "__main__":
    main()
