"""Store build artefacts, keyed by a hash of all their inputs. An artefact in the store is always complete.

<cache>/source/<name>-<version>-<key>/    one build step's output files
<cache>/source/unfinished/                work folders of a build, removed by the next build
<cache>/source/go-build/                  Go's compiled packages, removed after the build
<cache>/source/logs/                      the output of the tools, one file per build
"""

from __future__ import annotations

import ast
import atexit
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.settings import Settings

FILES = Path(__file__).parent / "files"


def key(*inputs: str) -> str:
    """Return a hash (12 hex digits) of the inputs in their order."""
    text = json.dumps(inputs)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def file_input(name: str) -> str:
    """Return the content of a file in harness/provision/source/files, as an input for `key`."""
    return f"{name}\n{(FILES / name).read_text()}"


def code_input(module_file: str) -> str:
    """Return a module's code without comments and docstrings, as an input for `key`.

    A change to the code therefore leads to a new artefact, but a change to a comment or docstring does not.
    """
    return _code(Path(module_file).read_text())


@cache
def _code(text: str) -> str:
    """Return a module's code without comments and docstrings.

    Results are cached, because every launch calls this function 47 times for only a few modules.
    """
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _is_text(part)]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@dataclass(frozen=True)
class Store:
    """A folder of artefacts. A process must hold the folder's lock to write (harness.core.locks)."""

    root: Path

    @classmethod
    def of(cls, settings: Settings) -> Store:
        """Return the artefact store in the harness's cache."""
        return cls(settings.cache_dir / "source")

    @property
    def go_cache(self) -> Path:
        """Return the folder in which Go caches compiled packages. With this cache, an interrupted build can
        continue."""
        return self.root / "go-build"

    def logs(self) -> Path:
        """Return the log folder, creating it if it does not exist."""
        logs = self.root / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        return logs

    def path(self, name: str, version: str, step_key: str) -> Path:
        """Return the folder for a build step's files.

        The folder exists only if the step succeeded, so an existing folder is always complete.
        """
        return self.root / "-".join(part for part in (name, version, step_key) if part)

    @contextmanager
    def work(self) -> Iterator[Path]:
        """Yield a temporary folder, which is removed at the end of the block."""
        unfinished = self.root / "unfinished"
        unfinished.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=unfinished, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    @contextmanager
    def making(self, target: Path) -> Iterator[Path]:
        """Yield a temporary folder.

        If the block succeeds, the folder is renamed to `target`. Otherwise, it is removed.
        """
        with self.work() as folder:
            result = folder / target.name
            result.mkdir()
            yield result
            result.rename(target)

    def discard(self, folder: Path) -> None:
        """Move a folder out of the store without waiting until its files are deleted.

        The caller must hold the lock. The files in the folder are deleted when this process ends, or by the
        next build. Deleting 7 GB immediately would slow down ext4 for minutes while images are being
        unpacked.
        """
        if folder.exists():
            unfinished = self.root / "unfinished"
            unfinished.mkdir(parents=True, exist_ok=True)
            trash = Path(tempfile.mkdtemp(dir=unfinished))
            folder.rename(trash / folder.name)
            atexit.register(shutil.rmtree, trash, ignore_errors=True)

    def clear_unfinished(self) -> None:
        """Remove the work folders that a killed build left behind. The caller must hold the lock."""
        shutil.rmtree(self.root / "unfinished", ignore_errors=True)
