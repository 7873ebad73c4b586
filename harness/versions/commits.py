"""List the commits between two refs in a local Git repository, oldest first.

The list follows first parents, so it contains the branch's own commits and merges, in the order in which they
were added. Commits from merged branches are left out, because they may lack changes that older commits on the
branch contain. Their results therefore cannot be ordered. To search within a merge, search its second parent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness.core.errors import ToolError, UsageError
from harness.provision import local_git

_SEPARATOR: Final = "\x1f"


@dataclass(frozen=True)
class Commit:
    """A commit in a local Git repository."""

    sha: str
    date: str
    """The committer date, in the format YYYY-MM-DD."""
    subject: str
    parents: tuple[str, ...]

    @property
    def merge(self) -> bool:
        return len(self.parents) > 1

    def spec(self, repository: Path) -> str:
        """Return the SPEC of `--replace` that selects this commit."""
        return f"git+file://{repository}@{self.sha}"


def commits(repository: Path, good: str | None, bad: str) -> tuple[Path, list[Commit]]:
    """Return the root of the repository, and the commits from `good` to `bad`, including both.

    If `good` is None, all commits up to `bad` are returned. Otherwise, `good` comes first, even if it is
    newer. Raises UsageError if a ref does not exist, or if neither is a first-parent ancestor of the other.
    """
    path = repository.expanduser().absolute()
    if not path.is_dir():
        raise UsageError(f"--repo: expected the folder of a Git repository, but {repository} is not a folder")
    root = Path(local_git.output(path, "rev-parse", "--path-format=absolute", "--show-toplevel") or path)
    last = local_git.commit(root, bad, "--bad")
    if good is None:
        return root, _list_commits(root, last)
    first = local_git.commit(root, good, "--good")
    if first == last:
        raise UsageError(f"--good {good} and --bad {bad} are the same commit, {first[:12]}")
    if between := _from(first, _list_commits(root, last)):
        return root, between
    if between := _from(last, _list_commits(root, first)):
        return root, between[::-1]
    message, hint = _unrelated(root, good, bad, first, last)
    raise UsageError(message, hint=hint)


def _from(sha: str, commits_listed: list[Commit]) -> list[Commit]:
    """Return the commits in the list from `sha` onward, or [] if `sha` is not in the list."""
    places = [place for place, each in enumerate(commits_listed) if each.sha == sha]
    return commits_listed[places[0] :] if places else []


def changed_files(repository: Path, before: str, after: str) -> list[tuple[str, int, int]]:
    """Return the files that differ between two commits, with their numbers of added and deleted lines.

    For binary files, both numbers are -1.
    """
    rows = []
    for line in local_git.output(repository, "diff", "--numstat", "--no-renames", "-z", before, after).split(
        "\0"
    ):
        if line:
            added_lines, deleted_lines, name = line.split("\t", 2)
            rows.append(
                (
                    name,
                    -1 if added_lines == "-" else int(added_lines),
                    -1 if deleted_lines == "-" else int(deleted_lines),
                )
            )
    return rows


def _list_commits(root: Path, last: str) -> list[Commit]:
    form = _SEPARATOR.join(("%H", "%cs", "%P", "%s"))
    lines = local_git.output(
        root, "log", "--first-parent", "--reverse", f"--format={form}", last, "--"
    ).splitlines()
    result = []
    for line in lines:
        sha, date, parents, subject = line.split(_SEPARATOR, 3)
        result.append(Commit(sha, date, subject, tuple(parents.split())))
    return result


def _unrelated(root: Path, good: str, bad: str, first: str, last: str) -> tuple[str, str]:
    """Return the error message and the hint for two commits that are not on the same branch."""
    try:
        base = local_git.output(root, "merge-base", first, last)
    except ToolError:
        return f"--good {good} and --bad {bad} have no common commit", "choose two commits on the same branch"
    return (
        f"--good {good} and --bad {bad} are not on one line of first parents",
        f"choose two commits on the same branch, for example with the merge base: --good {base[:12]}",
    )
