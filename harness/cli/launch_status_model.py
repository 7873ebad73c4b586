"""Models of a launch, for `harness status`.

This module has few imports, so that `harness status` starts quickly if there are no launches.
"""

from __future__ import annotations

from pydantic import BaseModel


class PodStatus(BaseModel, frozen=True):
    """One of a launch's pods."""

    name: str
    ranks: list[int]
    """The pod's ranks. Empty if its node index is not known yet, or if another pod has replaced this pod."""
    state: str
    """The pod's phase, its node and, if the pod is waiting, the reason."""


class LaunchStatus(BaseModel, frozen=True):
    """One launch: its namespace, the launched object and its pods."""

    namespace: str
    kind: str | None = None
    """JobSet, StatefulSet, DaemonSet or Job. None before the object is created and after it is deleted."""
    name: str | None = None
    state: str
    queue: str | None = None
    """The admission status that Kueue reports. None if the object has no queue label."""
    pods: list[PodStatus] = []

    def lines(self) -> list[str]:
        """Return the launch as lines of text."""
        from harness.judge.case import names

        what = f"{self.kind} {self.name}  " if self.kind else ""
        lines = [f"launch       {self.namespace}  {what}{self.state}"]
        lines += [f"  queue      {self.queue}"] if self.queue else []
        for pod in self.pods:
            ranks = f"{names(pod.ranks)}  " if pod.ranks else ""
            lines.append(f"  pod        {pod.name}  {ranks}{pod.state}")
        return lines
