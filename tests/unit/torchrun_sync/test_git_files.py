"""What of a git work tree is sent: what git has, whatever the rules and wherever they are."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.torchrun_sync.git_files import GitFiles
from harness.torchrun_sync.tree import Tree, Walker

Git = Callable[..., str]


@pytest.fixture
def proj(tmp_path: Path, git: Git) -> Path:
    """The repository of the case "what git means by ignored"."""
    top = tmp_path / "proj"
    for folder in ("lib/data", "tool"):
        (top / folder).mkdir(parents=True)
    git(top, "init", "-q")
    (top / ".gitignore").write_text("data/\n*.bin\n")
    (top / ".git/info/exclude").write_text("private.env\n")
    for name in ("private.env", "lib/__init__.py", "lib/data/__init__.py", "tool/tokenizer.bin", "train.py"):
        (top / name).write_text(name)
    git(top, "add", "-f", "lib/data/__init__.py", "tool/tokenizer.bin")
    git(top, "add", ".")
    git(top, "commit", "-qm", "x")
    return top


def scan(top: Path) -> tuple[set[str], Tree, list[str]]:
    """Return the paths of the files that are sent, the tree, and the warnings."""
    messages: list[str] = []
    tree = Walker(top, messages.append).scan()
    return {entry["path"] for entry in tree.entries if entry["kind"] != "dir"}, tree, messages


ALL = {".gitignore", "lib/__init__.py", "lib/data/__init__.py", "tool/tokenizer.bin", "train.py"}


def test_tracked_file_is_sent_and_excluded_one_is_not(proj: Path) -> None:
    """Contract: no rule applies to what git tracks; .git/info/exclude counts."""
    (proj / "lib/data/cache.json").write_text("")
    files, tree, messages = scan(proj)
    assert files == ALL
    assert dict(tree.excluded) == {
        ".git/": "a built-in rule excludes it",
        "lib/data/cache.json": "git ignores it",
        "private.env": "git ignores it",
    }
    assert messages == []


def test_the_rules_of_the_folders_above_count(proj: Path, tmp_path: Path) -> None:
    """Contract: also the user's global rules."""
    (tmp_path / "excludes").write_text("*.swp\n")
    for name in ("sub.py", "big.bin", ".sub.py.swp"):
        (proj / "tool" / name).write_text("")
    files, tree, _ = scan(proj / "tool")
    assert files == {"tokenizer.bin", "sub.py"}
    assert [path for path, _ in tree.excluded] == [".sub.py.swp", "big.bin"]


def test_a_worktree_is_sent_without_its_git_file(proj: Path, tmp_path: Path, git: Git) -> None:
    """Contract: the file names a path of this machine; with the repository gone, .gitignore files decide."""
    git(proj, "worktree", "add", "-q", str(tmp_path / "tree"))
    files, _, messages = scan(tmp_path / "tree")
    assert (files, messages) == (ALL, [])
    proj.rename(tmp_path / "gone")
    files, _, [said_now] = scan(tmp_path / "tree")
    assert files == {".gitignore", "lib/__init__.py", "train.py"}
    assert "/tree/.git does not decide which files are sent (not a git repository: " in said_now


def test_deleted_and_replaced_files(proj: Path) -> None:
    """Contract: what is on the disk is sent, never what a link leads to."""
    (proj / "train.py").unlink()
    (proj / "train.py").mkdir()
    (proj / "train.py/__init__.py").write_text("")
    for path in sorted((proj / "lib/data").iterdir()):
        path.unlink()
    (proj / "lib/data").rmdir()
    (proj / "tool").rename(proj / "moved")
    (proj / "tool").symlink_to("moved")
    files, *_ = scan(proj)
    assert files == {".gitignore", "lib/__init__.py", "train.py/__init__.py", "tool"}  # moved/*.bin: ignored


