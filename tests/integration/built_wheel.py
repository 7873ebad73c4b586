"""Build the wheel of this checkout as a user would: offline, from an sdist."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(command: list[object], folder: Path, code: int = 0) -> str:
    """Run a program in an environment without any reference to the checkout, and return its stdout."""
    env = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**env, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def build(folder: Path) -> Path:
    """Return a wheel in `folder`, built from an sdist, which is built from a copy of the checkout."""
    source = folder / "source"
    for name in ("harness", "fixtures"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "Dockerfile", "Dockerfile.dockerignore"):
        shutil.copy(ROOT / name, source)
    program = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    run([sys.executable, "-c", program, folder], source)
    (sdist,) = folder.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-index", "--quiet"]
    run([*pip, "--no-deps", "--no-build-isolation", "-w", folder, sdist], folder)
    (built,) = folder.glob("*.whl")
    return built
