"""Read and write the state file of a kind cluster that the harness created.

The file is written before the cluster is created, and removed after the cluster is deleted.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path


@dataclass(frozen=True)
class State:
    """The content of state.json. It describes a cluster that the harness created, its inputs and its
    phase."""

    name: str
    phase: str
    """The phase of the cluster: creating, created or ready."""
    node_image: str
    workers: int
    created_at: str
    fingerprint: str = ""
    """A hash of the components that are installed in the cluster, set once all of them are ready."""
    versions: dict[str, str] = field(default_factory=dict)
    """The versions of JobSet and Kueue, set together with `fingerprint`."""
    owner: str = ""
    """The nonce of the run that created the cluster. Until another run has used the cluster, only this run
    removes it."""
    kept: bool = False
    """Whether the cluster is kept (KEEP_CLUSTER, `harness up`). Only `harness down` removes a kept
    cluster."""


def read(folder: Path) -> State | None:
    """Return the state in a cluster's folder, or None if there is no readable state file."""
    try:
        document = json.loads((folder / "state.json").read_text())
        names = [each.name for each in fields(State) if each.name in document]
        return State(**{name: document[name] for name in names})
    except (FileNotFoundError, ValueError, TypeError):
        return None


def save(folder: Path, state: State) -> None:
    """Write the state file atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "state.partial"
    partial.write_text(json.dumps(asdict(state), indent=1))
    os.replace(partial, folder / "state.json")
