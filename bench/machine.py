"""What a server takes of the machine, and what other work takes of it."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path

from tracker_server import Server

CALM = 0.25
"""Share of the cores that other work may take when a measurement begins. It is awaited for a minute."""


def busy() -> float:
    """Return the seconds that all cores have worked since the machine began."""
    times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(times) - times[3] - times[4]) / os.sysconf("SC_CLK_TCK")


class Others:
    """How much of the cores other work takes, while the block runs: `share` of all of them."""

    share = 0.0

    def __init__(self, server: Server) -> None:
        self.server = server

    def __enter__(self) -> Others:
        self.began, self.before = time.perf_counter(), self.used()
        return self

    def __exit__(self, *_: object) -> None:
        took = (time.perf_counter() - self.began) * (os.cpu_count() or 1)
        self.share = round(max(0.0, self.used() - self.before) / took, 2)

    def used(self) -> float:
        return busy() - time.process_time() - cpu_seconds(self.server)


def quiet(share: float, seconds: float = 60) -> None:
    """Wait until other work takes less than this share of the cores, or for so many seconds."""
    late = time.monotonic() + seconds
    while time.monotonic() < late:
        before, began = busy(), time.monotonic()
        time.sleep(1)
        if (busy() - before) / ((time.monotonic() - began) * (os.cpu_count() or 1)) < share:
            return


def cpu_seconds(server: Server) -> float:
    """Return the processor's time that the server took, which other work on the machine changes least."""
    words = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def memory(server: Server) -> dict[str, int]:
    """Return MiB that the server holds now, and the most it held."""
    text = Path(f"/proc/{server.pid}/status").read_text()
    found = {name: re.search(rf"{name}:\s+(\d+) kB", text) for name in ("VmRSS", "VmHWM")}
    return {name: int(match[1]) // 1024 for name, match in found.items() if match}


def machine() -> str:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    processor = model[1] if model else platform.machine()
    return f"{os.cpu_count()} cores of {processor}, Python {platform.python_version()}"
