"""The errors that the harness raises deliberately.

HarnessError              the harness could not do its work       exit code 2
├── UsageError            an invalid option, file or setting      exit code 64
├── ToolError             an external program failed; contains the end of its output
└── WaitError             a deadline passed; contains the awaited and the last observed state

An error can have a `cause` (docs/causes.md), so that provisioning failures get a verdict like any other
failure.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.causes import CauseId


class HarnessError(Exception):
    """The harness could not do its work.

    `message` describes what was expected and what was found. `hint` describes what to do next.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", cause: CauseId | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.message}\n  → {self.hint}" if self.hint else self.message


class UsageError(HarnessError):
    """An invalid option, job file or setting. Nothing was created."""

    exit_code = 64


class ToolError(HarnessError):
    """An external program exited with an error or did not finish in time."""

    def __init__(
        self,
        command: Sequence[str],
        returncode: int,
        output: str,
        *,
        hint: str = "",
        cause: CauseId | None = None,
    ) -> None:
        tail = "\n".join(output.strip().splitlines()[-15:])
        super().__init__(
            f"`{' '.join(command[:6])}` ended with exit code {returncode}:\n{tail}", hint=hint, cause=cause
        )
        self.returncode = returncode
        self.output = output


class WaitError(HarnessError):
    """A deadline passed before the awaited state was observed."""

    def __init__(
        self, awaited: str, last_seen: str, seconds: float, *, hint: str = "", cause: CauseId | None = None
    ) -> None:
        super().__init__(
            f"waited {seconds:.0f} s for {awaited}; last seen: {last_seen}", hint=hint, cause=cause
        )
        self.awaited = awaited
        self.last_seen = last_seen
