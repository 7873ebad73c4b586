"""Read and write the state file of a harness cluster.

The file is written before the cluster is created, and removed after the cluster is deleted.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path


@dataclass(frozen=True)
class State:
    """The content of state.json: the created cluster and its inputs."""

    name: str
    phase: str
    """The phase: creating, created or ready."""
    node_image: str
    workers: int
    created_at: str
    fingerprint: str = ""
    """A fingerprint of everything that is installed in the cluster, set once all components are ready."""
    versions: dict[str, str] = field(default_factory=dict)
    """The versions of JobSet and Kueue, set with the fingerprint."""
    owner: str = ""
    """Nonce of the run that created the cluster, which removes the cluster if no run has used it."""
    kept: bool = False
    """Whether the cluster is kept (KEEP_CLUSTER, `harness up`). Then only `harness down` removes it."""


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
