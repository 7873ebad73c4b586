"""Download a workspace from S3: all objects under a prefix, or one archive, which it unpacks."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence

from harness.torchrun_sync.pod.files import write_text
from harness.workers.training.object_store import Bucket, Failed, Item

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


def save(bucket: Bucket, item: Item, path: str) -> None:
    """Download the listed version of an object and write it to `path` atomically. Raises Failed."""
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), delete=False) as temporary:
        md5 = hashlib.md5(usedforsecurity=False)
        try:
            with bucket.request("GET", item.key, headers={"If-Match": item.etag}) as answer:
                while piece := answer.read(1 << 20):
                    md5.update(piece)
                    temporary.write(piece)
                # The ETag is not an MD5 if KMS encrypts the object or if the object was uploaded in parts.
                plain = not (answer.headers.get("x-amz-server-side-encryption") or "").startswith("aws:")
            temporary.flush()
            digest = item.etag.strip('"')
            if temporary.tell() != item.size or (plain and len(digest) == 32 and md5.hexdigest() != digest):
                raise Failed(
                    f"{item.key}: expected {item.size} bytes with MD5 {digest}, seen {temporary.tell()} with "
                    f"{md5.hexdigest()}: try again"
                )
            os.chmod(temporary.name, 0o644)
            os.replace(temporary.name, path)
        except BaseException:
            os.unlink(temporary.name)
            raise


def fetch(url: str, root: str, environment: Mapping[str, str]) -> str:
    """Download the objects of `s3://bucket/prefix` to the folder `root`. Return a digest of their listing."""
    bucket_name, _, prefix = url[len("s3://") :].partition("/")
    bucket = Bucket(bucket_name, environment)
    items = sorted(bucket.items(prefix), key=lambda item: item.key)
    one = [item for item in items if item.key == prefix and not prefix.endswith("/")]
    if not one:  # The prefix is a folder, so `code` must not match `code-old`.
        prefix = prefix and f"{prefix.rstrip('/')}/"
        items = [item for item in items if item.key.startswith(prefix)]
    if not items:
        raise Failed(f"{url}: expected objects there, seen none")
    for item in one or items:
        name = item.key.rpartition("/")[2] if one else item.key[len(prefix) :]
        path = _inside(root, name)
        if path.endswith("/"):
            os.makedirs(path, exist_ok=True)  # An object whose key ends with a slash stands for a folder.
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        save(bucket, item, path)
        if one and name.endswith(ARCHIVES):
            shutil.unpack_archive(path, root)
            os.unlink(path)
    rows = "".join(f"{item.key}\t{item.etag}\t{item.size}\n" for item in one or items)
    return hashlib.sha256(rows.encode()).hexdigest()


def _inside(root: str, name: str) -> str:
    """Return the path of an object in `root`, with a trailing slash for a folder.

    Raises Failed if the path would be outside of `root` or in the store's folder.
    """
    parts = name.split("/")
    folder = [part for part in parts[:-1] if part] if not parts[-1] else parts
    if any(part in ("", ".", "..") for part in folder) or ".torchrun" in folder[:1]:
        raise Failed(f"{name!r}: expected a path inside the workspace")
    return os.path.join(root, *folder, "") if not parts[-1] else os.path.join(root, *parts)


def main(arguments: Sequence[str]) -> int:
    """Download the workspace and print the digest of its listing. Return the exit code.

    The arguments are URL ROOT READY SECONDS. The marker file READY contains the digest. If the file exists,
    nothing is downloaded.
    """
    url, root, ready, seconds = arguments

    def late(_number: int, _frame: object) -> None:
        raise Failed(f"{url} was not there after {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(int(seconds))
    marker = os.path.join(root, ready)
    try:
        os.makedirs(os.path.dirname(marker), exist_ok=True)
        if not os.path.exists(marker):
            write_text(marker, fetch(url, root, os.environ))
        with open(marker, encoding="utf-8") as file:
            print(file.read().strip(), flush=True)
    except (Failed, OSError, shutil.ReadError, ValueError) as error:
        print(f"workspace: {error}", file=sys.stderr)
        return 1
    return 0
