"""Generate docs/reference from the code: commands, settings, evidence, checks, limits and fault runs."""

from collections.abc import Callable

from harness.reference import acceptance, checks, commands, evidence, fault_runs, settings

DOCUMENTS: dict[str, Callable[[], str]] = {
    "cli.md": commands.markdown,
    "settings.md": settings.markdown,
    "evidence.md": evidence.markdown,
    "acceptance.md": acceptance.markdown,
    "acceptance.json": acceptance.schema,
    "checks.md": checks.markdown,
    "faults.md": fault_runs.markdown,
}
