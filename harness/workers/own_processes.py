"""The container's own processes: those in the cgroup of this process, or in one below it.

With hostPID or shareProcessNamespace, /proc has other people's processes too: none of them is signalled,
waited for or looked at. own_processes.sh has the same rule for shells. Standard library only, Python 3.9.
"""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


class OwnProcesses:
    """The container that this process runs in. `proc` is the folder of the kernel's files.

    Its cgroups are read at each look: they change when a hierarchy is mounted, or the container is moved.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc, self._told_apart = proc, True
        at_root = all(line.endswith(":/") for line in self._lines("self"))
        if at_root and os.getpid() != 1 and self.has(1) and not self._same_mounts(1):
            self._told_apart = False  # no cgroups that tell containers apart

    def has(self, pid: int) -> bool:
        """Return whether a process is the container's; False for one that has ended."""
        return self._has(self._own(), pid)

    def pids(self) -> list[int]:
        """Return the container's processes, this one included, in ascending order."""
        own = self._own()
        found = (int(name) for name in os.listdir(self._proc) if name.isdigit())
        return sorted(pid for pid in found if self._has(own, pid))

    def _own(self) -> list[str]:
        return self._lines("self") if self._told_apart else []

    def _has(self, own: list[str], pid: int) -> bool:
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
    """Return whether a line of /proc/PID/cgroup names a cgroup, or one below it.

    Seen from a cgroup namespace, paths outside it begin with "/..".
    """
    return ":/.." not in line and (line == own or line.startswith(own.rstrip("/") + "/"))
