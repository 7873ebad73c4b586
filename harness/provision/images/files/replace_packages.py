"""Remove the installed packages NAME... and install those in FOLDER.

    replace_packages.py [--layer] FOLDER NAME...

Runs with the Python of a worker image: while an image is built or, with `--layer`, in a container, whose
changes are then written to stdout as the tar archive of an image layer. The environment variable IMAGE
contains the new image's name. Uses only the standard library.
"""

import compileall
import contextlib
import os
import shutil
import sys
import sysconfig
import tarfile
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import cache_from_source
from io import BytesIO
from pathlib import Path

NAME_FILE = Path("/etc/pluto-e2e-harness.image")


def remove(name: str) -> set[Path]:
    """Remove the files of an installed package, and the folders that become empty. Return their paths."""
    removed, folders = set(), set()
    with contextlib.suppress(PackageNotFoundError):
        for file in distribution(name).files or ():
            path = Path(os.path.normpath(str(file.locate())))
            path.unlink(missing_ok=True)
            cached = path.parent / "__pycache__"
            removed |= {path, cached, *cached.glob("*")}
            shutil.rmtree(cached, ignore_errors=True)
            folders.add(path.parent)
        for folder in sorted(folders, key=lambda each: len(each.parts), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
                removed.add(folder)
    return removed


def readable(path: Path) -> None:
    """Make a file or folder readable for all users, because pods run as any user."""
    path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))


def install(folder: Path) -> set[Path]:
    """Copy the packages in a folder into the image and compile them. Return the paths of all copies.

    No other files are touched, because changed files are copied into the layer.
    """
    target = Path(sysconfig.get_path("purelib"))
    copies = set()
    for entry in folder.rglob("*"):
        copy = target / entry.relative_to(folder)
        copies.add(copy)
        if entry.is_dir():
            copy.mkdir(exist_ok=True)
        else:
            shutil.copy2(entry, copy)
        readable(copy)
    for entry in folder.iterdir():
        if entry.is_dir():
            compileall.compile_dir(target / entry.name, quiet=2)
    compiled = {Path(cache_from_source(str(copy))) for copy in copies if copy.suffix == ".py"}
    return copies | compiled | {path.parent for path in compiled}


def write_layer(changed: set[Path]) -> None:
    """Write the changed paths to stdout as an image layer, in which `.wh.NAME` marks NAME as removed.

    The layer also contains the parent folders, because Docker would otherwise create them with mode 0600.
    """
    paths = {parent for path in changed for parent in path.parents[:-1]} | changed
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as layer:
        for path in sorted(paths):
            name = str(path).lstrip("/")
            if path.is_symlink() or path.exists():
                layer.add(path, arcname=name, recursive=False, filter=owned_by_root)
            elif path.parent.is_dir():
                layer.addfile(tarfile.TarInfo(str(Path(name).with_name(f".wh.{path.name}"))), BytesIO())


def owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a tar entry whose owner is root.

    On a host with remapped user ids, root's files have another id.
    """
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def main(as_layer: bool, folder: Path, names: list[str]) -> None:
    """Replace the packages and record the image's name."""
    if not any(folder.iterdir()):
        raise SystemExit(f"{folder} has no packages")
    changed = {NAME_FILE}
    for name in names:
        changed |= remove(name)
    changed |= install(folder)
    NAME_FILE.write_text(f"{os.environ['IMAGE']}\n")
    if as_layer:
        write_layer(changed)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--layer"]
    main("--layer" in sys.argv, Path(words[0]), words[1:])
