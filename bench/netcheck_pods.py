"""How long netcheck takes in many pods: network namespaces on this machine. Root is needed.

    PYTHONPATH=tests/integration python bench/netcheck_pods.py 2 16 64

All pods have started Python and imported netcheck before the check begins at the same moment in all of them.
The DNS server that the simulation needs has a higher priority than the pods, as on a node of its own. Printed
are three rounds for each number of pods:

- the seconds from the start of the check to the verdict, as the pods print them (rank 0 measures them),
- the seconds until the last pod has printed the verdict,
- the CPU seconds of all pods for the check and their exit, and for the start before it, and those of the DNS
  server.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from namespaces import World, world
from test_netcheck import finished

ROUNDS = 3
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Round:
    """What one run of netcheck in all pods took, in seconds. `verdicts` are the different ones."""

    verdict: float
    last: float
    check: float
    start: float
    dns: float
    verdicts: set[str]


def cpu_of(pid: int) -> float:
    """Return the CPU seconds that a process and its ended children have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def once(pods: World) -> Round:
    """Run netcheck in all pods."""
    size = {"NNODES": str(pods.size), "WORLD_SIZE": str(pods.size)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = [pods.start(rank, "--deadline", "120", variables=size) for rank in range(pods.size)]
    for process in started:
        assert process.stdout
        assert process.stdout.readline() == "ready\n", process.communicate()
    start = sum(cpu_of(process.pid) for process in started)
    assert pods._dns is not None
    dns, began = cpu_of(pods._dns.pid), time.monotonic()
    for process in started:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    results = [finished(process) for process in started]
    last, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    ranks = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Round(
        median(one["seconds"] for one in results),
        last,
        ranks - start,
        start,
        cpu_of(pods._dns.pid) - dns,
        {f"{one['verdict']} {one['cause'] or ''}".strip() for one in results},
    )


def main(sizes: list[int]) -> None:
    """Measure each number of pods."""
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder, world(Path(folder), size=size) as pods:
            for _ in range(ROUNDS):
                one = once(pods)
                print(
                    f"{size:3} pods: verdict after {one.verdict:.2f} s, printed by the last one after "
                    f"{one.last:.2f} s; CPU: check {one.check:.1f} s, start {one.start:.1f} s, DNS server "
                    f"{one.dns:.1f} s: {one.verdicts}",
                    flush=True,
                )


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]])
