"""The commits among which a search takes place: order, merges, and refs that cannot be ordered."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.core.replacements import parse
from harness.versions.bisect_versions import of_repository
from harness.versions.commits import changed_files, commits


def git(folder: Path, *words: str) -> str:
    own = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    return subprocess.run([*own, *words], check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, text: str) -> str:
    (folder / "client.py").write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", f"--message={text}")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def history(tmp_path: Path) -> tuple[Path, list[str]]:
    """A repository whose main branch has the commits 0 to 3, a merge of the branch side, and 5."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    shas = [commit(folder, f"{number}") for number in range(3)]
    git(folder, "checkout", "--quiet", "-b", "side", shas[1])
    (folder / "side.py").write_text("side")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=side")
    side = git(folder, "rev-parse", "HEAD")
    git(folder, "checkout", "--quiet", "main")
    shas.append(commit(folder, "3"))
    git(folder, "merge", "--quiet", "--no-edit", "--no-ff", "side")
    shas += [git(folder, "rev-parse", "HEAD"), commit(folder, "5")]
    git(folder, "tag", "v0", shas[0])
    return folder, [*shas, side]


def test_the_commits_of_the_branch_are_listed_in_order(history: tuple[Path, list[str]]) -> None:
    """Contract: a merge is one step, and commits of the merged branch are not candidates."""
    folder, shas = history
    root, listed = commits(folder, "v0", "main")
    assert root == folder
    assert [each.sha for each in listed] == shas[:6]
    assert [each.merge for each in listed] == [False, False, False, False, True, False]
    assert next(each.subject for each in commits(folder, None, "HEAD")[1]) == "0"
    one = parse("client", listed[2].spec(root))
    assert (one.kind, one.path, one.ref) == ("git", folder, shas[2])


def test_good_commit_that_is_newer_turns_search_around(history: tuple[Path, list[str]]) -> None:
    folder, shas = history
    newer = of_repository("client", folder, "main", "v0")
    assert [each.id for each in newer.versions] == shas[:6][::-1]
    assert newer.fix
    assert not of_repository("client", folder, "v0", "main").fix
    assert not of_repository("client", folder, None, "main").good_known


def test_unordered_refs_are_refused_in_one_sentence(history: tuple[Path, list[str]]) -> None:
    """Contract: the message names what to use instead."""
    folder, shas = history
    with pytest.raises(UsageError, match="side and --bad main are not on one line of first parents") as error:
        commits(folder, "side", "main")
    assert shas[6][:12] in error.value.hint or shas[1][:12] in error.value.hint
    with pytest.raises(UsageError, match="has no branch, tag or commit v9"):
        commits(folder, "v9", "main")
    with pytest.raises(UsageError, match="are the same commit"):
        commits(folder, "main", "HEAD")
    with pytest.raises(UsageError, match="expected the folder of a Git repository"):
        commits(folder / "absent", None, "main")
    (folder.parent / "plain").mkdir()
    with pytest.raises(UsageError, match="is not a Git repository"):
        commits(folder.parent / "plain", None, "main")


def test_a_ref_that_a_shallow_clone_lacks_is_explained(
    history: tuple[Path, list[str]], tmp_path: Path
) -> None:
    folder, shas = history
    clone = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{folder}", str(clone))
    with pytest.raises(UsageError, match="has no branch, tag or commit") as error:
        commits(clone, shas[0], "HEAD")
    assert "git fetch --unshallow" in error.value.hint


def test_changed_files_are_named_with_their_lines(history: tuple[Path, list[str]]) -> None:
    folder, shas = history
    assert changed_files(folder, shas[3], shas[4]) == [("side.py", 1, 0)]
    assert changed_files(folder, shas[0], shas[1]) == [("client.py", 1, 1)]
    assert changed_files(folder, shas[0], shas[0]) == []
