"""The Makefile and scripts on other machines: parallel make, spaces, CDPATH, an unsuitable Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ci_scripts import ROOT

SCRIPTS = [
    ROOT / ".ci/plan",
    ROOT / ".ci/run",
    ROOT / ".ci/summary",
    *ROOT.glob("*/*.sh"),
    *ROOT.glob("*/*/*.sh"),
]
ALONE = """#!/usr/bin/env bash
mkdir "$BUSY" || exit 1
sleep 0.3
rmdir "$BUSY"
echo "${0##*/}" "$@" >>"$CALLS"
"""
"""A program that fails if another one runs at the same time."""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs that only note their calls, instead of those in .venv/bin."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("harness", "python", "shellcheck"):
        (folder / name).write_text(ALONE)
        (folder / name).chmod(0o755)
    return folder


def without_make() -> dict[str, str]:
    """Return the environment without the variables of a `make` that runs the tests."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}


def make(programs: Path, *arguments: str, **environment: str) -> list[str]:
    """Run targets with these programs instead of those in .venv/bin. Return the programs' calls in order."""
    calls = programs.parent / "calls"
    busy = {"BUSY": str(programs.parent / "busy"), "CALLS": str(calls)}
    done = subprocess.run(
        ["make", "-o", ".venv/.made", f"BIN={programs}", *arguments],
        cwd=ROOT,
        env={**without_make(), **busy, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return calls.read_text().splitlines()


def test_parallel_make_runs_one_target_after_the_other(programs: Path) -> None:
    """Contract: `make -j`, also from MAKEFLAGS, does not install two things at the same time."""
    expected = ["harness doctor --fix", "harness images build", "python -m tests.browser"]
    assert sorted(make(programs, "-j4", "images", "browser")) == expected
    (programs.parent / "calls").unlink()
    assert sorted(make(programs, "images", "browser", MAKEFLAGS="-j4")) == expected


def test_cache_may_be_in_folder_with_space(programs: Path, tmp_path: Path) -> None:
    version = re.search(r"^ACTIONLINT_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert version
    tools = tmp_path / "a user" / "tools"
    tools.mkdir(parents=True)
    (programs / "shellcheck").rename(tools / f"actionlint-{version[1]}")
    (programs / "shellcheck").write_text(ALONE)
    (programs / "shellcheck").chmod(0o755)
    first, second = make(programs, "workflows", HARNESS_CACHE_DIR=str(tools.parent))
    assert first.startswith(f"actionlint-{version[1]} -shellcheck {programs}/shellcheck -pyflakes= ")
    assert second.startswith("shellcheck .ci/run .ci/plan ")


def test_a_script_uses_its_own_checkout_whatever_cdpath_is(tmp_path: Path) -> None:
    """Contract: with CDPATH, `cd .ci/..` would go to another folder that has a `.ci`."""
    (tmp_path / "other/.ci").mkdir(parents=True)
    done = subprocess.run(
        [".ci/plan"],
        cwd=ROOT,
        env={**os.environ, "CDPATH": str(tmp_path / "other"), "GITHUB_OUTPUT": str(tmp_path / "output")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_that_enters_a_folder_ignores_cdpath(script: Path) -> None:
    before, found, _ = script.read_text().partition('\ncd "$(dirname "$0")')
    assert not found or before.endswith("\nunset CDPATH")


def make_environment(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    """Run `make .venv/.made` with this PYTHON in a copy of the Makefile."""
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "harness").mkdir()
    shutil.copy(ROOT / "harness/versions.toml", folder / "harness")
    (folder / "locks").mkdir()
    for name in ("pyproject.toml", "locks/build.txt", "locks/dev.txt"):
        (folder / name).touch()
    command = ["make", "--no-print-directory", ".venv/.made", f"PYTHON={python}"]
    return subprocess.run(
        command, cwd=folder, env=without_make(), capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize(
    ("program", "message"),
    [
        ('case "$*" in *version_info*) exit 1 ;; -V) echo Python 3.9.2 ;; esac', "is Python 3.9.2"),
        ('case "$*" in *ensurepip*) echo no module >&2; exit 1 ;; esac', "python3-venv"),
        (None, "is not on PATH"),
    ],
)
def test_an_unsuitable_python_is_refused_in_one_sentence(
    tmp_path: Path, program: str | None, message: str
) -> None:
    python = tmp_path / "python-of-the-test"
    if program is not None:
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o755)
    done = make_environment(tmp_path, str(python))
    assert done.returncode == 2
    first, *more = done.stderr.splitlines()
    assert first.startswith("Python 3.11 or newer with venv is needed, but ")
    assert message in first
    assert all(line.startswith("make:") for line in more)
    assert not (tmp_path / ".venv").exists()
