"""Download a workspace from S3: all objects under a prefix, or one archive, which is unpacked."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import islice

from harness.torchrun_sync.pod.files import write_text
from harness.torchrun_sync.pod.unpack import ARCHIVES, MAX_FILES, STORE, Workspace, unpack
from harness.workers.training.object_store import Bucket, Failed, Item


def save(bucket: Bucket, item: Item, path: str) -> None:
    """Download the listed version of an object and write it to `path` atomically. Raises Failed."""
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), delete=False) as temporary:
        md5 = hashlib.md5(usedforsecurity=False)
        try:
            with bucket.request("GET", item.key, headers={"If-Match": item.etag}) as response:
                while piece := response.read(1 << 20):
                    md5.update(piece)
                    temporary.write(piece)
                # The ETag is not an MD5 if the object is encrypted with KMS or was uploaded in parts.
                plain = not (response.headers.get("x-amz-server-side-encryption") or "").startswith("aws:")
            temporary.flush()
            digest = item.etag.strip('"')
            if temporary.tell() != item.size or (plain and len(digest) == 32 and md5.hexdigest() != digest):
                raise Failed(
                    f"{item.key}: expected {item.size} bytes with MD5 {digest}, found {temporary.tell()} "
                    f"bytes with MD5 {md5.hexdigest()}; try again"
                )
            os.chmod(temporary.name, 0o644)
            os.replace(temporary.name, path)
        except BaseException:
            os.unlink(temporary.name)
            raise


def fetch(url: str, root: str, environment: Mapping[str, str]) -> str:
    """Download the objects under `s3://bucket/prefix` to the folder `root`.

    Return a digest of their listing. Raises Failed if the download fails. If the listing exceeds a
    workspace's limits, nothing is downloaded.
    """
    bucket_name, _, prefix = url[len("s3://") :].partition("/")
    bucket = Bucket(bucket_name, environment)
    items = sorted(islice(bucket.items(prefix), MAX_FILES + 1), key=lambda item: item.key)
    one = [item for item in items if item.key == prefix and not prefix.endswith("/")]
    if not one:  # The prefix is treated as a folder, so that `code` does not match `code-old`.
        prefix = prefix and f"{prefix.rstrip('/')}/"
        items = [item for item in items if item.key.startswith(prefix)]
    if not items:
        raise Failed(f"{url}: expected objects, found none")
    workspace = Workspace(root)
    workspace.counted(sum(item.size for item in one or items), len(one or items))
    if one and prefix.endswith(ARCHIVES):
        _unpacked(bucket, one[0], root)
    else:
        for item in one or items:
            name = item.key.rpartition("/")[2] if one else item.key[len(prefix) :]
            path = _inside(workspace, name)
            if path:
                save(bucket, item, path)
    rows = "".join(f"{item.key}\t{item.etag}\t{item.size}\n" for item in one or items)
    return hashlib.sha256(rows.encode()).hexdigest()


def _unpacked(bucket: Bucket, item: Item, root: str) -> None:
    """Download an archive to a temporary folder, and unpack it into the workspace."""
    with tempfile.TemporaryDirectory(dir=os.path.join(root, STORE)) as folder:
        path = os.path.join(folder, item.key.rpartition("/")[2])
        save(bucket, item, path)
        unpack(path, Workspace(root))


def _inside(workspace: Workspace, name: str) -> str:
    """Return the path for an object in the workspace.

    If the object's key denotes a folder, create the folder and return "". Raises Failed if the path would be
    outside the workspace or in the store's folder.
    """
    if not name:
        return ""
    parts = name.rstrip("/").split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise Failed(f"{name!r}: expected a path inside the workspace")
    if name.endswith("/"):
        workspace.make_folder(name)
        return ""
    return workspace.place(name)


def main(arguments: Sequence[str]) -> int:
    """Download the workspace and print the digest of its listing. Return the exit code.

    The arguments are URL ROOT READY SECONDS. The marker file READY contains the digest. If the file exists,
    nothing is downloaded.
    """
    url, root, ready, seconds = arguments

    def on_timeout(_number: int, _frame: object) -> None:
        raise Failed(f"{url} was not downloaded within {seconds} s")

    signal.signal(signal.SIGALRM, on_timeout)
    signal.alarm(int(seconds))
    marker = os.path.join(root, ready)
    try:
        os.makedirs(os.path.dirname(marker), exist_ok=True)
        if not os.path.exists(marker):
            write_text(marker, fetch(url, root, os.environ))
        with open(marker, encoding="utf-8") as file:
            print(file.read().strip(), flush=True)
    except (Failed, OSError, ValueError) as error:
        print(f"workspace: {error}", file=sys.stderr)
        return 1
    return 0
