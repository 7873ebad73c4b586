"""Run torchrun, and kill one of its ranks at each of some moments: killer.py RUN MOMENTS torchrun …

RUN is the folder of the run. A moment is RANK@step:N (the line of that step was printed), RANK@writing:K (the
K-th folder of a checkpoint that is not complete is there) or RANK@named:K (the K-th checkpoint got its name).
Several are separated by commas, and come one after the other.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

STEP = re.compile(r"\[TRAIN\] step (\d+)/")


def ranks(agent: int) -> list[int]:
    """Return the processes that torchrun started, in the order of their ranks."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == agent:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return sorted(found)


class Watch:
    """What was seen of a run since it began."""

    def __init__(self, run: Path, agent: "subprocess.Popen[str]") -> None:
        self.run, self.agent, self.step = run, agent, 0
        self.seen: dict[str, set[str]] = {"writing": set(), "named": set()}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.agent.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            if found := STEP.search(line):
                self.step = int(found[1])

    def reached(self, kind: str, number: int) -> bool:
        if kind == "step":
            return self.step >= number
        pattern = ".epoch-*" if kind == "writing" else "epoch-*"
        self.seen[kind] |= {path.name for path in self.run.glob(pattern)}
        return len(self.seen[kind]) >= number


def main() -> int:
    run, moments, *command = sys.argv[1:]
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    watch = Watch(Path(run), agent)
    for moment in filter(None, moments.split(",")):
        rank, _, when = moment.partition("@")
        kind, _, number = when.partition(":")
        while agent.poll() is None and not watch.reached(kind, int(number)):
            time.sleep(0.001)
        there = ranks(agent.pid)
        if agent.poll() is not None or int(rank) >= len(there):
            print(f"MISSED {moment}", flush=True)
            continue
        os.kill(there[int(rank)], signal.SIGKILL)
        print(f"KILLED {moment}", flush=True)
        watch.step = 0
    return agent.wait()


if __name__ == "__main__":
    sys.exit(main())
