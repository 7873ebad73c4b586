"""Run one command for each file of a corpus, in one process with a limit on its memory. Prints JSON.

Arguments: the folder of the corpus. Each of its folders is one case, in which the command of `command` runs.
"""

from __future__ import annotations

import io
import json
import os
import resource
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from harness.cli.main import main

LIMIT = 2_000_000 * 1024
"""Bytes of address space: `ulimit -v 2000000`."""


def run(case: Path) -> dict[str, object]:
    """Run a case's command in its folder. Return its exit code, seconds and output."""
    os.chdir(case)
    output, began = io.StringIO(), time.monotonic()
    code: object = None
    with redirect_stdout(output), redirect_stderr(output):
        try:
            main(json.loads((case / "command").read_text()))
        except SystemExit as ended:
            code = ended.code
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"[:200]
    return {"code": code, "seconds": time.monotonic() - began, "output": output.getvalue()[:2000]}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    results = {case.name: run(case) for case in sorted(Path(sys.argv[1]).iterdir())}
    # Not ru_maxrss: it counts the process that started this one, too.
    status = Path("/proc/self/status").read_text().splitlines()
    largest = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    print(json.dumps({"results": results, "kilobytes": largest}))
