"""A workspace that is fetched from a real S3 server with the init container's command."""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from minio import Minio

from harness.context import RunContext
from harness.settings import load
from harness.torchrun_sync.pod_script import s3_fetch
from tests.s3_server import S3Server, s3_server

BUCKET = "code"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    context = RunContext(settings=load(), progress=print)
    with s3_server(context, tmp_path_factory.mktemp("s3")) as found:
        found.client().make_bucket(BUCKET)
        yield found


@pytest.fixture
def client(server: S3Server) -> Minio:
    return server.client()


def put(client: Minio, key: str, text: bytes) -> None:
    client.put_object(BUCKET, key, io.BytesIO(text), len(text))


def fetch(url: str, root: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the command as the kubelet does, with only PATH from this process's environment."""
    command = s3_fetch(url, str(root), ".torchrun/ready", 60)
    return subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def tree(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file() and ".torchrun" not in path.parts)
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def test_a_prefix_with_many_pages_is_fetched_completely(
    server: S3Server, client: Minio, tmp_path: Path
) -> None:
    """Contract: exactly the objects below the prefix are fetched, even if they need more than one page."""
    expected = {f"lib/{number:04d}.txt": f"{number}".encode() for number in range(1005)}
    expected |= {"train.py": b"print(1)\n", "ä +&%/a b.txt": b"x", "empty": b""}
    for name, text in expected.items():
        put(client, f"proj/{name}", text)
    put(client, "proj-old/train.py", b"another project")
    done = fetch("s3://code/proj", tmp_path, server.environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert tree(tmp_path) == expected
    assert done.stdout.strip() == (tmp_path / ".torchrun/ready").read_text()
    again = fetch("s3://code/proj/", tmp_path / "again", server.environment)
    assert again.stdout == done.stdout


def test_large_object_and_changed_object(server: S3Server, client: Minio, tmp_path: Path) -> None:
    """Contract: an object from a multipart upload is fetched completely, and a changed object changes the
    digest."""
    text = os.urandom(11 * 2**20)
    client.put_object(BUCKET, "parts/weights", io.BytesIO(text), len(text), part_size=5 * 2**20)
    first = fetch("s3://code/parts/", tmp_path / "a", server.environment)
    assert (first.returncode, tree(tmp_path / "a")) == (0, {"weights": text})
    put(client, "parts/weights", b"new")
    second = fetch("s3://code/parts/", tmp_path / "b", server.environment)
    assert tree(tmp_path / "b") == {"weights": b"new"}
    assert first.stdout != second.stdout
    # Existing files are kept, so a restarted pod trains with the code with which it started.
    third = fetch("s3://code/parts/", tmp_path / "a", server.environment)
    assert (third.stdout, tree(tmp_path / "a")) == (first.stdout, {"weights": text})


def test_a_single_archive_is_unpacked(server: S3Server, client: Minio, tmp_path: Path) -> None:
    """Contract: one archive is unpacked."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("train.py", "print(2)\n")
        archive.writestr("lib/a.py", "")
    put(client, "releases/v1.zip", buffer.getvalue())
    done = fetch("s3://code/releases/v1.zip", tmp_path, server.environment)
    assert (done.returncode, tree(tmp_path)) == (0, {"train.py": b"print(2)\n", "lib/a.py": b""})


@pytest.mark.parametrize(
    ("url", "changed", "says"),
    [
        ("s3://code/nothing", {}, "expected objects, found none"),
        ("s3://nowhere/code", {}, "HTTP 404 NoSuchBucket"),
        ("s3://code/proj", {"AWS_SECRET_ACCESS_KEY": "another"}, "HTTP 403 SignatureDoesNotMatch"),
        ("s3://code/proj", {"AWS_ACCESS_KEY_ID": ""}, "HTTP 403 AccessDenied"),
    ],
)
def test_a_refused_fetch_reports_the_server_error(
    server: S3Server, tmp_path: Path, url: str, changed: dict[str, str], says: str
) -> None:
    """Contract: if the fetch fails, the exit code is 1 and the reason is printed. The workspace is not marked
    as ready, and no key is printed."""
    done = fetch(url, tmp_path, {**server.environment, **changed})
    assert (done.returncode, done.stdout) == (1, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert server.secret_key not in done.stderr
    assert not (tmp_path / ".torchrun/ready").exists()


def test_path_that_leaves_the_workspace(server: S3Server, client: Minio, tmp_path: Path) -> None:
    """Contract: no object is written outside the workspace, or over the file that marks it as ready."""
    put(client, "evil/.torchrun/ready", b"mine")
    done = fetch("s3://code/evil", tmp_path, server.environment)
    assert done.returncode == 1
    assert "expected a path inside the workspace" in done.stderr
