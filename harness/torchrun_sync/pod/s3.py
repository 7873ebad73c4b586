"""Bring a workspace from S3: every object under a prefix, or one archive, unpacked.

The image of a job has Python and no S3 client, so requests are signed here (AWS Signature Version 4, as
docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html says). The environment is that of
AWS's own tools: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from harness.torchrun_sync.pod.files import write_text

TRIES = 4
REQUEST_SECONDS = 60
EMPTY = hashlib.sha256(b"").hexdigest()
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


class Failed(Exception):
    """The workspace cannot be brought. The text says what was expected and seen, and never a key."""


@dataclass(frozen=True)
class Item:
    """An object of a bucket, as it was listed. `size` in bytes."""

    key: str
    etag: str
    size: int


class Bucket:
    """One bucket, read with the keys of the environment, or without any."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self.name, self.environment = name, environment
        self.region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
        given = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
        self.endpoint = (given or f"https://s3.{self.region}.amazonaws.com").rstrip("/")

    def items(self, prefix: str) -> Iterator[Item]:
        """Yield the objects whose keys begin with `prefix`."""
        query = {"list-type": "2", "prefix": prefix}
        while True:
            with self._get("", query) as answer:
                page = ElementTree.fromstring(answer.read())  # noqa: S314 - no entities since expat 2.4
            for found in page.iterfind("{*}Contents"):
                text = {part.tag.rpartition("}")[2]: part.text or "" for part in found}
                yield Item(text["Key"], text["ETag"], int(text["Size"]))
            token = page.findtext("{*}NextContinuationToken")
            if not token:
                return
            query = {**query, "continuation-token": token}

    def save(self, item: Item, path: str) -> None:
        """Write an object to `path` in one step: the version that was listed, whole, or raise Failed."""
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), delete=False) as made:
            seen = hashlib.md5(usedforsecurity=False)
            try:
                with self._get(item.key, {}, {"If-Match": item.etag}) as answer:
                    while piece := answer.read(1 << 20):
                        seen.update(piece)
                        made.write(piece)
                    # The ETag of an object that KMS encrypts, or that came in parts, is no MD5.
                    plain = not (answer.headers.get("x-amz-server-side-encryption") or "").startswith("aws:")
                made.flush()
                digest = item.etag.strip('"')
                if made.tell() != item.size or (plain and len(digest) == 32 and seen.hexdigest() != digest):
                    raise Failed(f"{item.key}: expected {item.size} bytes with MD5 {digest}, seen "
                                 f"{made.tell()} with {seen.hexdigest()}: try again")  # fmt: skip
                os.chmod(made.name, 0o644)
                os.replace(made.name, path)
            except BaseException:
                os.unlink(made.name)
                raise

    def _get(self, key: str, query: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Any:
        path = quote(f"/{self.name}/{key}" if key else f"/{self.name}", safe="/-_.~")
        asked = "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))
        url = f"{self.endpoint}{path}" + (f"?{asked}" if asked else "")
        for left in reversed(range(TRIES)):
            signed = self._signed(urlsplit(url).path, asked)
            request = urllib.request.Request(url, headers={**signed, **(headers or {})})  # noqa: S310
            try:
                return urllib.request.urlopen(request, timeout=REQUEST_SECONDS)  # noqa: S310
            except urllib.error.HTTPError as error:
                if not left or error.code < 500:
                    raise Failed(f"GET {url}: HTTP {error.code} {_code(error.read())}") from None
            except OSError as error:
                if not left:
                    raise Failed(f"GET {url}: {error}") from None
            time.sleep(2.0 ** (TRIES - left - 1))
        raise AssertionError("the last try returns or raises")

    def _signed(self, path: str, query: str) -> dict[str, str]:
        key = self.environment.get("AWS_ACCESS_KEY_ID")
        secret = self.environment.get("AWS_SECRET_ACCESS_KEY")
        if not key or not secret:
            return {}  # a public bucket
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        token = self.environment.get("AWS_SESSION_TOKEN")
        headers = {
            "host": urlsplit(self.endpoint).netloc,
            "x-amz-content-sha256": EMPTY,
            "x-amz-date": now,
            **({"x-amz-security-token": token} if token else {}),
        }
        names = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        canonical = f"GET\n{path}\n{query}\n{lines}\n{names}\n{EMPTY}"
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"
        signing = f"AWS4{secret}".encode()
        for part in scope.split("/"):
            signing = hmac.new(signing, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(signing, text.encode(), hashlib.sha256).hexdigest()
        credential = f"AWS4-HMAC-SHA256 Credential={key}/{scope},SignedHeaders={names},Signature={signature}"
        return {**headers, "authorization": credential}


def _code(body: bytes) -> str:
    try:
        found = ElementTree.fromstring(body)  # noqa: S314
    except ElementTree.ParseError:
        return ""
    return f"{found.findtext('{*}Code') or found.findtext('Code') or ''}"


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
        bucket.save(item, path)
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
