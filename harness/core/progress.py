"""How a long task tells what it does: one line of text at a time, to whoever called it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
