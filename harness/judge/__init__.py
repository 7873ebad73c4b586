"""Compute verdicts from evidence bundles with pure functions. causes.toml lists the possible causes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.judge.engine import judge

__all__ = ["judge"]


def __getattr__(name: str) -> Any:
    """Import the engine lazily, because some modules need only a small part of this package."""
    if name in __all__:
        from harness.judge import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