def test_submodules_and_nested_repositories_have_their_own_rules(
    proj: Path, tmp_path: Path, git: Git
) -> None:
    """Contract: of each, what its own git has, and never its .git; an empty submodule is named."""
    git(proj, "submodule", "--quiet", "add", str(proj), "vendor/sub")
    git(proj, "submodule", "--quiet", "add", str(proj), "vendor/empty")
    git(proj, "submodule", "--quiet", "deinit", "--force", "vendor/empty")
    (proj / "vendor/sub/lib/data/x").write_text("")
    (proj / "vendor/sub/new.py").write_text("")
    git(tmp_path, "clone", "-q", str(proj), str(proj / "nested"))
    (proj / "nested/scratch.bin").write_text("")
    files, tree, [message] = scan(proj)
    inside = {f"vendor/sub/{path}" for path in (*ALL, "new.py")} | {f"nested/{path}" for path in ALL}
    assert files == ALL | {".gitmodules"} | inside
    assert {"vendor/sub/lib/data/x", "vendor/sub/.git", "nested/.git/"} <= {path for path, _ in tree.excluded}
    assert "the submodule vendor/empty is empty here" in message
    # A copy of a submodule without its .git is a folder like any other.
    (proj / "vendor/sub/.git").unlink()
    assert "vendor/sub/new.py" in scan(proj)[0]


def test_repositories_below_a_folder_that_is_none(proj: Path) -> None:
    """Contract: git decides in each of them, .gitignore files beside them."""
    (proj.parent / ".gitignore").write_text("*.log\nhome/\ngitconfig\n")
    (proj.parent / "a.log").write_text("")
    files, *_ = scan(proj.parent)
    assert files == {".gitignore", *(f"proj/{path}" for path in ALL)}


def test_torchrunignore_wins_over_git(proj: Path) -> None:
    """Contract: it excludes tracked files and includes ignored ones, a folder with its whole content."""
    for name in ("out/data/x.bin", "out/data/y", "lib/data/z", "w.bin", "out/data/__pycache__/y.pyc"):
        (proj / name).parent.mkdir(parents=True, exist_ok=True)
        (proj / name).write_text("")
    (proj / ".torchrunignore").write_text("!data/\n!/w.bin\ntrain.py\n")
    files, *_ = scan(proj)
    added = {"out/data/x.bin", "out/data/y", "lib/data/z", "w.bin", ".torchrunignore"}
    assert files == (ALL | added) - {"train.py"}


REPORTS = {
    "a rule with a slash holds at its own level alone": (
        {".gitignore": "data/*\n"},
        {"src/project/data/__init__.py": True, "data/big.csv": False},
    ),
    "generated code that git ignores": (
        {".gitignore": "lib/rpc/*_pb2.py\n", ".torchrunignore": "!*_pb2.py\n"},
        {"lib/rpc/time_pb2.py": True, "lib/rpc/time.py": True},
    ),
    "a build folder that is needed in the cluster": (
        {".gitignore": "dist/\n*.map\n", ".torchrunignore": "!dist/\n*.map\n"},
        {"dist/app/main.js": True, "dist/app/main.map": False},
    ),
    "an exception in a folder that is excluded by its content": (
        {".torchrunignore": "data/*\n!data/keep.csv\n"},
        {"data/keep.csv": True, "data/large.csv": False},
    ),
    "data of a tool with ignore files of its own": (
        {"store/.gitignore": "/large.csv\n"},
        {"store/large.csv": False, "store/large.csv.dvc": True},
    ),
}
"""What users of other tools reported: rules, and which files they expect in the cluster."""


@pytest.mark.parametrize("inside", [True, False], ids=["git", "no git"])
@pytest.mark.parametrize("report", REPORTS)
def test_reports_of_other_tools(tmp_path: Path, git: Git, report: str, inside: bool) -> None:
    """Contract: the same in a work tree and outside of one."""
    rules, files = REPORTS[report]
    for name, text in {**dict.fromkeys(files, ""), **rules}.items():
        (tmp_path / "top" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "top" / name).write_text(text)
    if inside:
        git(tmp_path / "top", "init", "-q")
    sent = scan(tmp_path / "top")[0]
    assert {name: name in sent for name in files} == files


def test_names_of_any_bytes(proj: Path) -> None:
    """Contract: line breaks, quotes and bytes that are no UTF-8 are part of a name."""
    names = [b"new\nline.py", b"bad\xff\xfe.py", b'q"\t\\.py', "ümläut.py".encode(), b"-x", b" lead"]
    for name in names:
        (proj / os.fsdecode(name)).write_text("")
    files, *_ = scan(proj)
    assert files == ALL | {os.fsdecode(name) for name in names}


