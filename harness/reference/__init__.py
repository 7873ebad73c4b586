"""Write docs/reference from the code: commands, settings, the evidence bundle, where faults run."""

from collections.abc import Callable

from harness.reference import commands, evidence, fault_runs, settings

DOCUMENTS: dict[str, Callable[[], str]] = {
    "cli.md": commands.markdown,
    "settings.md": settings.markdown,
    "evidence.md": evidence.markdown,
    "faults.md": fault_runs.markdown,
}
