"""Run Git commands in a local repository that the user specifies."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from harness.core import processes
from harness.core.errors import ToolError, UsageError

SECONDS: Final = 60
_REPOSITORY: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR")
"""The environment variables that would make Git use another repository."""


def environment() -> dict[str, str]:
    """Return the environment for a Git command. It makes Git print messages in English and take no optional
    locks."""
    changes = {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", "LANGUAGE": None}
    return processes.environment(changes, without=_REPOSITORY)


def output(folder: Path, *words: str) -> str:
    """Return the output of a Git command in a folder, without leading and trailing newlines.

    Raises UsageError if the folder is not in a repository, and ToolError if the command fails.
    """
    try:
        result = processes.run(["git", "-C", str(folder), *words], timeout=SECONDS, env=environment())
    except ToolError as error:
        if "not a git repository" in error.output:
            raise UsageError(f"{folder} is not a Git repository") from None
        raise
    return result.stdout.strip("\n")


def commit(folder: Path, ref: str, option: str) -> str:
    """Return the SHA of the commit to which `ref` refers.

    Raises UsageError if there is no such commit. The message begins with `option`, the command-line option
    that contains the ref.
    """
    try:
        return output(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    except ToolError:
        raise UsageError(
            f"{option}: {folder} has no branch, tag or commit {ref}",
            hint="fetch the whole history with `git fetch --unshallow`, because the repository is shallow"
            if shallow(folder)
            else "check the name, or fetch it first, for example with `git fetch --tags`",
        ) from None


def shallow(folder: Path) -> bool:
    """Return whether a repository lacks part of its history (a shallow clone).

    Returns False if the folder is not in a repository.
    """
    try:
        return output(folder, "rev-parse", "--is-shallow-repository") == "true"
    except UsageError:
        return False
