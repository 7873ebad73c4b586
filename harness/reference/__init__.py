"""Write docs/reference from the code: commands, settings, the evidence bundle, checks, where faults run."""

from collections.abc import Callable

from harness.reference import checks, commands, evidence, fault_runs, settings

DOCUMENTS: dict[str, Callable[[], str]] = {
    "cli.md": commands.markdown,
    "settings.md": settings.markdown,
    "evidence.md": evidence.markdown,
    "checks.md": checks.markdown,
    "faults.md": fault_runs.markdown,
}
