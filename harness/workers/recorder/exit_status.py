"""Determine the interpreter's exit code in an exit handler, because Python does not pass it to handlers.

From Python 3.12 on, sys.monitoring reports each exception that leaves a frame, including the SystemExit that
leaves the main module. In earlier versions, this module replaces `sys.exit`, `exit` and `quit` with functions
that raise a subclass of SystemExit. The subclass detects when the interpreter reads the exit code at
shutdown. A SystemExit that the program raises directly is not detected in these versions. If the program's
source contains such a `raise`, the exit code is unknown. This module uses only the standard library, and
supports Python 3.9 and later.
"""

from __future__ import annotations

import builtins
import contextlib
import re
import sys
import sysconfig
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn

MAX_MODULES, MAX_SOURCE = 500, 2_000_000
"""Maximum number of a program's modules to search for SystemExit, and maximum number of bytes to read from
each."""
_TOOLS = (4, 3)
"""The sys.monitoring tool ids that Python does not reserve."""
_RAISED = re.compile(rb"^(?!\s*except\b).*\bSystemExit\b", re.MULTILINE)
"""Matches a line that names SystemExit, except in an `except` clause."""
_status: object = None
"""The exit code argument of the SystemExit that ended the main module, or None."""
_watched = _watching = False


def watch() -> None:
    """Start watching for the exit code. Call this early, in the main thread."""
    global _watched, _watching  # noqa: PLW0603
    if not _watched:
        _watched = True
        _watching = _watch_frames()
        if not _watching:
            _watch_calls()


def code() -> int | None:
    """Return the exit code with which the interpreter will exit, or None if it is unknown.

    Call this only if no exception ends the program.
    """
    if _status is None and not _watching and _raises_by_itself():
        return None
    return exit_code(_status)


def exit_code(status: object) -> int:
    """Return the process's exit code after `sys.exit(status)`."""
    if status is None:
        return 0
    return status & 0xFF if isinstance(status, int) else 1


# -- Python 3.12 and later -----------------------------------------------------------------------------------
def _watch_frames() -> bool:
    """Register a callback for exceptions that leave a frame. Return False if no tool id is available."""
    monitoring: Any = getattr(sys, "monitoring", None)
    free = [tool for tool in _TOOLS if monitoring is not None and monitoring.get_tool(tool) is None]
    if not free:
        return False
    event = monitoring.events.PY_UNWIND
    monitoring.use_tool_id(free[0], "harness recorder")
    monitoring.register_callback(free[0], event, _on_unwind)
    monitoring.set_events(free[0], event)
    return True


def _on_unwind(frame_code: CodeType, _: int, error: BaseException) -> None:
    global _status  # noqa: PLW0603
    if not isinstance(error, SystemExit) or frame_code.co_name != "<module>":
        return
    frame = sys._getframe(1)
    below = frame.f_back
    if frame.f_globals.get("__name__") == "__main__" and (
        below is None or below.f_globals.get("__name__") == "runpy"
    ):
        _status = error.code


# -- Python 3.9 to 3.11 --------------------------------------------------------------------------------------
class _Leaving(SystemExit):
    """A SystemExit that detects when the interpreter reads the exit code, which happens at shutdown."""

    @property
    def code(self) -> Any:  # type: ignore[override]
        global _status  # noqa: PLW0603
        status = self.args[0] if self.args else None
        try:
            sys._getframe(1)
        except ValueError:  # The caller is not a Python frame, so it is the interpreter.
            _status = status
        return status


_Leaving.__name__ = _Leaving.__qualname__ = "SystemExit"
_Leaving.__module__ = "builtins"


def _exit(status: object = None, /) -> NoReturn:
    raise _Leaving(status) if status is not None else _Leaving


def _watch_calls() -> None:
    sys.exit = _exit
    quitter: Any = type(getattr(builtins, "exit", None))
    if quitter.__name__ != "Quitter":
        # `exit` does not exist if Python was started without `site`. The program may also have replaced it.
        return

    def leave(_: Any, code: object = None) -> NoReturn:
        with contextlib.suppress(Exception):
            sys.stdin.close()
        _exit(code)

    quitter.__call__ = leave


def _raises_by_itself() -> bool:
    """Return whether one of the program's own modules (not an installed package) raises SystemExit.

    Also returns True if the program has more than MAX_MODULES modules.
    """
    main = sys.modules.get("__main__")
    if getattr(main, "__file__", None) is None and _command_raises_it():
        return True
    installed = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    own = str(Path(__file__).parent)
    searched = 0
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or path.startswith((*installed, own)) or "-packages" in path:
            continue
        searched += 1
        with contextlib.suppress(OSError), open(path, "rb") as source:
            if searched > MAX_MODULES or _RAISED.search(source.read(MAX_SOURCE)):
                return True
    return False


def _command_raises_it() -> bool:
    """Return whether the code passed to `python -c` raises SystemExit.

    Also returns True for a program that was read from stdin, because it cannot be read again.
    """
    words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    return b"-c" not in words or _RAISED.search(b"\n".join(words)) is not None
