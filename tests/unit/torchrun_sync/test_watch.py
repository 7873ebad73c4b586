"""What `--watch` takes for a change of the code."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.torchrun_sync.tree import Walker

Git = Callable[..., str]

TEMPORARY = (
    *(".train.py.swp", ".train.py.swo", "train.py~", "#train.py#", ".train.py.kate-swp"),
    *("train.py___jb_tmp___", ".goutputstream-A1B2C3", ".nfs0000000001d8a4c500000001"),
    *(".hg/store/data.i", ".svn/wc.db", ".jj/repo/x"),
)


@pytest.mark.parametrize("name", TEMPORARY)
@pytest.mark.parametrize("inside", [True, False], ids=["git", "no git"])
def test_files_of_editors_do_not_restart_the_ranks(tmp_path: Path, git: Git, name: str, inside: bool) -> None:
    """commercialhaskell/stack#912, rust-lang/mdBook#1327, hahwul/hwaro#417: opening a file in an editor
    started a build. cloudfoundry/cli#138, projectkudu/kudu#390: the metadata of Mercurial was uploaded.

    Contract: neither the stamps nor the tree change.
    """
    top = tmp_path / "top"
    top.mkdir()
    (top / "train.py").write_text("")
    if inside:
        git(top, "init", "-q")
    before = Walker(top).stamps(), Walker(top).scan().digest
    (top / name).parent.mkdir(parents=True, exist_ok=True)
    (top / name).write_text("x")
    assert (Walker(top).stamps(), Walker(top).scan().digest) == before


def test_lock_of_emacs_does_not_restart_the_ranks(tmp_path: Path) -> None:
    """paulmillr/chokidar#21, getpelican/pelican#862: Emacs locks a file with a broken link beside it."""
    (tmp_path / "train.py").write_text("")
    before = Walker(tmp_path).stamps()
    (tmp_path / ".#train.py").symlink_to("me@laptop.4711:1700000000")
    assert Walker(tmp_path).stamps() == before


def test_similar_names_are_code(tmp_path: Path, git: Git) -> None:
    """Contract: what git tracks is sent, whatever its name, and so is a file that only resembles these."""
    git(tmp_path, "init", "-q")
    names = ["kept.py~", ".swp", "swp.py", "a.swp", "4913", ".nfsrc", "#1.txt", "a~b"]
    for name in names:
        (tmp_path / name).write_text("")
    git(tmp_path, "add", "-f", "kept.py~")
    files = {entry["path"] for entry in Walker(tmp_path).scan().entries}
    assert set(names) <= files


@pytest.mark.parametrize("kind", ["work tree", "linked work tree"])
def test_git_is_waited_for_while_it_changes_files(tmp_path: Path, git: Git, kind: str) -> None:
    """GoogleContainerTools/skaffold#4647: a rebase in another terminal started a build of half its files.

    Contract: a real checkout counts until it ends. A lock that a killed git left does not count for long.
    """
    top = tmp_path / "top"
    top.mkdir()
    git(top, "init", "-q")
    (top / ".gitattributes").write_text("*.py filter=slow\n")
    for text in ("one", "two"):
        (top / "train.py").write_text(text)
        git(top, "add", ".")
        git(top, "commit", "-qm", text)
    if kind == "linked work tree":
        git(top, "worktree", "add", "-q", "--detach", str(tmp_path / "tree"))
        top = tmp_path / "tree"
    walker = Walker(top)
    assert not walker.is_changing()
    git(top, "config", "filter.slow.smudge", f"touch {tmp_path}/began; sleep 1; cat")
    with subprocess.Popen(["git", "-C", str(top), "checkout", "-q", "HEAD~1"]) as checkout:
        while not (tmp_path / "began").exists():
            assert checkout.poll() is None
            time.sleep(0.01)
        assert walker.is_changing()
        assert checkout.wait() == 0
    assert not walker.is_changing()

    lock = Path(git(top, "rev-parse", "--path-format=absolute", "--git-path", "index.lock").strip())
    lock.write_text("")
    assert walker.is_changing()
    os.utime(lock, (time.time() - 60,) * 2)
    assert not walker.is_changing()
