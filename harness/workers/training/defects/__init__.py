"""What is put in the place of the trainer's own parts, so that a training is wrong. For tests alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..trackers import Trackers


def instead(owner: object, name: str, made: Callable[[Any], Any]) -> None:
    """Put in the place of a function what `made` makes of it."""
    setattr(owner, name, made(getattr(owner, name)))


def before_log(change: Callable[[int, dict[str, float]], dict[str, float]]) -> None:
    """Have other values logged: they reach the trackers and the ground truth alike."""

    def made(log: Any) -> Any:
        def logged(self: Trackers, step: int, values: dict[str, float]) -> None:
            log(self, step, change(step, values))

        return logged

    instead(Trackers, "log", made)
