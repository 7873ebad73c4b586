"""Whoever wants to see a launch while its evidence is written, e.g. a terminal. Decides nothing."""

from __future__ import annotations

from typing import Protocol

from harness.evidence.schema import Manifest, Observation


class ProgressListener(Protocol):
    """Called from any thread; must return at once and never raise."""

    def manifest(self, manifest: Manifest) -> None:
        """It has changed: a stage began or ended, the job was launched."""

    def observed(self, kind: str, observation: Observation) -> None:
        """One watch delivery."""

    def logged(self, pod: str, text: str) -> None:
        """Whole lines of a pod's log, redacted: "<RFC 3339 time> <line>"."""
