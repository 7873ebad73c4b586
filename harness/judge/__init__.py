"""The judges: pure functions that turn an evidence bundle into a verdict with one cause of a closed list."""

from harness.judge.engine import judge

__all__ = ["judge"]
