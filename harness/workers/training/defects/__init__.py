"""Inject defects into a training job for tests. Each defect replaces functions of the trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..trackers import Trackers


def instead(owner: object, name: str, wrap: Callable[[Any], Any]) -> None:
    """Replace the function `name` of `owner` with the result of calling `wrap` with that function."""
    setattr(owner, name, wrap(getattr(owner, name)))


def before_log(change: Callable[[int, dict[str, float]], dict[str, float]]) -> None:
    """Apply `change` to the values before they are logged to the trackers and the ground truth."""

    def wrap(log: Any) -> Any:
        def logged(self: Trackers, step: int, values: dict[str, float]) -> None:
            log(self, step, change(step, values))

        return logged

    instead(Trackers, "log", wrap)
