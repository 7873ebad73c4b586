"""How long the harness takes to refuse what it cannot use, beside its own start: `python bench/bad_input.py`.

The corpus is that of tests/unit/bad_inputs.py. Each case runs once, as a process of its own, after a start of
`harness run --help`. CPU seconds hardly depend on what else the machine does; wall seconds do. Prints a
Markdown table. docs/limits.md has its largest values.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests/unit")]

from bad_inputs import corpus  # noqa: E402

HARNESS = Path(sys.executable).with_name("harness")
HEAD = "| input | cases | wall, median | wall, longest | CPU, median | CPU, most | memory, most |"
START = "`harness run --help`"


def measure(words: list[str], folder: Path, env: dict[str, str]) -> tuple[float, float, int]:
    """Run a command in a folder. Return its wall seconds, its CPU seconds and its largest memory in KiB."""
    began = time.perf_counter()
    process = subprocess.Popen(
        words,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def main() -> None:
    """Measure and print the table."""
    rows: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus(folder / "corpus")
        env = {"HOME": str(folder / "home"), "TMPDIR": name, "PATH": "/nonexistent"}
        help_ = [str(HARNESS), "run", "--help"]
        measure(help_, folder, env)  # fills the caches
        for case in sorted((folder / "corpus").iterdir()):
            words = [str(HARNESS), *json.loads((case / "command").read_text())]
            rows[START].append(measure(help_, folder, env))
            rows[case.name.partition("-")[0]].append(measure(words, case, env))
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end\n")
    print(f"{HEAD}\n|{'---|' * (HEAD.count('|') - 1)}")
    for kind, results in sorted(rows.items()):
        wall, cpu, kib = zip(*results, strict=True)
        times = f"{median(wall):.2f} s | {max(wall):.2f} s | {median(cpu):.2f} s | {max(cpu):.2f} s"
        print(f"| {kind} | {len(results)} | {times} | {max(kib) // 1024} MiB |")


if __name__ == "__main__":
    main()
