"""Run a build's programs. Their output goes to a single log, and they are killed if the build is
interrupted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.core import proxies
from harness.core.causes import CauseId
from harness.core.errors import ToolError
from harness.core.processes import environment, started

CAUSE: Final = "cluster.node_image"
"""The cause of the error that is raised if a build fails (docs/causes.md)."""

_BUILD = ["docker", "build", "--network", "host", "--provenance=false", "--progress", "plain"]
"""The BuildKit build command without attestations. With attestations, the image would be an index, which
containerd can reject."""

_LOGGED = 20_000
"""The maximum number of characters that are logged from the end of a program's stdout. A rendered manifest,
for example, is several megabytes long."""


@dataclass(frozen=True)
class Shell:
    """Runs programs one at a time, each in its own process group, and appends their output to `log`."""

    log: Path
    cause: CauseId = CAUSE

    def run(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Path | None = None,
        each_line: Callable[[str], None] | None = None,
    ) -> str:
        """Run a program and return its stdout.

        The program's stderr is only logged. `env` is added to the environment. `each_line` is called with
        each line of stderr as soon as the program prints it. Use `each_line` only for programs that print
        little to stdout. Raises ToolError with the end of both streams and the log's path, and HarnessError
        if the program does not exist.
        """
        words = [str(word) for word in command]
        with self.log.open("ab", buffering=0) as log, (stdin or Path(os.devnull)).open("rb") as source:
            log.write(f"\n$ {' '.join(words)}\n".encode())
            start = log.tell()
            with started(
                words,
                cause=self.cause,
                env=environment(env),
                cwd=cwd,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if each_line else log,
            ) as process:
                if each_line:
                    for line in process.stderr or ():
                        log.write(line.encode())
                        each_line(line)
                out, _ = process.communicate()
            log.write(out[-_LOGGED:].encode())
        if process.returncode != 0:
            with self.log.open("rb") as log_file:
                log_file.seek(start)
                output = log_file.read().decode(errors="replace")
            hint = f"read the whole output in {self.log}"
            raise ToolError(words, process.returncode, output, hint=hint, cause=self.cause)
        return out


def build_command() -> list[str]:
    """Return the beginning of a `docker build` command, with build arguments for the proxy variables that
    Docker predefines. The arguments have no values, so that docker reads the values from its environment and
    they do not appear on the command line. Docker records these arguments neither in the image nor in its
    history.
    """
    return [*_BUILD, *(word for name in proxies.names(environment()) for word in ("--build-arg", name))]
