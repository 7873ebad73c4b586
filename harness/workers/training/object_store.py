"""Read and write the objects in one S3 bucket with only the standard library.

The job's image might not contain an S3 client, so this module signs requests itself (AWS Signature Version 4,
docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html). It reads the same environment
variables as AWS's own tools (VARIABLES). Writes are conditional (`If-None-Match: *`), unless the caller
allows replacement.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

KEY_ID, SECRET_KEY, SESSION_TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
PLACE = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
VARIABLES = (KEY_ID, SECRET_KEY, SESSION_TOKEN, *PLACE)
TRIES = 4
REQUEST_SECONDS = 60
PIECE = 1 << 20
PART = 16 << 20
"""Minimum part size for multipart uploads in bytes. S3 accepts at most 10,000 parts.

Each request holds one part in memory.
"""
MAX_PARTS, AT_ONCE = 10_000, 4
EMPTY = hashlib.sha256(b"").hexdigest()
_RETRIED = (408, 409, 429)
"""The 4xx status codes after which a request is retried: timeout, write conflict, too many requests."""


class Failed(Exception):
    """Raised if a request fails. The message does not contain credentials."""

    def __init__(self, text: str, status: int = 0, code: str = "") -> None:
        super().__init__(text)
        self.status, self.code = status, code
        """HTTP status and S3 error code, or 0 and "" if there was no response."""


@dataclass(frozen=True)
class Item:
    """An object in a bucket listing. `size` is in bytes."""

    key: str
    etag: str
    size: int


def located(url: str) -> tuple[str, str]:
    """Return the bucket and the prefix in `s3://BUCKET/PREFIX`. A trailing slash is removed.

    Raises ValueError if the URL has a different form.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    parts = prefix.rstrip("/").split("/")
    if scheme != "s3" or not bucket or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"s3://BUCKET/PREFIX is expected; found {url!r}")
    return bucket, "/".join(parts)


