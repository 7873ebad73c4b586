"""Bring a workspace from S3: every object under a prefix, or one archive, unpacked."""

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
    """Write an object to `path` in one step: the version that was listed, whole, or raise Failed."""
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), delete=False) as made:
        seen = hashlib.md5(usedforsecurity=False)
        try:
            with bucket.request("GET", item.key, headers={"If-Match": item.etag}) as answer:
                while piece := answer.read(1 << 20):
                    seen.update(piece)
                    made.write(piece)
                # The ETag of an object that KMS encrypts, or that came in parts, is no MD5.
                plain = not (answer.headers.get("x-amz-server-side-encryption") or "").startswith("aws:")
            made.flush()
            digest = item.etag.strip('"')
            if made.tell() != item.size or (plain and len(digest) == 32 and seen.hexdigest() != digest):
                raise Failed(
                    f"{item.key}: expected {item.size} bytes with MD5 {digest}, seen {made.tell()} with "
                    f"{seen.hexdigest()}: try again"
                )
            os.chmod(made.name, 0o644)
            os.replace(made.name, path)
        except BaseException:
            os.unlink(made.name)
            raise


def fetch(url: str, root: str, environment: Mapping[str, str]) -> str:
    """Bring what `s3://bucket/prefix` holds to the folder `root`. Return a digest of what was listed."""
    bucket_name, _, prefix = url[len("s3://") :].partition("/")
    bucket = Bucket(bucket_name, environment)
    found = sorted(bucket.items(prefix), key=lambda item: item.key)
    one = [item for item in found if item.key == prefix and not prefix.endswith("/")]
    if not one:  # a folder, whether or not its slash was written: `code` is not `code-old`
        prefix = prefix and f"{prefix.rstrip('/')}/"
        found = [item for item in found if item.key.startswith(prefix)]
    if not found:
        raise Failed(f"{url}: expected objects there, seen none")
    for item in one or found:
        name = item.key.rpartition("/")[2] if one else item.key[len(prefix) :]
        path = _inside(root, name)
        if path.endswith("/"):
            os.makedirs(path, exist_ok=True)  # the mark of a folder
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        save(bucket, item, path)
        if one and name.endswith(ARCHIVES):
            shutil.unpack_archive(path, root)
            os.unlink(path)
    rows = "".join(f"{item.key}\t{item.etag}\t{item.size}\n" for item in one or found)
    return hashlib.sha256(rows.encode()).hexdigest()


def _inside(root: str, name: str) -> str:
    """Return the path of an object; a folder's mark ends with a slash. Raises Failed."""
    parts = name.split("/")
    folder = [part for part in parts[:-1] if part] if not parts[-1] else parts
    if any(part in ("", ".", "..") for part in folder) or ".torchrun" in folder[:1]:
        raise Failed(f"{name!r}: expected a path inside the workspace")
    return os.path.join(root, *folder, "") if not parts[-1] else os.path.join(root, *parts)


def main(arguments: Sequence[str]) -> int:
    """URL, folder, file that says it is ready, seconds that all of it may take."""
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
