"""The steps of a release and of the nightly workflow before the upload, with a registry and a package index
on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.provision.images.build import FILES

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[2]
DIGEST = f"sha256:{'a' * 64}"


@contextmanager
def served(handler: object) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)  # type: ignore[arg-type]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def wheel(index: Path, name: str, version: str) -> str:
    """Add a wheel to a package index, and return its SHA-256."""
    path = index / name / f"{name}-{version}-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{name}/__init__.py", f"VERSION = {version!r}\n")
        packed.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the URL of an index with PyTorch and one of its dependencies, and the SHA-256 of both."""
    folder = tmp_path / "index"
    hashes = wheel(folder, "torch", "2.9.1+cpu"), wheel(folder, "needed", "1.0")
    with served(partial(SimpleHTTPRequestHandler, directory=str(folder))) as address:
        yield f"http://{address}", *hashes


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the programs of a Python without PyTorch, which represents the image's
    Python."""
    venv = tmp_path_factory.mktemp("image")
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    return venv / "bin"


class TestTorch:
    """Tests for install_torch.sh, which the build of the worker image runs if the base image has no
    PyTorch."""

    def run(
        self, python: Path, index: tuple[str, str, str], folder: Path, sha256: str, needed: str = ""
    ) -> subprocess.CompletedProcess[str]:
        subprocess.run(
            [python / "pip", "uninstall", "-qy", "torch", "needed"], check=True, capture_output=True
        )
        needs = folder / "needs.txt"
        needs.write_text(f"needed==1.0 --hash=sha256:{needed or index[2]}\n")
        env = {"PATH": f"{python}:/usr/bin:/bin", "PIP_INDEX_URL": index[0], "TORCH_INDEX": index[0]}
        return subprocess.run(
            ["sh", FILES / "install_torch.sh", needs, "2.9.1", sha256],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    def there(self, python: Path) -> bool:
        asked = [python / "python3", "-c", "import torch, needed; assert torch.VERSION == '2.9.1+cpu'"]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    def test_the_known_wheel_is_installed(
        self, python: Path, index: tuple[str, str, str], tmp_path: Path
    ) -> None:
        done = self.run(python, index, tmp_path, index[1])
        assert (done.returncode, self.there(python)) == (0, True), done.stderr
        assert "not verified" not in done.stderr

    def test_another_wheel_is_refused(
        self, python: Path, index: tuple[str, str, str], tmp_path: Path
    ) -> None:
        done = self.run(python, index, tmp_path, "f" * 64)
        assert (done.returncode, self.there(python)) == (1, False)
        assert f"SHA-256 {'f' * 64} was expected, {index[1]} was found" in done.stderr

    def test_what_torch_needs_has_hashes_too(
        self, python: Path, index: tuple[str, str, str], tmp_path: Path
    ) -> None:
        done = self.run(python, index, tmp_path, index[1], needed="f" * 64)
        assert (done.returncode, self.there(python)) == (1, False)

    def test_an_unknown_hash_is_in_the_log(
        self, python: Path, index: tuple[str, str, str], tmp_path: Path
    ) -> None:
        done = self.run(python, index, tmp_path, "")
        assert (done.returncode, self.there(python)) == (0, True), done.stderr
        assert "torch 2.9.1: not verified" in done.stderr
        assert index[1] in done.stderr


class Registry(BaseHTTPRequestHandler):
    """A registry that requires a token, as public registries do even for anonymous clients."""

    def do_HEAD(self) -> None:
        known = self.path == "/v2/a/b/manifests/v1" and "index" in self.headers["Accept"]
        if self.headers.get("Authorization") != "Bearer t":
            self.send_response(401)
            realm = f"http://{self.headers['Host']}/token"
            self.send_header("WWW-Authenticate", f'Bearer realm="{realm}",service="s",scope="pull"')
        elif known:
            self.send_response(200)
            self.send_header("Docker-Content-Digest", DIGEST)
        else:
            self.send_response(404)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/token?service=s&scope=pull" else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"token": "t"}).encode())

    def log_message(self, *_: object) -> None: ...


def test_digests_are_filled_in(index: tuple[str, str, str]) -> None:
    """Contract: a tag gets the digest that its registry reports. A pinned digest is kept, and a moved tag is
    reported."""
    completed = runpy.run_path(str(ROOT / ".ci/digests.py"))["completed"]
    with served(Registry) as host:
        other = f"{host}/a/b:v1@sha256:{'b' * 64}"
        text = f'x = "{host}/a/b:v1"  # kept\ny = "{other}"\nz = "{host}/a/gone:v1"\n'
        text += '[worker]\ntorch = "2.9.1"\npython = "3.13"\n'
        text += f'torch_sha256 = {{arm64 = "{index[1]}"}}\n'
        filled, messages = completed(text, index[0])
    found = tomllib.loads(filled)
    assert (found["x"], found["y"], found["z"]) == (f"{host}/a/b:v1@{DIGEST}", other, f"{host}/a/gone:v1")
    assert "# kept" in filled
    assert found["worker"]["torch_sha256"] == {"amd64": index[1], "arm64": index[1]}
    assert [line.partition(": ")[0] for line in messages] == [f"{host}/a/b:v1", f"{host}/a/gone:v1"]
    assert f"moved to @{DIGEST}" in messages[0]


class TestDist:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        ignored = shutil.ignore_patterns("__pycache__")
        for name in ("harness", "fixtures", ".ci"):
            shutil.copytree(ROOT / name, tmp_path / "source" / name, symlinks=True, ignore=ignored)
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "Dockerfile", "Dockerfile.dockerignore"):
            shutil.copy(ROOT / name, tmp_path / "source")
        return tmp_path / "source"

    def dist(self, source: Path, tag: str) -> subprocess.CompletedProcess[str]:
        command = [source / ".ci/release", "dist", tag, source.parent / "dist"]
        env = {**os.environ, "PYTHON": sys.executable}
        return subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, check=False)

    def test_packages_are_built_from_the_tag_s_version(self, source: Path) -> None:
        """Contract: the result is an sdist, a wheel that is built from it, and their hashes. Nothing is
        downloaded."""
        settings = tomllib.loads((source / "pyproject.toml").read_text())["tool"]["setuptools_scm"]
        version = settings["fallback_version"]
        refused = self.dist(source, "v9.9.9")
        assert (refused.returncode, f"has the version {version}" in refused.stderr) == (64, True)
        refused = self.dist(source, f"v{version}")
        assert (refused.returncode, "CHANGELOG.md has no section" in refused.stderr) == (64, True)
        changes = source / "CHANGELOG.md"
        changes.write_text(
            changes.read_text().replace("## Unreleased: ", "## ") + f"\n## {version}: 2026-12-01\n"
        )
        done = self.dist(source, f"v{version}")
        assert done.returncode == 0, done.stderr
        folder = source.parent / "dist"
        assert {path.suffix for path in folder.iterdir()} == {".whl", ".gz", ""}
        subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True)
