"""Find the container's own processes. They are in this process's cgroup or in a cgroup below it.

With hostPID or shareProcessNamespace, /proc also lists processes in other containers. The harness must not
signal, wait for or inspect those. own_processes.sh implements the same rule for shell scripts. This module
uses only the standard library, and supports Python 3.9 and later.
"""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


class OwnProcesses:
    """The processes of the container in which this process runs.

    `proc` is the mount point of the proc filesystem. Each call reads the cgroups again, because they can
    change: a hierarchy may be mounted, or the container may be moved to a different cgroup.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc, self._told_apart = proc, True
        at_root = all(line.endswith(":/") for line in self._lines("self"))
        if at_root and os.getpid() != 1 and self.has(1) and not self._same_mounts(1):
            # Other containers share this cgroup, so it does not distinguish their processes from those here.
            self._told_apart = False

    def has(self, pid: int) -> bool:
        """Return whether a process belongs to the container. Returns False if the process has ended."""
        return self._contains(self._own(), pid)

    def pids(self) -> list[int]:
        """Return the pids of the container's processes in ascending order, including this process."""
        own = self._own()
        candidates = (int(name) for name in os.listdir(self._proc) if name.isdigit())
        return sorted(pid for pid in candidates if self._contains(own, pid))

    def _own(self) -> list[str]:
        return self._lines("self") if self._told_apart else []

    def _contains(self, own: list[str], pid: int) -> bool:
        lines = self._lines(str(pid))
        if not own or len(lines) != len(own):
            return False
        return all(_is_below(line, each) for line, each in zip(lines, own))  # noqa: B905 - Python 3.9

    def _lines(self, pid: str) -> list[str]:
        try:
            return (self._proc / pid / "cgroup").read_text(errors="replace").splitlines()
        except OSError:
            return []

    def _same_mounts(self, pid: int) -> bool:
        try:
            return os.path.samefile(self._proc / str(pid) / "ns" / "mnt", self._proc / "self" / "ns" / "mnt")
        except OSError:
            return False


def _is_below(line: str, own: str) -> bool:
    """Return whether a line of /proc/PID/cgroup names the cgroup `own` or a cgroup below it.

    Inside a cgroup namespace, the paths of cgroups outside it begin with "/..".
    """
    return ":/.." not in line and (line == own or line.startswith(own.rstrip("/") + "/"))
