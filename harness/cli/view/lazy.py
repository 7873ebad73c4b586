"""Functions used by most commands, which import the rest of the harness only when they are called.

To show the help for one command, typer imports the modules of all commands. These modules therefore import
only typer at the top: importing settings, evidence and rich takes ten times as long as the help itself. They
also omit `from __future__ import annotations`, which would turn 600 annotations into strings. Typer would
have to compile each string. This would take an eighth of the time that `harness --help` needs.
tests/unit/cli/test_startup.py checks these imports.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.context import RunContext
    from harness.core.progress import Progress
    from harness.evidence.io.reader import Bundle
    from harness.evidence.io.writer import ProgressListener
    from harness.evidence.schema.bundle import Verdict
    from harness.report.terminal.console import Console
    from harness.settings import Settings


def load(**flags: Any) -> Settings:
    """Load the settings (harness/settings.py). Raises UsageError if a setting is invalid."""
    from harness.settings import load as load_settings

    return load_settings(**flags)


def run_context(settings: Settings, progress: Progress) -> RunContext:
    """Return the context that is passed to every part of a run (harness/context.py)."""
    from harness.context import RunContext

    return RunContext(settings=settings, progress=progress)


def opened(path: Path, runs_dir: Path = Path("runs")) -> Bundle:
    """Open a bundle by its path or a part of its name (evidence/io/runs_folder.py).

    Raises UsageError unless exactly one bundle matches.
    """
    from harness.evidence.io.runs_folder import opened as open_bundle

    return open_bundle(path, runs_dir)


def show_verdict(verdict: Verdict, bundle: Path, as_json: bool) -> int:
    """Print a verdict and return its exit code (harness/cli/view/verdict.py)."""
    from harness.cli.view.verdict import show

    return show(verdict, bundle, as_json)


def console() -> Console:
    """Return a rich console for stdout."""
    from harness.report.terminal.console import Console

    return Console()


@contextmanager
def watching(quiet: bool) -> Iterator[tuple[Progress, ProgressListener | None]]:
    """Yield the progress function and the evidence listener for a launch (harness/cli/view/live.py)."""
    from harness.cli.view.live import watching as live

    with live(quiet) as pair:
        yield pair
