"""Run one command for each case of a corpus, in one process with a limit on its memory. Prints JSON.

Arguments: the folder of the corpus. Each of its folders is one case, in which the command of `command` runs.
Times are CPU seconds, which other processes of the machine hardly change. A start of the harness is measured
beside them, because a slow machine needs more of them for everything.
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from harness.cli.main import main

LIMIT = 2_000_000 * 1024
"""Bytes of address space: `ulimit -v 2000000`."""
STARTS = 3


def start() -> float:
    """Return the CPU seconds that one `harness run --help` takes, the whole process."""
    harness = Path(sys.executable).with_name("harness")
    before = os.times()
    for _ in range(STARTS):
        subprocess.run([str(harness), "run", "--help"], stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    user, system = after.children_user - before.children_user, after.children_system - before.children_system
    return (user + system) / STARTS


def run(case: Path) -> dict[str, object]:
    """Run a case's command in its folder. Return its exit code, CPU seconds and output."""
    os.chdir(case)
    output, began = io.StringIO(), time.process_time()
    code: object = None
    with redirect_stdout(output), redirect_stderr(output):
        try:
            main(json.loads((case / "command").read_text()))
        except SystemExit as ended:
            code = ended.code
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"[:200]
    return {"code": code, "seconds": time.process_time() - began, "output": output.getvalue()[:2000]}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    results = {case.name: run(case) for case in sorted(Path(sys.argv[1]).iterdir())}
    # Not ru_maxrss: it counts the process that started this one, too.
    status = Path("/proc/self/status").read_text().splitlines()
    largest = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    print(json.dumps({"results": results, "kilobytes": largest, "start": start()}))
