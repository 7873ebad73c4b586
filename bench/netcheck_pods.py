"""How long netcheck takes in many pods: network namespaces on this machine. Root is needed.

    PYTHONPATH=tests/integration python bench/netcheck_pods.py 2 16 64

Prints the median of the ranks' seconds from the start of the check to the verdict, three times for each
number of pods, and the CPU seconds of all ranks and of the DNS server that the simulation needs.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from pathlib import Path
from statistics import median

from namespaces import World, world
from test_netcheck import finished, together

ROUNDS = 3
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_of(pid: int) -> float:
    """Return the CPU seconds that a process and its ended children have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def once(pods: World) -> tuple[list[float], float, float, set[str]]:
    """Run netcheck in all pods. Return the ranks' seconds, the CPU seconds of ranks and DNS, the verdicts."""
    size = {"NNODES": str(pods.size), "WORLD_SIZE": str(pods.size)}
    started = [pods.start(rank, "--deadline", "120", variables=size) for rank in range(pods.size)]
    assert pods._dns is not None
    dns, own = cpu_of(pods._dns.pid), resource.getrusage(resource.RUSAGE_CHILDREN)
    together(started)
    results = [finished(process) for process in started]
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    ranks = now.ru_utime + now.ru_stime - own.ru_utime - own.ru_stime
    verdicts = {f"{one['verdict']} {one['cause'] or ''}".strip() for one in results}
    return [one["seconds"] for one in results], ranks, cpu_of(pods._dns.pid) - dns, verdicts


def main(sizes: list[int]) -> None:
    """Measure each number of pods."""
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder, world(Path(folder), size=size) as pods:
            for _ in range(ROUNDS):
                took, ranks, dns, verdicts = once(pods)
                print(
                    f"{size:3} pods: median {median(took):.2f} s, last {max(took):.2f} s, CPU of the ranks "
                    f"{ranks:.1f} s (with Python's start), of the DNS server {dns:.1f} s: {verdicts}",
                    flush=True,
                )


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]])
