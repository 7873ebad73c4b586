"""Files and folders that cannot be used: exit code 64 or 2, one message, in little time and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bad_inputs import corpus

ROOT = Path(__file__).parents[3]
MAX_STARTS = 6
"""CPU time of one command, in starts of the harness: 2 s where `harness run --help` takes 0.33 s."""
MAX_KILOBYTES = 300_000


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment whose folders are all below one, with no program to create anything."""
    for name in ("home", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    own = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "PATH": "/nonexistent"}
    return {**own, "PYTHONDONTWRITEBYTECODE": "1", **more}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_no_input_costs_more_than_it_holds(tmp_path: Path) -> None:
    """Contract: under `ulimit -v 2000000` each bad input is refused, and leaves nothing behind."""
    corpus(tmp_path / "corpus")
    env = environment(tmp_path)
    before = files(tmp_path)
    script = Path(__file__).with_name("run_corpus.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "corpus")],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    measurements = json.loads(done.stdout.splitlines()[-1])
    for name, result in measurements["results"].items():
        assert result["code"] in ((64, 2)), (name, result)
        assert "Traceback" not in result["output"], (name, result)
        assert result["output"].strip(), name
        assert result["seconds"] < MAX_STARTS * measurements["start"], (name, measurements["start"], result)
    assert measurements["kilobytes"] < MAX_KILOBYTES
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("more", "place", "code"),
    [
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, None, 64),
        ({"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, None, 64),
        ({}, "/proc", 2),
        ({"HOME": "/proc/none"}, None, 2),
    ],
    ids=["ascii-locale", "ascii-output", "folder", "home"],
)
def test_where_nothing_can_be_written_or_printed(
    tmp_path: Path, more: dict[str, str], place: str | None, code: int
) -> None:
    """Contract: one message says what and what to do, without a traceback, and is no FAIL."""
    job = ROOT / "jobs/multinode.yaml" if code == 2 else tmp_path / "größe.yaml"
    done = subprocess.run(
        [str(Path(sys.executable).with_name("harness")), "run", str(job)],
        env=environment(tmp_path, **more),
        cwd=place or tmp_path,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stderr.startswith(b"harness: ")
    assert not (tmp_path / "runs").exists()
