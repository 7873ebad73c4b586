"""Undo a fault, even if the process that injected it dies.

Before the injection, the undo commands are written to a journal, and a watchdog process is started. A pipe
connects the injecting process with the watchdog. Normally the injecting process undoes the fault and removes
the journal. If it dies, the pipe closes and the watchdog undoes the fault. If both processes die, for example
in a reboot, the next `harness faults` runs the commands in the journal.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from harness.core import locks, processes
from harness.core.errors import HarnessError, ToolError

STEP_SECONDS = 180


@dataclass(frozen=True)
class Command:
    """A command line, and the input for its stdin."""

    argv: list[str]
    stdin: str | None = None

    def run(self) -> str:
        """Run the command and return its stdout and stderr. Raises ToolError if it fails."""
        result = processes.run(self.argv, timeout=STEP_SECONDS, stdin=self.stdin)
        return result.stdout + result.stderr


def undo_all(commands: list[Command]) -> list[str]:
    """Run all undo commands in order, even if one of them fails. Return the errors as text.

    A command that fails is retried for up to a minute.
    """
    failed = []
    for command in commands:
        try:
            for attempt in Retrying(
                stop=stop_after_delay(60),
                wait=wait_fixed(1),
                retry=retry_if_exception_type(ToolError),
                reraise=True,
            ):
                with attempt:
                    command.run()
        except HarnessError as error:
            failed.append(str(error))
    return failed


@contextmanager
def undone(commands: list[Command], journal: Path) -> Iterator[None]:
    """Run a block that injects a fault, and undo the fault afterwards, even if the block raises an error.

    Raises HarnessError if the undo fails. The journal is locked until the undo has ended, so that no other
    process runs its commands.
    """
    journal.parent.mkdir(parents=True, exist_ok=True)
    partial = journal.with_suffix(".partial")
    partial.write_text(json.dumps([asdict(command) for command in commands]))
    handle = locks.acquire(partial)
    partial.replace(journal)
    watchdog = subprocess.Popen(
        [sys.executable, "-m", "harness.faults.undo", str(journal)],
        env=processes.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        failed = undo_all(commands)
        if not failed:
            journal.unlink()
        watchdog.kill()
        watchdog.wait()
        handle.release()
    if failed:
        raise HarnessError(
            "the fault could not be undone: " + "; ".join(failed),
            hint=f"retry with `harness faults --undo`; the commands to undo the fault are in {journal}",
        )


def replay(journal: Path) -> list[str]:
    """Run the commands in a journal, and remove the journal if all of them succeed.

    If the process that wrote the journal is still alive, nothing is done, because that process will undo the
    fault. Returns the errors as text.
    """
    if locks.in_use(journal):
        return []
    try:
        commands = [Command(**entry) for entry in json.loads(journal.read_text())]
    except FileNotFoundError:
        return []
    failed = undo_all(commands)
    if not failed:
        journal.unlink(missing_ok=True)
    return failed


def main() -> None:
    """Run the watchdog: wait until the injecting process closes its end of the pipe, then undo the fault."""
    sys.stdin.buffer.read()
    replay(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
