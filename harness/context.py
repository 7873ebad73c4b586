"""What every part of a run is given: the user's settings, where progress goes, and the bundle."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.progress import Progress
from harness.evidence.io.writer import BundleWriter
from harness.settings import Settings


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Passed down instead of its parts; it never changes."""

    settings: Settings
    progress: Progress

    def recorded(self, writer: BundleWriter) -> RecordedContext:
        """The same, for parts that write evidence."""
        return RecordedContext(settings=self.settings, progress=self.progress, writer=writer)


@dataclass(frozen=True, kw_only=True)
class RecordedContext(RunContext):
    """A run whose evidence goes to a bundle."""

    writer: BundleWriter

    @property
    def nonce(self) -> str:
        """Of this run: it names the bundle, the namespace and the owner of a new cluster."""
        return self.writer.current.nonce
