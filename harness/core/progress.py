"""The type of a progress callback, which a long task calls with one line of text at a time."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
