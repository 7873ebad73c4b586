"""state.json of a cluster that the harness made: written before its creation, removed after its deletion."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class State:
    """state.json: what the harness made, and from what."""

    name: str
    phase: str
    """creating, created, ready"""
    node_image: str
    workers: int
    created_at: str
    fingerprint: str = ""
    """Fingerprint of everything installed in the cluster, set when all of it was proved ready."""
    owner: str = ""
    """Nonce of the run that created it. That run removes it when it never comes to be used."""
    kept: bool = False
    """Whether somebody wants it (KEEP_CLUSTER, `harness up`). Then only `harness down` removes it."""


def read(folder: Path) -> State | None:
    """Return the state in a cluster's folder, or None when there is none that can be read."""
    try:
        document = json.loads((folder / "state.json").read_text())
        known = [field.name for field in fields(State) if field.name in document]
        return State(**{name: document[name] for name in known})
    except (FileNotFoundError, ValueError, TypeError):
        return None


def save(folder: Path, state: State) -> None:
    """Write it, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "state.partial"
    partial.write_text(json.dumps(asdict(state), indent=1))
    os.replace(partial, folder / "state.json")
