"""Replace installed packages: `replace_packages.py FOLDER NAME...` removes NAME... and installs FOLDER.

Runs while an image is built, with the image's Python. Uses only the standard library.
"""

import compileall
import contextlib
import shutil
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def remove(name: str) -> None:
    """Remove the files of an installed package, and the folders that become empty."""
    with contextlib.suppress(PackageNotFoundError):
        folders = set()
        for file in distribution(name).files or ():
            path = Path(str(file.locate()))
            path.unlink(missing_ok=True)
            shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)
            folders.add(path.parent)
        for folder in sorted(folders, key=lambda each: len(each.parts), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()


def readable(path: Path) -> None:
    """Make a file or folder readable for all users, because pods run as any user."""
    path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))


def main(folder: Path, names: list[str]) -> None:
    """Replace the packages. No other files are touched, because changed files are copied into the layer."""
    for name in names:
        remove(name)
    target = Path(sysconfig.get_path("purelib"))
    for entry in folder.rglob("*"):
        copy = target / entry.relative_to(folder)
        if entry.is_dir():
            copy.mkdir(exist_ok=True)
        else:
            shutil.copy2(entry, copy)
        readable(copy)
    for entry in folder.iterdir():
        if entry.is_dir():
            compileall.compile_dir(target / entry.name, quiet=2)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
