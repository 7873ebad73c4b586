"""What an image copies: packages of a lock, installed on this machine for another Python."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from harness.context import RunContext
from harness.core.errors import ToolError
from harness.provision.images import build, packages
from harness.settings import load

LOCK = build.TRACKER.lock


def installed(folder: Path, python: str = "3.13") -> Path:
    context = RunContext(settings=load().model_copy(update={"cache_dir": folder}), progress=print)
    return packages.packages(LOCK, python, context)


def files(folder: Path) -> set[str]:
    """Return what images run: not what an installer says of itself."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in found if path.name not in {"INSTALLER", "REQUESTED", "uv_cache.json"}}


def test_both_installers_install_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: with uv or without it, an image has the same files: no bytecode, and no programs. This
    holds also for a user whose pip installs into the home folder by default.
    """
    monkeypatch.setenv("PIP_USER", "1")
    assert packages.uv(), "uv is in locks/build.txt"
    fast = files(installed(tmp_path / "uv"))
    monkeypatch.setattr(packages, "uv", lambda: None)
    slow = files(installed(tmp_path / "pip"))
    assert fast == slow
    assert "starlette/__init__.py" in fast
    assert any(name.startswith("httptools/") and "cpython-313" in name for name in fast), "this Python's"
    assert not [name for name in fast if name.endswith(".pyc") or name.startswith("bin/")]


@pytest.mark.parametrize("fast", [True, False])
def test_each_package_is_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    """Contract: RECORD names what is there, or each rank would say that its code is changed."""
    if not fast:
        monkeypatch.setattr(packages, "uv", lambda: None)
    folder = installed(tmp_path)
    records = [*folder.glob("*.dist-info/RECORD")]
    assert any("uvicorn" in str(record) for record in records), "it brings a program"
    named = {row[0] for record in records for row in csv.reader(record.read_text().splitlines())}
    assert {name for name in named if not (folder / name).is_file() and not name.endswith(".pyc")} == set()


def test_it_is_installed_once(tmp_path: Path) -> None:
    (installed(tmp_path) / "mine").touch()
    assert "mine" in files(installed(tmp_path))


def test_nothing_is_left_that_looks_whole(tmp_path: Path) -> None:
    """Contract: what has no wheel for a Python is an error with its cause, and the next try begins anew."""
    with pytest.raises(ToolError) as error:
        installed(tmp_path, python="3.99")
    assert error.value.cause == "image.build_failed"
    assert [path.name for path in (tmp_path / "packages").iterdir() if "unfinished" not in path.name] == [
        path.name for path in (tmp_path / "packages").glob("*.lock")
    ]
