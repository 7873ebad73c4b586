"""The image of the tracker has every file that the server imports, and is renewed with each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness.provision.images.build import ROOT, TRACKER


def copied() -> list[tuple[Path, Path]]:
    """The sources and destinations of the harness's files in the Dockerfile, relative to ROOT and /app."""
    pairs = []
    for line in TRACKER.dockerfile.read_text().splitlines():
        if line.startswith("COPY ") and " harness/" in line:
            *sources, to = (word for word in line.split()[1:] if not word.startswith("--"))
            for source in sources:
                target = Path(to).relative_to("/app") / ("" if source.endswith("/") else Path(source).name)
                pairs.append((Path(source), target))
    return pairs


def test_the_server_starts_with_the_files_of_its_image(tmp_path: Path) -> None:
    for source, target in copied():
        (tmp_path / target).parent.mkdir(parents=True, exist_ok=True)
        whole = ROOT / source
        if whole.is_dir():
            shutil.copytree(whole, tmp_path / target, dirs_exist_ok=True)
        else:
            shutil.copyfile(whole, tmp_path / target)
    ended = subprocess.run(
        [sys.executable, "-c", "import harness.tracker.__main__ as m; print(m.__file__)"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == str(tmp_path / "harness/tracker/__main__.py")


def test_every_copied_file_affects_tag_and_build_context() -> None:
    """Contract: a changed file gives a new tag, and .dockerignore lets the build see it."""
    ignored = Path(f"{TRACKER.dockerfile.resolve()}.dockerignore").read_text().split()
    parts = {str(path.relative_to(ROOT)) for path in TRACKER.parts}
    assert {str(source) for source, _ in copied()} == parts
    assert {f"!{part}" for part in parts} <= set(ignored)
