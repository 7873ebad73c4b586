"""Read the `[source]` table from the versions file. It contains the versions of everything that is built from
source."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from harness.core.errors import UsageError
from harness.core.replacements import CONTROLLERS, controller_version
from harness.core.user_files import toml
from harness.evidence.kubernetes.objects import mapping
from harness.settings import Settings

LOCK = Path(__file__).parents[2] / "versions.toml"


@dataclass(frozen=True)
class Versions:
    """The content of the `[source]` table: the tags of Go modules, the minimum Go version, and a Debian
    suite."""

    kubernetes: str
    etcd: str
    coredns: str
    jobset: str
    kueue: str
    kind: str
    go: str
    debian: str


def load(settings: Settings) -> Versions:
    """Load settings.versions_file, or harness/versions.toml.

    If the user replaces a controller's version, the result contains the user's version.

    Raises UsageError with the file and the missing values.
    """
    path = settings.versions_file or LOCK
    table = mapping(toml(path, "versions file", hint=f"compare it with {LOCK}").get("source"))
    names = [field.name for field in fields(Versions)]
    missing = [name for name in names if not isinstance(table.get(name), str)]
    if missing:
        raise UsageError(f"{path}: [source] lacks {', '.join(missing)}", hint=f"compare it with {LOCK}")
    replaced = {name: controller_version(name, settings.replace) for name in CONTROLLERS}
    return Versions(**{name: replaced.get(name) or table[name] for name in names})
