"""A run that is uploaded to a real S3 server and restored, with the program that the pods run."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from minio import Minio

from harness.context import RunContext
from harness.core.errors import UsageError
from harness.launch.workloads import training_transfer
from harness.settings import load
from harness.workers.training import checkpoint, object_store
from harness.workers.training.checkpoint import Manifest
from tests.s3_server import S3Server, s3_server

BUCKET = "runs"
LARGE = 40 * 2**20 + 17
"""The size in bytes of a file that is uploaded in three parts."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    context = RunContext(settings=load(), progress=print)
    with s3_server(context, tmp_path_factory.mktemp("s3")) as found:
        found.client().make_bucket(BUCKET)
        yield found


@pytest.fixture
def client(server: S3Server) -> Minio:
    return server.client()


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    """Return a prefix that no other test uses."""
    return f"{tmp_path.name}/llama"


def save(run: Path, step: int, size: int = 1000) -> Path:
    """Write a checkpoint of two ranks, as the trainer does."""
    manifest = Manifest(
        epoch=step // 10, step=step, place=0, world=2, order={"seed": 1}, losses={"val/loss": 1.0}
    )
    partial = checkpoint.begin(run, manifest)
    files = {
        f"rank-{rank}/{name}": checkpoint.write(partial / f"rank-{rank}" / name, _random(count))
        for rank, name, count in (
            (0, "model.safetensors", size),
            (0, "training.pt", 300),
            (1, "generators.pt", 0),
        )
    }
    return checkpoint.complete(partial, replace(manifest, files=files))