def test_empty_folders_and_folders_of_ignored_files(proj: Path) -> None:
    """Contract: a program that writes into logs/ finds it in the pod; an ignored folder is not sent."""
    for folder in ("logs", "empty/inner", "out/data", ".venv"):
        (proj / folder).mkdir(parents=True)
    (proj / "logs/a.bin").write_text("")
    (proj / ".venv/x.py").write_text("")
    _, tree, _ = scan(proj)
    folders = {entry["path"] for entry in tree.entries if entry["kind"] == "dir"}
    assert folders == {"lib", "lib/data", "tool", "logs", "empty", "empty/inner", "out"}


def test_tracked_files_in_what_built_in_rules_exclude(proj: Path, git: Git) -> None:
    """Contract: a built-in rule says nothing about tracked files either."""
    (proj / "venv").mkdir()
    for name in ("venv/kept.py", "venv/other.py"):
        (proj / name).write_text("")
    git(proj, "add", "venv/kept.py")
    assert scan(proj)[0] == ALL | {"venv/kept.py", "venv/other.py"}


def test_a_tracked_virtual_environment_is_sent(proj: Path, git: Git) -> None:
    """Contract: no rule applies to what git tracks, also not one that looks at the content of a folder."""
    for folder in ("env", "other"):
        (proj / folder).mkdir()
        (proj / folder / "pyvenv.cfg").write_text("")
    git(proj, "add", "env/pyvenv.cfg")
    assert scan(proj)[0] == ALL | {"env/pyvenv.cfg"}


def test_what_has_name_of_store_is_refused_before_launch(proj: Path, git: Git) -> None:
    """Contract: not by the pods, after they have started. An untracked folder of that name is not sent."""
    (proj / ".torchrun").mkdir()
    (proj / ".torchrun/x").write_text("")
    assert scan(proj)[0] == ALL
    git(proj, "add", "-f", ".torchrun/x")
    with pytest.raises(
        UsageError, match=r"proj/\.torchrun cannot be sent, because a pod keeps the code in a"
    ):
        scan(proj)
    (proj / ".torchrunignore").write_text("/.torchrun\n")
    assert scan(proj)[0] == ALL | {".torchrunignore"}


def test_file_with_markers_of_conflict_is_named(proj: Path, git: Git) -> None:
    """Contract: a training would end with a SyntaxError in every pod. A resolved file is not named."""
    git(proj, "checkout", "-qb", "other")
    for branch in ("other", "main"):
        git(proj, "checkout", "-q", branch)
        (proj / "train.py").write_text(branch)
        git(proj, "commit", "-qam", branch)
    subprocess.run(["git", "-C", str(proj), "merge", "other"], capture_output=True, check=False)
    files, _, messages = scan(proj)
    assert (files, messages) == (ALL, ["note: train.py is sent with merge conflict markers"])
    (proj / "train.py").write_text("resolved")
    assert scan(proj)[2] == []


def test_a_gitignore_that_git_cannot_read_is_named(proj: Path) -> None:
    """Contract: PowerShell writes UTF-16, and git then applies no rule of the file."""
    (proj / "tool/.gitignore").write_text("sub.py\n", encoding="utf-16")
    (proj / "tool/sub.py").write_text("")
    files, _, [message] = scan(proj)
    assert "tool/sub.py" in files
    assert message == "warning: git cannot read ignore files in UTF-16: tool/.gitignore; save them as UTF-8"


def test_a_folder_that_git_ignores_itself(proj: Path) -> None:
    """Contract: such as a project in a home that is a repository with the rule `*`: it is not sent empty."""
    (proj / "out/data/exp").mkdir(parents=True)
    (proj / "out/data/exp/.gitignore").write_text("*.bin\n")
    for name in ("run.py", "x.bin"):
        (proj / "out/data/exp" / name).write_text("")
    files, _, [message] = scan(proj / "out/data/exp")
    assert files == {".gitignore", "run.py"}
    assert "git ignores the folder" in message


