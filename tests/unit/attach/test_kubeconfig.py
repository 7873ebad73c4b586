"""Which kubeconfig an attached cluster is read with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.attach.session import default_kubeconfig


def test_files_of_list_that_do_not_exist_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: as for kubectl, a list may have empty entries and files that do not exist."""
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(["", str(first), str(second)]))
    assert default_kubeconfig() == first
    second.touch()
    assert default_kubeconfig() == second
    monkeypatch.setenv("KUBECONFIG", "")
    assert default_kubeconfig().parts[-2:] == (".kube", "config")