class Bucket:
    """One bucket. Requests use the credentials in `environment`, or are anonymous if there are none."""

    def __init__(self, name: str, environment: Mapping[str, str], tries: int = TRIES) -> None:
        self.name, self.environment, self.tries = name, environment, tries
        self.region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
        self.endpoint = (endpoint or f"https://s3.{self.region}.amazonaws.com").rstrip("/")

    # -- reading -----------------------------------------------------------------------------------------
    def items(self, prefix: str, most: int | None = None) -> Iterator[Item]:
        """Yield the objects whose keys begin with `prefix`. `most` is their maximum number, or None."""
        query = {"list-type": "2", "prefix": prefix, **({"max-keys": str(most)} if most else {})}
        while True:
            with self.request("GET", "", query) as response:
                page = ElementTree.fromstring(response.read())  # noqa: S314 - no entities since expat 2.4
            for element in page.iterfind("{*}Contents"):
                text = {part.tag.rpartition("}")[2]: part.text or "" for part in element}
                yield Item(text["Key"], text["ETag"], int(text["Size"]))
            token = page.findtext("{*}NextContinuationToken")
            if not token or most:
                return
            query = {**query, "continuation-token": token}

    def read(self, key: str, limit: int) -> bytes:
        """Return a small object's content. Raises Failed, for example if it has more than `limit` bytes."""
        pieces: list[bytes] = []
        size, _ = self.stream(key, pieces.append, pieces.clear, limit)
        assert size <= limit
        return b"".join(pieces)

    def digest(self, key: str) -> tuple[int, str]:
        """Read an object to the end. Return its size in bytes and its SHA-256 digest."""
        return self.stream(key, lambda _: None, lambda: None)

    def stream(
        self,
        key: str,
        take: Callable[[bytes], object],
        restart: Callable[[], object],
        limit: int | None = None,
    ) -> tuple[int, str]:
        """Pass an object's content to `take` in chunks. Return its size in bytes and SHA-256 digest.

        If the connection breaks, call `restart`, and read the object again from the beginning.
        """
        for tries_left in reversed(range(self.tries)):
            hasher, size = hashlib.sha256(), 0
            restart()
            try:
                with self.request("GET", key) as response:
                    content_length = response.headers.get("Content-Length")
                    if limit is not None and int(content_length or 0) > limit:
                        raise Failed(
                            f"{self.url(key)} has {content_length} bytes; at most {limit} are expected"
                        )
                    while piece := response.read(PIECE):
                        hasher.update(piece)
                        size += len(piece)
                        take(piece)
                if content_length is None or size == int(content_length):
                    return size, hasher.hexdigest()
                failure: object = f"the response ended after {size} of {content_length} bytes"
            except (OSError, http.client.HTTPException) as error:
                failure = error
            if not tries_left:
                raise Failed(f"{self.url(key)} could not be read: {failure}")
            self._pause(tries_left)
        raise AssertionError("the last try returns or raises")

    # -- writing -----------------------------------------------------------------------------------------
    def put(self, key: str, body: bytes, *, replace: bool = False) -> None:
        """Write a small object. If the key exists and `replace` is false, raises Failed with status 412."""
        self.request("PUT", key, body=body, headers=_condition(replace)).close()

    def put_file(self, key: str, path: str, size: int) -> None:
        """Write a file of `size` bytes as a new object, in parts if it is large.

        Raises Failed, with status 412 if the key exists.
        """
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if size <= PART:
                self.put(key, _slice(descriptor, 0, size, path))
            else:
                self._put_parts(key, descriptor, path, size)
        finally:
            os.close(descriptor)

    def _put_parts(self, key: str, descriptor: int, path: str, size: int) -> None:
        each = max(PART, -(-size // MAX_PARTS))

        def send(upload: str, number: int) -> str:
            first = (number - 1) * each
            body = _slice(descriptor, first, min(each, size - first), path)
            query = {"partNumber": str(number), "uploadId": upload}
            with self.request("PUT", key, query, body=body) as response:
                return str(response.headers["ETag"])

        def finish(pool: ThreadPoolExecutor, upload: str) -> None:
            etags = pool.map(partial(send, upload), range(1, -(-size // each) + 1))
            self._complete(key, upload, list(etags))

        self._upload(key, finish)

    def _upload(self, key: str, finish: Callable[[ThreadPoolExecutor, str], None]) -> None:
        """Begin a multipart upload, call `finish` with its id, and abort it if there is an exception.

        The first request runs in a separate thread. Otherwise, the new upload's id would be lost if a signal
        handler raised an exception in the main thread at the wrong moment. Such an exception can occur even
        before the body of a `with` statement begins, or before `submit` returns. Therefore, this method is
        not a context manager, and creates the future itself.
        """
        pool, future = ThreadPoolExecutor(AT_ONCE), Future[str]()
        try:
            pool.submit(self._begin, key, future)
            finish(pool, future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            if not future.cancel() and not future.exception():
                self._abort(key, future.result())
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _begin(self, key: str, future: Future[str]) -> None:
        """Begin a multipart upload unless `future` is cancelled, and set its result to the upload id."""
        if not future.set_running_or_notify_cancel():
            return
        try:
            with self.request("POST", key, {"uploads": ""}, body=b"") as response:
                page = ElementTree.fromstring(response.read())  # noqa: S314
            future.set_result(f"{page.findtext('{*}UploadId')}")
        except BaseException as error:
            future.set_exception(error)

    def _complete(self, key: str, upload: str, etags: list[str]) -> None:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        query = {"uploadId": upload}
        with self.request("POST", key, query, body=body, headers=_condition(replace=False)) as response:
            text = response.read()
        if code := _code(text):  # S3 may respond with status 200 to a request that fails later.
            raise Failed(f"{self.url(key)} could not be assembled from its parts: {code}", 200, code)

    def _abort(self, key: str, upload: str) -> None:
        with suppress(Failed):
            self.request("DELETE", key, {"uploadId": upload}).close()

    def prove_writable(self, key: str) -> None:
        """Verify that an object can be written at `key`, without creating one. Raises Failed otherwise.

        This starts a multipart upload and aborts it.
        """
        self._upload(key, lambda _, upload: self._abort(key, upload))

    # -- requests ----------------------------------------------------------------------------------------
    def url(self, key: str) -> str:
        """Return the URL of an object, for messages."""
        return f"s3://{self.name}/{key}"

    def request(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send a request, and return the open response. Retry temporary failures. Raises Failed."""
        path = quote(f"/{self.name}/{key}" if key else f"/{self.name}", safe="/-_.~")
        parameters = query or {}
        query_string = "&".join(
            f"{quote(name, safe='')}={quote(parameters[name], safe='')}" for name in sorted(parameters)
        )
        url = f"{self.endpoint}{path}" + (f"?{query_string}" if query_string else "")
        for tries_left in reversed(range(self.tries)):
            try:
                # urlsplit raises ValueError for an endpoint that is not a URL.
                signed = self._signed(method, urlsplit(url).path, query_string, body or b"")
                kind = {} if body is None else {"content-type": "application/octet-stream"}
                request = urllib.request.Request(  # noqa: S310
                    url, data=body, headers={**signed, **kind, **(headers or {})}, method=method
                )
                return _OPENER.open(request, timeout=REQUEST_SECONDS)
            except urllib.error.HTTPError as error:
                if 300 <= error.code < 400:
                    raise Failed(_redirected(f"{method} {url}", error), error.code) from None
                code = ""
                with suppress(OSError, http.client.HTTPException):
                    code = _code(error.read())
                is_temporary = error.code >= 500 or error.code in _RETRIED or code == "RequestTimeout"
                if not tries_left or not is_temporary:
                    raise Failed(f"{method} {url}: HTTP {error.code} {code}", error.code, code) from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                if not tries_left or isinstance(error, ValueError):
                    raise Failed(f"{method} {url}: {error}") from None
            self._pause(tries_left)
        raise AssertionError("the last try returns or raises")

    def _pause(self, tries_left: int) -> None:
        time.sleep(2.0 ** (self.tries - tries_left - 1))

    def _signed(self, method: str, path: str, query: str, body: bytes) -> dict[str, str]:
        key, secret = self.environment.get(KEY_ID), self.environment.get(SECRET_KEY)
        if not key or not secret:
            return {}  # Without keys, the request is anonymous, so it works only for a public bucket.
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        token = self.environment.get(SESSION_TOKEN)
        content = hashlib.sha256(body).hexdigest() if body else EMPTY
        headers = {
            "host": urlsplit(self.endpoint).netloc,
            "x-amz-content-sha256": content,
            "x-amz-date": now,
            **({"x-amz-security-token": token} if token else {}),
        }
        names = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        canonical = f"{method}\n{path}\n{query}\n{lines}\n{names}\n{content}"
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"
        signing = f"AWS4{secret}".encode()
        for part in scope.split("/"):
            signing = hmac.new(signing, part.encode(), hashlib.sha256).digest()
        signature = hmac.new(signing, text.encode(), hashlib.sha256).hexdigest()
        credential = f"AWS4-HMAC-SHA256 Credential={key}/{scope},SignedHeaders={names},Signature={signature}"
        return {**headers, "authorization": credential}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Reports a redirect as an error. urllib would follow it, and send the credentials to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def _redirected(request: str, error: urllib.error.HTTPError) -> str:
    """Return the message for a redirect. A signature is valid for one server only."""
    parts = urlsplit(error.headers.get("Location") or "")
    server = parts.netloc.rpartition("@")[2]
    target = f"{parts.scheme}://{server}" if server else "another server"
    region = error.headers.get("x-amz-bucket-region")
    advice = f"set AWS_REGION={region}" if region else "set AWS_ENDPOINT_URL or AWS_REGION for the bucket"
    return f"{request}: the server redirects to {target}, which the harness does not follow: {advice}"


def _condition(replace: bool) -> dict[str, str]:
    return {} if replace else {"if-none-match": "*"}


def _slice(descriptor: int, first: int, size: int, path: str) -> bytes:
    """Return `size` bytes of a file, starting at offset `first`. Raises Failed if the file was truncated."""
    pieces, remaining = [], size
    while remaining:
        piece = os.pread(descriptor, remaining, first + size - remaining)
        if not piece:
            raise Failed(f"{path} was truncated while it was read")
        pieces.append(piece)
        remaining -= len(piece)
    return b"".join(pieces)


def _code(body: bytes) -> str:
    """Return the S3 error code in a response body, or "" if the body is not an error."""
    try:
        root = ElementTree.fromstring(body)  # noqa: S314
    except ElementTree.ParseError:
        return ""
    if root.tag.rpartition("}")[2] != "Error":
        return ""
    return f"{root.findtext('{*}Code') or root.findtext('Code') or ''}"