def test_a_folder_of_ignored_files_is_sent_without_them(proj: Path) -> None:
    """Contract: the rules of the folders above count, also if they leave nothing; the user is warned."""
    (proj / "logs/sub/deep").mkdir(parents=True)
    (proj / "logs/sub/deep/a.bin").write_text("")
    files, tree, [message] = scan(proj / "logs/sub")
    assert (files, tree.excluded) == (set(), (("deep/a.bin", "git ignores it"),))
    assert "warning: no files in" in message


def modes(top: Path) -> dict[str, int]:
    return {entry["path"]: entry["mode"] for entry in scan(top)[1].entries if entry["kind"] == "file"}


@pytest.mark.parametrize("disk", [0o644, 0o777], ids=["lost", "invented"])
def test_git_decides_what_is_executable_where_the_disk_cannot(proj: Path, git: Git, disk: int) -> None:
    """Contract: as on the disks of Windows (core.fileMode is false). Untracked files keep their bits."""
    git(proj, "update-index", "--chmod=+x", "tool/tokenizer.bin")
    git(proj, "submodule", "--quiet", "add", str(proj), "sub")
    (proj / "new.sh").write_text("")
    for path in proj.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            path.chmod(disk)
    assert {modes(proj)[name] & 0o111 for name in ("tool/tokenizer.bin", "train.py")} == {disk & 0o111}
    for folder in (proj, proj / "sub"):
        git(folder, "config", "core.fileMode", "false")
    found = modes(proj)
    assert found["tool/tokenizer.bin"] & 0o111 == 0o111
    assert (found["train.py"] & 0o111, found["sub/train.py"] & 0o111) == (0, 0)
    assert found["new.sh"] == disk
    # A disk that shows the bit for some files is trusted: git does not learn of `chmod +x`.
    (proj / ".gitignore").chmod(0o644)
    (proj / "train.py").chmod(0o755)
    assert modes(proj)["train.py"] == 0o755


def test_link_that_was_checked_out_as_file_is_named(proj: Path, git: Git) -> None:
    """Contract: with core.symlinks=false, a link is a file with the path of its target."""
    (proj / "link.py").symlink_to("train.py")
    git(proj, "add", "link.py")
    assert scan(proj)[2] == []
    (proj / "link.py").unlink()
    (proj / "link.py").write_text("train.py")
    [said] = scan(proj)[2]
    assert "link.py is a symbolic link in git, but a file here" in said


def test_linked_work_tree_inside_is_named(proj: Path, git: Git) -> None:
    """Contract: it is a second copy of the code, which is not sent in silence. A submodule is none."""
    git(proj, "worktree", "add", "-q", "trees/other")
    git(proj, "submodule", "--quiet", "add", str(proj), "sub")
    files, _, [said] = scan(proj)
    assert "trees/other/train.py" in files
    assert "trees/other is a work tree of" in said
    assert "add trees/other/ to .torchrunignore" in said
    (proj / ".torchrunignore").write_text("trees/other/\n")
    assert scan(proj)[2] == []


def test_submodule_that_does_not_exist_is_named(proj: Path, git: Git) -> None:
    git(proj, "submodule", "--quiet", "add", str(proj), "sub")
    shutil.rmtree(proj / "sub")
    [said] = scan(proj)[2]
    assert "the submodule sub does not exist here and is not sent" in said


def test_a_sparse_checkout_sends_what_is_checked_out(proj: Path, git: Git) -> None:
    """Contract: neither a missing file nor the sparse index is an error."""
    git(proj, "sparse-checkout", "init", "--cone", "--sparse-index")
    git(proj, "sparse-checkout", "set", "lib")
    assert scan(proj)[0] == ALL - {"tool/tokenizer.bin"}


def test_variables_of_a_hook_name_no_other_repository(
    proj: Path, tmp_path: Path, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: in a hook of another repository, this folder's own files are sent."""
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other/.git/index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "other"))
    assert scan(proj)[0] == ALL


