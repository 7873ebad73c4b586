"""The interface for whoever shows a launch while its evidence is written, e.g. a terminal.

It decides nothing.
"""

from __future__ import annotations

from typing import Protocol

from harness.evidence.process_records import ProcessLine
from harness.evidence.schema import Manifest, Observation


class ProgressListener(Protocol):
    """A listener is called from any thread. It must return at once and never raise."""

    def manifest(self, manifest: Manifest) -> None:
        """Take a changed manifest: a stage began or ended, or the job was launched."""

    def observed(self, kind: str, observation: Observation) -> None:
        """Take one watch delivery."""

    def processed(self, event: ProcessLine) -> None:
        """Take what a process recorded of itself."""

    def logged(self, pod: str, text: str) -> None:
        """Take whole lines of a pod's log, redacted: "<RFC 3339 time> <line>"."""
