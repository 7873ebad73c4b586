"""Define the data that `harness status` shows about launches, and convert it to text.

This module imports little, so that `harness status` starts quickly if there are no launches.
"""

from __future__ import annotations

from pydantic import BaseModel


class PodStatus(BaseModel, frozen=True):
    """A pod of a launch."""

    name: str
    ranks: list[int]
    """The ranks that run in the pod. The list is empty if the pod's node index is not known yet, or if
    another pod has replaced this pod."""
    state: str
    """The pod's phase, its node and, if the pod is waiting, the reason."""


class LaunchStatus(BaseModel, frozen=True):
    """A launch: its namespace, its launched object and its pods."""

    namespace: str
    kind: str | None = None
    """The kind of the launched object: JobSet, StatefulSet, DaemonSet or Job. None before the object is
    created and after it is deleted."""
    name: str | None = None
    state: str
    queue: str | None = None
    """The admission status that Kueue reports. None if the launched object has no queue label."""
    pods: list[PodStatus] = []

    def lines(self) -> list[str]:
        """Return the launch as lines of text."""
        from harness.judge.case import names

        workload = f"{self.kind} {self.name}  " if self.kind else ""
        lines = [f"launch       {self.namespace}  {workload}{self.state}"]
        lines += [f"  queue      {self.queue}"] if self.queue else []
        for pod in self.pods:
            ranks = f"{names(pod.ranks)}  " if pod.ranks else ""
            lines.append(f"  pod        {pod.name}  {ranks}{pod.state}")
        return lines