def test_a_work_tree_that_git_cannot_list_is_refused(
    proj: Path, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: the reason and what to do, as an excluded file must not be sent by mistake."""
    index = (proj / ".git/index").read_bytes()
    (proj / ".git/index").write_bytes(b"broken")
    with pytest.raises(UsageError, match=r"git cannot list its files: .*index file") as broken:
        scan(proj)
    assert "status` work" in broken.value.hint
    (proj / ".git/index").write_bytes(index)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setattr("harness.torchrun_sync.git_files._INHERITED", ("GIT_",))
    with pytest.raises(UsageError, match="dubious ownership") as foreign:
        scan(proj)
    assert f"git config --global --add safe.directory {proj}" in foreign.value.hint
    monkeypatch.setenv("PATH", str(proj))
    with pytest.raises(UsageError, match="there is no `git` command") as missing:
        scan(proj)
    assert "install git" in missing.value.hint
    (proj / ".git").rename(proj.parent / "away")
    assert "train.py" in scan(proj)[0]  # without a repository, git is not needed


def test_bare_and_broken_repositories_are_no_work_trees(tmp_path: Path, git: Git) -> None:
    """Contract: in a bare repository, and beside a .git that is none, .gitignore files decide."""
    git(tmp_path, "init", "-q", "--bare", str(tmp_path / "bare"))
    assert "HEAD" in scan(tmp_path / "bare")[0]
    (tmp_path / "half/.git").mkdir(parents=True)
    (tmp_path / "half/run.py").write_text("")
    files, _, [message] = scan(tmp_path / "half")
    assert (files, "half/.git does not decide" in message) == ({"run.py"}, True)


def test_file_whose_name_has_another_case_in_git(proj: Path, git: Git) -> None:
    """syncthing/syncthing#1787, owncloud/client#1914, git/git-scm.com#615: after a rename that changed only
    the case, the file was missing on Linux.

    Contract: git then lists the file neither as tracked under its new name nor as untracked. It is sent, as
    it is named on the disk. An ignored file with another name is still not sent.
    """
    git(proj, "config", "core.ignoreCase", "true")
    (proj / "train.py").rename(proj / "Train.py")
    (proj / "lib").rename(proj / "Lib")
    (proj / "Other.bin").write_text("")
    files, _, messages = scan(proj)
    assert files == {
        ".gitignore",
        "Lib/__init__.py",
        "Lib/data/__init__.py",
        "tool/tokenizer.bin",
        "Train.py",
    }
    assert messages == [
        f"note: {name} is sent under this name, but its name in git is {name.lower()}; "
        "names in a pod are case-sensitive"
        for name in ("Lib", "Train.py")
    ]


def test_files_that_differ_in_case_alone_are_named(proj: Path, git: Git) -> None:
    """nextcloud/desktop#3670, haiwen/seafile#2856: of two such files, one disappeared without a message.

    Contract: nothing is said where the disk keeps both.
    """
    (proj / "Train.py").write_text("")
    git(proj, "add", "Train.py")
    git(proj, "config", "core.ignoreCase", "true")
    assert scan(proj)[::2] == (ALL | {"Train.py"}, [])
    (proj / "train.py").unlink()
    [message] = scan(proj)[2]
    assert message == (
        "note: git has Train.py and train.py, which this disk does not distinguish; "
        "train.py does not exist here and is not sent"
    )


def test_case_counts_where_the_disk_distinguishes_it(proj: Path) -> None:
    """Contract: on Linux, an ignored file is not the tracked file of almost the same name."""
    (proj / ".git/info/exclude").write_text("Train.py\nprivate.env\n")
    (proj / "Train.py").write_text("")
    assert scan(proj)[0] == ALL


def test_names_in_decomposed_unicode_are_those_of_git() -> None:
    """google/adb-sync#20: macOS lists ä as two characters.

    Contract: git prints one character for it, and the file counts as tracked, or as not ignored.
    """
    composed, decomposed = "mod\u00e4l.py", "moda\u0308l.py"
    lists = (frozenset({composed}), frozenset({f"x/{composed}"}), *[frozenset[str]()] * 3)
    for composes in (True, False):
        files = GitFiles(*lists, composes=composes)
        assert files.is_tracked(decomposed) is composes
        assert files.is_ignored(f"x/{decomposed}") is not composes
