"""training.sh and the texts of its volume: it makes them where there are none, and replaces nobody's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

SCRIPT = Path(__file__).parents[4] / "harness" / "workers" / "training" / "training.sh"
TEXTS = ("train.jsonl", "val.jsonl")
THEIRS = '{"text": "of the user"}\n'


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def train(volume: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run one node to its end, with a torchrun that succeeds at once."""
    programs = volume.parent / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "torchrun").write_text("#!/bin/sh\nexit 0\n")
    (programs / "torchrun").chmod(0o755)
    environment = {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(SCRIPT.parents[1]),
        **{"HOSTNAME": "node-0", "NODE_RANK": "0", "NNODES": "1", "MASTER_ADDR": "node-0", "RUN_ID": "run"},
        **{
            "TRAINING_SOURCE": "1",
            "HARNESS_NONCE": "n1",
            "DATA_DIR": str(volume),
            "OUT_DIR": str(volume.parent),
            "TMPDIR": str(programs),
        },
        **more,
    }
    command = ["sh", SCRIPT, "-m", "x"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def content(volume: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in volume.iterdir()}


def test_an_empty_volume_gets_texts_of_a_known_entropy(volume: Path) -> None:
    assert train(volume).returncode == 0
    assert sorted(content(volume)) == ["source.json", "train.jsonl", "val.jsonl"]
    assert json.loads((volume / "source.json").read_text())["entropy"] > 0


def test_texts_of_the_user_are_used_and_not_changed(volume: Path) -> None:
    (volume / ".making").mkdir()
    (volume / ".making" / "notes").write_text("also theirs")
    for name in TEXTS:
        (volume / name).write_text(THEIRS)
    done = train(volume)
    assert done.returncode == 0
    assert "this training uses them, and makes no texts" in done.stdout
    (volume / ".making" / "notes").unlink()
    (volume / ".making").rmdir()
    assert content(volume) == dict.fromkeys(TEXTS, THEIRS)


@pytest.mark.parametrize("name", TEXTS)
def test_one_text_alone_is_refused_in_one_sentence(volume: Path, name: str) -> None:
    (volume / name).write_text(THEIRS)
    done = train(volume)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"has {name} already, which is not replaced" in done.stderr
    assert content(volume) == {name: THEIRS}


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_a_node_lost_while_moving_texts_continues(volume: Path, moved: int) -> None:
    """Its folder of made texts tells its own files from those of the user."""
    assert train(volume).returncode == 0
    made = content(volume)
    folder = volume / ".harness-texts-n1"
    folder.mkdir()
    for name in (*TEXTS, "source.json")[moved:]:
        (volume / name).rename(folder / name)
    assert train(volume).returncode == 0
    assert content(volume) == made


def test_a_later_node_does_not_wait_for_user_texts(volume: Path) -> None:
    for name in TEXTS:
        (volume / name).write_text(THEIRS)
    assert train(volume, NODE_RANK="1").returncode == 0


@pytest.mark.parametrize("name", ["", "run"])
def test_folder_of_another_user_is_refused_with_both_users(name: str) -> None:
    """Contract: before any rank starts, with exit code 2, after which no pod is created again."""
    mode, other = (0o755, 65532) if os.getuid() == 0 else (0o555, os.getuid())
    with TemporaryDirectory() as place:  # pytest's folders are closed to other users
        root, out = Path(place), Path(place) / "out"
        (root / "training").mkdir()
        (out / "run").mkdir(parents=True)
        shutil.copy(SCRIPT, root / "training")
        shutil.copy(SCRIPT.parents[1] / "own_processes.sh", root)
        for folder in (root, root / "training", out, out / "run"):
            folder.chmod(0o755)
        out.chmod(0o777 if name else mode)
        (out / name).chmod(mode)
        variables = {"PATH": os.environ["PATH"], "OUT_DIR": str(out), "RUN_ID": "run", "NODE_RANK": "0"}
        done = subprocess.run(
            ["sh", root / "training" / "training.sh"],
            env={**variables, "NNODES": "1", "MASTER_ADDR": "node-0"},
            user=other,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        folder = str(out / name).rstrip("/")
        assert f"expected a folder that user {other} can write to, found {folder} of user" in done.stderr
        assert f"of user {os.getuid()}: --pod FILE can set" in done.stderr