def _random(count: int) -> Any:
    return lambda path: path.write_bytes(os.urandom(count))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run with three checkpoints, of which the first one is the best."""
    folder = tmp_path / "out" / "train"
    (folder / "trackers").mkdir(parents=True)
    (folder / "trackers" / "id").write_text(os.urandom(8).hex())
    first = save(folder, 10)
    save(folder, 20)
    save(folder, 30)
    checkpoint.point_best(folder, first)
    return folder


def enlarge(run: Path) -> None:
    """Replace the last checkpoint with one that has a file for a multipart upload."""
    checkpoint.discard(run / "epoch-0003-step-00000030")
    save(run, 30, LARGE)


def started(server: S3Server, direction: str, run: Path, url: str) -> subprocess.Popen[str]:
    """Start the program as the kubelet does, with only PATH from this process's environment."""
    words = [sys.executable, "-m", "training.transfer", direction, "--run-dir", str(run), "--url", url]
    environment = {"PATH": os.environ["PATH"], **server.environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(words, env=environment, cwd="harness/workers", **pipes)  # type: ignore[call-overload,no-any-return]


def transferred(server: S3Server, direction: str, run: Path, url: str) -> dict[str, Any]:
    """Run the program until it exits, and return its document."""
    process = started(server, direction, run, url)
    out, _ = process.communicate(timeout=300)
    assert server.secret_key not in out
    assert server.access_key not in out
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert process.returncode == (1 if "error" in found else 0), out
    return found


def objects(client: Minio, prefix: str) -> dict[str, bytes]:
    """Return the objects below a prefix."""
    found = {}
    for each in client.list_objects(BUCKET, f"{prefix}/", recursive=True):
        answer = client.get_object(BUCKET, str(each.object_name))
        found[str(each.object_name).removeprefix(f"{prefix}/")] = answer.read()
        answer.close()
    return found


def tree(run: Path) -> dict[str, bytes]:
    """Return the files of a run. Some of them appear twice because of the link `best`."""
    found = (path for path in run.rglob("*") if path.is_file() and "best" not in path.relative_to(run).parts)
    return {str(path.relative_to(run)): path.read_bytes() for path in found}


def put(client: Minio, key: str, text: bytes) -> None:
    client.put_object(BUCKET, key, io.BytesIO(text), len(text))


def test_run_is_sent_and_brought_back_byte_for_byte(
    server: S3Server, client: Minio, run: Path, prefix: str, tmp_path: Path
) -> None:
    """Contract: all files are restored unchanged, including one from a multipart upload. A second upload
    sends nothing."""
    url = f"s3://{BUCKET}/{prefix}"
    enlarge(run)
    before = tree(run)
    sent = transferred(server, "up", run, url)
    assert objects(client, prefix) == before == tree(run)
    names = ["epoch-0001-step-00000010", "epoch-0002-step-00000020", "epoch-0003-step-00000030"]
    assert [one["name"] for one in sent["checkpoints"]] == names
    assert sent["checkpoints"][2]["sent"] > LARGE
    assert (sent["best"], sent["torn"]) == (names[0], [])
    again = transferred(server, "up", run, url)
    assert [one["sent"] for one in again["checkpoints"]] == [0, 0, 0]
    assert not list(client._list_multipart_uploads(BUCKET, prefix=prefix).uploads)

    there = tmp_path / "other" / "resumed"
    there.parent.mkdir()
    brought = transferred(server, "down", there, f"{url}/")
    assert "error" not in brought
    assert tree(there) == before
    assert os.readlink(there / "best") == names[0]
    assert [path.name for path in there.parent.iterdir()] == ["resumed"]
    found = checkpoint.newest(there, print)
    assert found is not None
    assert found[1].step == 30


def test_a_run_that_went_on_replaces_only_best(
    server: S3Server, client: Minio, run: Path, prefix: str
) -> None:
    """Contract: later checkpoints are added, best.txt is updated, and checkpoints that the run has deleted
    remain in the bucket."""
    url = f"s3://{BUCKET}/{prefix}"
    transferred(server, "up", run, url)
    before = objects(client, prefix)
    checkpoint.point_best(run, save(run, 40))
    checkpoint.discard(run / "epoch-0001-step-00000010")
    sent = transferred(server, "up", run, url)
    after = objects(client, prefix)
    assert after.pop("best.txt") == b"epoch-0004-step-00000040\n"
    assert before.items() - after.items() == {("best.txt", b"epoch-0001-step-00000010\n")}
    assert {name.split("/")[0] for name in after.keys() - before.keys()} == {"epoch-0004-step-00000040"}
    assert [one["sent"] > 0 for one in sent["checkpoints"]] == [False, False, True]


def test_an_upload_that_was_cut_is_gone_on_with(
    server: S3Server, client: Minio, run: Path, prefix: str
) -> None:
    """Contract: an upload that is killed between two files leaves no manifest for an incomplete checkpoint,
    and no multipart uploads."""
    url = f"s3://{BUCKET}/{prefix}"
    enlarge(run)
    process = started(server, "up", run, url)
    large = f"{prefix}/epoch-0003-step-00000030"
    until = time.monotonic() + 60
    while not list(client._list_multipart_uploads(BUCKET, prefix=large).uploads):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, out
    names = set(objects(client, prefix))
    assert "epoch-0002-step-00000020/manifest.json" in names
    assert not names & {"best.txt", *(f"epoch-0003-step-00000030/{name}" for name in ("manifest.json",))}
    assert not list(client._list_multipart_uploads(BUCKET, prefix=large).uploads)
    sent = transferred(server, "up", run, url)
    assert [one["sent"] > 0 for one in sent["checkpoints"]] == [False, False, True]
    assert objects(client, prefix) == tree(run)


class Interrupted(object_store.Bucket):
    """A bucket whose process receives SIGTERM after the server has started a multipart upload and before the
    response is read."""

    def request(self, method: str, key: str, *arguments: Any, **named: Any) -> Any:
        response = super().request(method, key, *arguments, **named)
        if method == "POST":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
        return response


@pytest.mark.parametrize("start", [0.0, 0.1])
def test_a_signal_while_an_upload_begins_leaves_no_upload(
    server: S3Server, client: Minio, run: Path, prefix: str, start: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: a multipart upload is aborted even if the process had not read its id yet.

    With `start`, the signal arrives in Thread.start, before the executor knows its thread.
    """
    bucket = Interrupted(BUCKET, server.environment)
    enlarge(run)
    path = run / "epoch-0003-step-00000030" / "rank-0" / "model.safetensors"
    begin = threading.Thread.start

    def started_late(thread: threading.Thread) -> None:
        begin(thread)
        time.sleep(start)

    monkeypatch.setattr(threading.Thread, "start", started_late)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    try:
        with pytest.raises(SystemExit):
            bucket.put_file(f"{prefix}/new", str(path), LARGE)
        with pytest.raises(SystemExit):
            bucket.prove_writable(f"{prefix}/new")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not list(client._list_multipart_uploads(BUCKET, prefix=prefix).uploads)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("epoch-0002-step-00000020/rank-0/training.pt", b"x" * 300, "other content"),
        ("epoch-0002-step-00000020/rank-0/training.pt", b"short", "5 bytes in the bucket, 300 on disk"),
        ("best.txt", b"epoch-0009-step-00000090\n", "best.txt is not the file of this run"),
        ("trackers/id", b"another", "holds another run (trackers/id is 'another')"),
    ],
)
def test_what_others_wrote_is_not_replaced(
    server: S3Server, client: Minio, run: Path, prefix: str, name: str, text: bytes, says: str
) -> None:
    """Contract: before anything is sent, an error of one sentence names the other run's object, which is not
    changed."""
    put(client, f"{prefix}/{name}", text)
    found = transferred(server, "up", run, f"s3://{BUCKET}/{prefix}")
    assert says in found["error"]
    assert f"s3://{BUCKET}/{prefix}" in found["error"]
    assert "use another prefix" in found["error"]
    assert objects(client, prefix) == {name: text}


def test_what_comes_to_be_during_upload_is_not_replaced(
    server: S3Server, client: Minio, run: Path, prefix: str
) -> None:
    """Contract: the server itself rejects the replacement of an object (a conditional write), for small files
    and multipart uploads."""
    bucket = object_store.Bucket(BUCKET, server.environment)
    put(client, f"{prefix}/theirs", b"theirs")
    enlarge(run)
    path = run / "epoch-0003-step-00000030" / "rank-0" / "model.safetensors"
    for size in (10, LARGE):
        with pytest.raises(object_store.Failed) as refused:
            bucket.put_file(f"{prefix}/theirs", str(path), size)
        assert refused.value.status == 412
    assert objects(client, prefix) == {"theirs": b"theirs"}


def test_torn_checkpoints_on_disk_are_named_and_not_sent(
    server: S3Server, client: Minio, run: Path, prefix: str
) -> None:
    """Contract: the complete checkpoints are sent. If the run has no complete checkpoint, this is an error,
    and nothing is sent."""
    (run / "epoch-0002-step-00000020" / "rank-0" / "training.pt").write_bytes(b"torn")
    found = transferred(server, "up", run, f"s3://{BUCKET}/{prefix}")
    assert len(found["checkpoints"]) == 2
    assert found["torn"] == ["epoch-0002-step-00000020: rank-0/training.pt has 4 bytes; expected 300"]
    assert not [name for name in objects(client, prefix) if "step-00000020" in name]
    empty = run.with_name("empty")
    empty.mkdir()
    found = transferred(server, "up", empty, f"s3://{BUCKET}/{prefix}-empty")
    assert "has no intact checkpoint" in found["error"]
    assert not objects(client, f"{prefix}-empty")


@pytest.mark.parametrize("damage", ["other", "short", "gone", "manifest"])
def test_a_torn_object_falls_back_to_the_previous_checkpoint(
    server: S3Server, client: Minio, run: Path, prefix: str, tmp_path: Path, damage: str
) -> None:
    """Contract: a file that does not match its manifest is never written to the volume."""
    url = f"s3://{BUCKET}/{prefix}"
    transferred(server, "up", run, url)
    at = f"{prefix}/epoch-0003-step-00000030/rank-0/training.pt"
    if damage == "gone":
        client.remove_object(BUCKET, at)
    elif damage == "manifest":
        put(client, f"{prefix}/epoch-0003-step-00000030/manifest.json", b'{"version": 1')
    else:
        put(client, at, b"x" * (300 if damage == "other" else 20))
    there = tmp_path / "other" / "train"
    there.parent.mkdir()
    found = transferred(server, "down", there, url)
    assert len(found["torn"]) == 1
    assert "epoch-0003-step-00000030" in found["torn"][0]
    expected = {name: text for name, text in tree(run).items() if "step-00000030" not in name}
    assert tree(there) == expected


def test_a_torn_best_is_no_run(
    server: S3Server, client: Minio, run: Path, prefix: str, tmp_path: Path
) -> None:
    """Contract: without the best checkpoint, the run would differ, so nothing is left on the volume."""
    url = f"s3://{BUCKET}/{prefix}"
    transferred(server, "up", run, url)
    put(client, f"{prefix}/epoch-0001-step-00000010/rank-0/training.pt", b"x" * 300)
    there = tmp_path / "other" / "train"
    there.parent.mkdir()
    found = transferred(server, "down", there, url)
    assert "best.txt names epoch-0001-step-00000010, which is not intact in the bucket" in found["error"]
    assert not list(there.parent.iterdir())


def test_a_run_on_the_volume_is_never_replaced(
    server: S3Server, run: Path, prefix: str, tmp_path: Path
) -> None:
    """Contract: even an empty folder with the run's name is kept."""
    url = f"s3://{BUCKET}/{prefix}"
    transferred(server, "up", run, url)
    before = tree(run)
    assert "already exists" in transferred(server, "down", run, url)["error"]
    assert tree(run) == before
    (tmp_path / "empty").mkdir()
    assert "already exists" in transferred(server, "down", tmp_path / "empty", url)["error"]
    assert not list((tmp_path / "empty").iterdir())


def test_a_manifest_that_leaves_its_folder_is_refused(
    server: S3Server, client: Minio, run: Path, prefix: str, tmp_path: Path
) -> None:
    """Contract: a bucket's content never causes a write outside the run's folder."""
    transferred(server, "up", run, f"s3://{BUCKET}/{prefix}")
    name = "epoch-0003-step-00000030"
    manifest = json.loads((run / name / "manifest.json").read_text())
    manifest["files"]["../../../evil"] = {"size": 1, "sha256": "0"}
    put(client, f"{prefix}/{name}/manifest.json", json.dumps(manifest).encode())
    there = tmp_path / "other" / "train"
    there.parent.mkdir()
    found = transferred(server, "down", there, f"s3://{BUCKET}/{prefix}")
    assert "is not a file in a checkpoint" in found["torn"][0]
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("option", "url", "changed", "says"),
    [
        ("--upload", "s3://nowhere/a", {}, "there is no bucket nowhere at http://"),
        ("--resume-from", "s3://nowhere/a", {}, "there is no bucket nowhere at http://"),
        ("--resume-from", f"s3://{BUCKET}/nothing", {}, "expected a prefix with a complete checkpoint"),
        (
            "--upload",
            f"s3://{BUCKET}/a",
            {"AWS_SECRET_ACCESS_KEY": "another"},
            "rejects these keys with HTTP 403",
        ),
        (
            "--upload",
            f"s3://{BUCKET}/a",
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            "cannot be reached from this machine",
        ),
        (
            "--upload",
            f"s3://{BUCKET}/a",
            {"AWS_ENDPOINT_URL": "minio:9000"},
            "expected the URL of an S3 server",
        ),
        ("--upload", f"s3://{BUCKET}/a", {"AWS_ACCESS_KEY_ID": ""}, "AWS_ACCESS_KEY_ID is not set"),
    ],
)
def test_storage_that_cannot_serve_is_refused_before_a_launch(
    server: S3Server, option: Any, url: str, changed: dict[str, str], says: str
) -> None:
    """Contract: the error is one sentence that explains what to do and contains no key."""
    environment = {**server.environment, **changed}
    with pytest.raises(UsageError) as refused:
        training_transfer.check(option, url, training_transfer.keys_of((), option, environment))
    assert says in refused.value.message
    assert server.secret_key not in f"{refused.value}"
    assert refused.value.hint or "URL" in says


def test_storage_that_serves_is_left_as_it_is(
    server: S3Server, client: Minio, run: Path, prefix: str
) -> None:
    """Contract: the check that the keys have write permission creates no object, and leaves no multipart
    upload open."""
    url = f"s3://{BUCKET}/{prefix}"
    training_transfer.check("--upload", url, server.environment)
    assert not objects(client, prefix)
    assert not list(client._list_multipart_uploads(BUCKET, prefix=prefix).uploads)
    transferred(server, "up", run, url)
    training_transfer.check("--resume-from", url, server.environment)
