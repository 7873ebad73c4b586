"""What `harness status` says of a launch. Without a launch there is none, and nothing else is imported."""

from __future__ import annotations

from pydantic import BaseModel


class PodStatus(BaseModel, frozen=True):
    """One pod of a launch."""

    name: str
    ranks: list[int]
    """Empty while its number is not known, and for a pod that another one replaced."""
    state: str
    """Phase, node and what it waits for."""


class LaunchStatus(BaseModel, frozen=True):
    """One launch: its namespace, and the object in it."""

    namespace: str
    kind: str | None = None
    """JobSet, StatefulSet, DaemonSet or Job. None when there is no object yet, or none any more."""
    name: str | None = None
    state: str
    queue: str | None = None
    """What Kueue says of it. None when it names no queue."""
    pods: list[PodStatus] = []

    def lines(self) -> list[str]:
        """Return the text for a person."""
        from harness.judge.case import names

        what = f"{self.kind} {self.name}  " if self.kind else ""
        lines = [f"launch       {self.namespace}  {what}{self.state}"]
        lines += [f"  queue      {self.queue}"] if self.queue else []
        for pod in self.pods:
            ranks = f"{names(pod.ranks)}  " if pod.ranks else ""
            lines.append(f"  pod        {pod.name}  {ranks}{pod.state}")
        return lines
