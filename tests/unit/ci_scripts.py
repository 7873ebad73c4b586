"""The workflow and the actions of this repository, read, and a way to run their shell as a runner would."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github/workflows/e2e.yml"
SITE = ROOT / ".github/workflows/site.yml"
RELEASE = ROOT / ".github/workflows/release.yml"
ACTION = ROOT / "action.yml"
COMPOSITES = [ACTION, ROOT / ".github/actions/prepare/action.yml"]
FILES = [WORKFLOW, SITE, RELEASE, *COMPOSITES]
PINNED = re.compile(r"uses: ([\w-]+/[\w-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)$")
LOCK = tomllib.loads((ROOT / "harness/versions.toml").read_text())

Step = dict[str, Any]


def parsed(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return found


def jobs() -> dict[str, Any]:
    return dict(parsed(WORKFLOW)["jobs"])


def steps(path: Path) -> Iterator[Step]:
    document = parsed(path)
    parts = [document["runs"]] if "runs" in document else document["jobs"].values()
    for part in parts:
        yield from part["steps"]


@dataclass(frozen=True)
class Done:
    """A script's end: its exit code, what it printed, and what it wrote for GitHub."""

    code: int
    said: str
    outputs: dict[str, str]
    page: str = ""


def shell(command: list[str], folder: Path, **env: str) -> Done:
    output, page = folder / "output", folder / "page"
    for file in (output, page):
        file.write_text("")
    kept = {
        n: v for n, v in os.environ.items() if not n.startswith(("HARNESS_", "PLUTO_", "KEEP_", "GITHUB_"))
    }
    done = subprocess.run(
        command,
        env={**kept, "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(page), **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    written = dict(line.split("=", 1) for line in output.read_text().splitlines())
    return Done(done.returncode, done.stdout + done.stderr, written, page.read_text())
