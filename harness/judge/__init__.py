"""The judges: pure functions from an evidence bundle to a verdict with one cause of a closed list."""

from harness.judge.engine import judge

__all__ = ["judge"]
