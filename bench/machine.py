"""What a measurement takes of the machine, and what other work takes of it; tables in documents."""

from __future__ import annotations

import os
import platform
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


@dataclass
class Used:
    """What one measurement took of the whole machine."""

    seconds: float = 0.0
    processor: float = 0.0
    """Seconds of all processors together."""
    memory: int = 0
    """Bytes, at most, beyond what was in use when it began; so is `disk`."""
    disk: int = 0


@contextmanager
def watched() -> Iterator[Used]:
    """Measure the block. Memory and disk are looked at five times a second."""
    used, ended = Used(), threading.Event()
    begun, before, free = time.monotonic(), busy(), _free()

    def look() -> None:
        while not ended.wait(0.2):
            now = _free()
            used.memory, used.disk = max(used.memory, free[0] - now[0]), max(used.disk, free[1] - now[1])

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield used
    finally:
        used.seconds, used.processor = time.monotonic() - begun, busy() - before
        ended.set()
        looking.join()


def _free() -> tuple[int, int]:
    """Return the bytes of memory and of disk that can be had."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0, shutil.disk_usage("/").free


def replace(path: Path, part: str, text: str) -> None:
    """Put a text between `<!-- bench: PART -->` and `<!-- end -->` of a Markdown file."""
    mark, end = f"<!-- bench: {part} -->", "<!-- end -->"
    before, found, after = path.read_text().partition(mark)
    if not found:
        raise SystemExit(f"{path} has no {mark}")
    path.write_text(f"{before}{mark}\n{text}\n{end}{after.partition(end)[2]}")
