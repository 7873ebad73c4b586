"""The context of a run: its settings, its progress function and its bundle."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.progress import Progress
from harness.evidence.io.writer import BundleWriter
from harness.settings import Settings


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The settings and the progress function, which are passed to every part of a run."""

    settings: Settings
    progress: Progress

    def recorded(self, writer: BundleWriter) -> RecordedContext:
        """Return this context with a bundle writer, for the parts of a run that write evidence."""
        return RecordedContext(settings=self.settings, progress=self.progress, writer=writer)


@dataclass(frozen=True, kw_only=True)
class RecordedContext(RunContext):
    """The context of a run whose evidence goes to a bundle."""

    writer: BundleWriter

    @property
    def nonce(self) -> str:
        """Return the run's nonce.

        The nonce also identifies the run's bundle, its namespace and the owner of a new cluster.
        """
        return self.writer.current.nonce
