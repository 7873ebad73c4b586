"""Write docs/reference from the code: commands, settings, the evidence bundle."""

from collections.abc import Callable

from harness.reference import commands, evidence, settings

DOCUMENTS: dict[str, Callable[[], str]] = {
    "cli.md": commands.markdown,
    "settings.md": settings.markdown,
    "evidence.md": evidence.markdown,
}
