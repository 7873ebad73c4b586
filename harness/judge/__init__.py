"""The judges: pure functions that turn an evidence bundle into a verdict with one cause of a closed list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.judge.engine import judge

__all__ = ["judge"]


def __getattr__(name: str) -> Any:
    """Import the engine with all its judges only for who judges: some ask this package for one word."""
    if name in __all__:
        from harness.judge import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
