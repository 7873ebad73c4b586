"""The curves of one run, in the trackers that are set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


class Trackers:
    """Logs one rank's values."""

    def __init__(
        self,
        run: str,
        rank: int,
        world: int,
        config: dict[str, Any],
        folder: Path,
        step: int,
        share: Callable[[Any], Any],
    ) -> None:
        pass

    def log(self, step: int, values: dict[str, float]) -> None:
        """Log values of a step."""

    def flush(self, seconds: float = 30.0) -> None:
        """Wait until all is sent."""

    def finish(self, ok: bool) -> None:
        """End the run."""
