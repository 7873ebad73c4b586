"""The Makefile refuses a Python that cannot make its environment, before it makes anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ci_scripts import ROOT


def make(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Run `make .venv/.made` with this PYTHON in a copy of the Makefile."""
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "harness").mkdir()
    shutil.copy(ROOT / "harness/versions.toml", folder / "harness")
    (folder / "locks").mkdir()
    for name in ("pyproject.toml", "locks/build.txt", "locks/dev.txt"):
        (folder / name).touch()
    command = ["make", "--no-print-directory", ".venv/.made", f"PYTHON={python}"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(
    ("program", "told"),
    [
        ('case "$*" in *version_info*) exit 1 ;; -V) echo Python 3.9.2 ;; esac', "is Python 3.9.2"),
        ('case "$*" in *ensurepip*) echo no module >&2; exit 1 ;; esac', "python3-venv"),
        (None, "is not on PATH"),
    ],
)
def test_an_unsuitable_python_is_refused_in_one_sentence(
    tmp_path: Path, program: str | None, told: str
) -> None:
    python = tmp_path / "python-of-the-test"
    if program is not None:
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o755)
    done = make(tmp_path, str(python))
    assert done.returncode == 2
    first, *more = done.stderr.splitlines()
    assert first.startswith("Python 3.11 or newer with venv is needed, but ")
    assert told in first
    assert all(line.startswith("make:") for line in more)
    assert not (tmp_path / ".venv").exists()
