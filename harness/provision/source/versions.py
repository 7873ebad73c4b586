"""The `[source]` table of the lock: what is built, in which version."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from harness.core.errors import UsageError
from harness.settings import Settings

LOCK = Path(__file__).parents[2] / "versions.toml"


@dataclass(frozen=True)
class Versions:
    """Tags of Go modules, the oldest Go that builds them, and a Debian suite."""

    kubernetes: str
    etcd: str
    coredns: str
    jobset: str
    kueue: str
    kind: str
    go: str
    debian: str


def load(settings: Settings) -> Versions:
    """Load from settings.versions_file, or from harness/versions.toml.

    Raises UsageError naming the file and the values that are missing.
    """
    path = settings.versions_file or LOCK
    try:
        table = tomllib.loads(path.read_text()).get("source", {})
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: {error}", hint=f"compare it with {LOCK}") from None
    names = [field.name for field in fields(Versions)]
    missing = [name for name in names if not isinstance(table.get(name), str)]
    if missing:
        raise UsageError(f"{path}: [source] lacks {', '.join(missing)}", hint=f"compare it with {LOCK}")
    return Versions(**{name: table[name] for name in names})
