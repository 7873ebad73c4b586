"""The packages that an image copies, which are installed from a lock file on this machine for another
Python."""

from __future__ import annotations

import csv
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.context import RunContext
from harness.core.errors import HarnessError, ToolError
from harness.provision.images import build, locked_packages
from harness.provision.platforms import AMD64, ARM64, Platform
from harness.settings import load

LOCK = build.TRACKER.lock
MACHINE = {"amd64": b"\x3e\0", "arm64": b"\xb7\0"}
"""The values of e_machine in the ELF header."""


def installed(folder: Path, python: str = "3.13", lock: Path = LOCK, platform: Platform = AMD64) -> Path:
    context = RunContext(settings=load().model_copy(update={"cache_dir": folder}), progress=print)
    return locked_packages.packages(lock, python, platform, context)


def files(folder: Path) -> set[str]:
    """Return the files that an image uses, without the metadata that the installer writes about itself."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in found if path.name not in {"INSTALLER", "REQUESTED", "uv_cache.json"}}


@pytest.mark.parametrize("platform", [AMD64, ARM64], ids=lambda each: each.architecture)
def test_both_installers_install_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: Platform
) -> None:
    """Contract: with and without uv, an image has the same files, without bytecode and programs, for the
    image's platform. This also applies if the user's pip installs into the home folder by default.
    """
    monkeypatch.setenv("PIP_USER", "1")
    assert locked_packages.uv(), "uv is in locks/build.txt"
    folder = installed(tmp_path / "uv", platform=platform)
    fast = files(folder)
    monkeypatch.setattr(locked_packages, "uv", lambda: None)
    slow = files(installed(tmp_path / "pip", platform=platform))
    libraries = [path.read_bytes()[18:20] for path in folder.rglob("*.so*")]
    assert set(libraries) == {MACHINE[platform.architecture]}
    assert fast == slow
    assert "starlette/__init__.py" in fast
    assert any(name.startswith("httptools/") and "cpython-313" in name for name in fast), "this Python's"
    assert not [name for name in fast if name.endswith(".pyc") or name.startswith("bin/")]


@pytest.mark.parametrize("fast", [True, False])
def test_each_package_is_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    """Contract: RECORD lists exactly the installed files. Otherwise, each rank would report changed code."""
    if not fast:
        monkeypatch.setattr(locked_packages, "uv", lambda: None)
    folder = installed(tmp_path)
    records = [*folder.glob("*.dist-info/RECORD")]
    assert any("uvicorn" in str(record) for record in records), "it brings a program"
    named = {row[0] for record in records for row in csv.reader(record.read_text().splitlines())}
    assert {name for name in named if not (folder / name).is_file() and not name.endswith(".pyc")} == set()


def test_it_is_installed_once(tmp_path: Path) -> None:
    (installed(tmp_path) / "mine").touch()
    assert "mine" in files(installed(tmp_path))


def test_nothing_is_left_that_looks_whole(tmp_path: Path) -> None:
    """Contract: a package without a wheel for this Python is an error with the reason, and the next attempt
    starts again."""
    with pytest.raises(ToolError) as error:
        installed(tmp_path, python="3.99")
    assert error.value.cause == "image.build_failed"
    assert [path.name for path in (tmp_path / "packages").iterdir() if "unfinished" not in path.name] == [
        path.name for path in (tmp_path / "packages").glob("*.lock")
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("recipe", [build.WORKER, build.CONTROLLER], ids=lambda each: each.lock.stem)
def test_every_lock_has_wheels_for_both_platforms(tmp_path: Path, recipe: build.Recipe) -> None:
    for platform in (AMD64, ARM64):
        folder = installed(tmp_path, lock=recipe.lock, platform=platform)
        libraries = {
            path.read_bytes()[:4] == b"\x7fELF" and path.read_bytes()[18:20] for path in folder.rglob("*.so*")
        }
        assert libraries - {False} == {MACHINE[platform.architecture]}


def sdist(folder: Path, name: str, backend: str, files: dict[str, str]) -> str:
    """Add a source distribution to a package index, and return its line in a lock file."""
    path = folder / name / f"{name}-1.0.tar.gz"
    path.parent.mkdir(parents=True)
    project = f'[build-system]\nrequires = ["{backend}"]\nbuild-backend = "setuptools.build_meta"\n'
    texts = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        "pyproject.toml": f'{project}[project]\nname = "{name}"\nversion = "1.0"\n',
        **files,
    }
    with tarfile.open(path, "w:gz") as packed:
        for file, text in texts.items():
            info = tarfile.TarInfo(f"{name}-1.0/{file}")
            info.size = len(text)
            packed.addfile(info, io.BytesIO(text.encode()))
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a package index on loopback that serves only one folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    yield folder
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("fast", [True, False], ids=["uv", "pip"])
@pytest.mark.parametrize("backend", ["setuptools", "evil-backend"])
def test_a_build_downloads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, fast: bool, backend: str
) -> None:
    """Contract: an sdist is built only with the packages in sdist.txt, whose hashes are checked. A build
    requirement that is not in this file is neither downloaded nor run, because --require-hashes does not
    apply to it (pypa/pip#13984).
    """
    if not fast:
        monkeypatch.setattr(locked_packages, "uv", lambda: None)
    locked_packages._build_environment(tmp_path / "packages")
    folder = request.getfixturevalue("index")
    ran = tmp_path / "ran"
    evil = f"open({str(ran)!r}, 'w')\n"
    sdist(
        folder, "evil-backend", "setuptools", {"setup.py": f"{evil}import setuptools\nsetuptools.setup()\n"}
    )
    lock = tmp_path / "lock.txt"
    lock.write_text(sdist(folder, "pure", backend, {"pure.py": "A = 1\n"}))
    monkeypatch.setattr(locked_packages, "SOURCES", ("pure",))
    assert (installed(tmp_path, lock=lock) / "pure.py").is_file(), "the backend itself is in the lock"
    assert not ran.exists()


@pytest.mark.parametrize("fast", [True, False], ids=["uv", "pip"])
def test_wheel_for_another_platform_is_not_local_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, fast: bool
) -> None:
    if not fast:
        monkeypatch.setattr(locked_packages, "uv", lambda: None)
    locked_packages._build_environment(tmp_path / "packages")
    setup = "from setuptools import setup, Distribution\n"
    setup += "class Own(Distribution):\n    def has_ext_modules(self): return True\n"
    setup += "setup(distclass=Own, py_modules=['native'])\n"
    lock = tmp_path / "lock.txt"
    folder = request.getfixturevalue("index")
    lock.write_text(sdist(folder, "native", "setuptools", {"native.py": "", "setup.py": setup}))
    monkeypatch.setattr(locked_packages, "SOURCES", ("native",))
    with pytest.raises(HarnessError):
        installed(tmp_path, lock=lock, platform=ARM64)
    assert not [*(tmp_path / "packages").glob("lock-*/")]
