"""The kubeconfig that a launcher gets works from another folder and another HOME."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube
from harness.launch.konduktor.kubeconfig import for_launch


def write(folder: Path, user: dict[str, Any]) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "other",
        "contexts": [
            {"name": name, "context": {"cluster": "c", "user": "u", "namespace": "theirs"}}
            for name in ("other", "mine")
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority": "ca.crt"}}
        ],
        "users": [{"name": "u", "user": user}, {"name": "somebody", "user": {"token": "else"}}],
    }
    (folder / "ca.crt").write_text("no certificate, never read")
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def test_one_context_in_the_namespace_of_the_launch(tmp_path: Path) -> None:
    """It holds nothing of other users, its paths are absolute, and the user's file is unchanged."""
    path = write(tmp_path, {"token": "t0ken"})
    before = path.read_bytes()
    config = for_launch(Kube(path, "mine"), "e2e-1")
    assert config["current-context"] == "mine"
    assert [c["context"]["namespace"] for c in config["contexts"]] == ["e2e-1"]
    assert config["clusters"][0]["cluster"]["certificate-authority"] == str(tmp_path / "ca.crt")
    assert [u["user"] for u in config["users"]] == [{"token": "t0ken"}]
    assert path.read_bytes() == before


def test_credentials_of_program_are_handed_on_as_token(tmp_path: Path) -> None:
    """A cloud's program looks into the user's HOME, which the launcher does not have."""
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "fr0m-program"},
    }
    program = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(json.dumps(answer))})"],
        "interactiveMode": "Never",
    }
    config = for_launch(Kube(write(tmp_path, {"exec": program}), "mine"), "e2e-1")
    assert config["users"] == [{"name": "u", "user": {"token": "fr0m-program"}}]


def test_a_program_that_gives_none_is_told(tmp_path: Path) -> None:
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/no/such/program"}
    with pytest.raises(HarnessError) as failed:
        for_launch(Kube(write(tmp_path, {"exec": program}), "mine"), "e2e-1")
    assert failed.value.cause == "cluster.kubeconfig"
