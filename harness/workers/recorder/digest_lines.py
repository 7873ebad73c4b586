"""Encode and decode the log lines of a recorder in an admitted pod.

The recorder writes one line of at most 100 bytes per minute, and a summary at the end:

    @rec1 <rank> <attempt> <n> <points> <time> <digest> <chain> <MAC>
    @sum1 <rank> <attempt> <n> <part>/<parts> <base64 of zlib of compact JSON, one part> <MAC>

    @rec2 <rank> <attempt> <n> <points> <time> <digest> <reports> <head> <chain> <MAC>

A @rec2 line replaces the @rec1 line once the tracker has acknowledged reports (digest_reports.py). It also
contains the number of acknowledged reports, in base 36, and their head. Digests and MAC are shorter in a
@rec2 line, so it is not longer than a @rec1 line.

The rank is "-" if it is not known. In a @rec1 line, <n>, <points> and <time> (milliseconds since the epoch)
are in base 36, and <n> is the number of the line, starting at 0. The digest covers all points so far
(point_digests.py). The chain is a digest of this line and the previous line's chain. In a @sum1 line, <n> is
the number of the summary. A process can write several summaries, because a program can log again after
`run.finish()`; only the last summary is used. The MAC is computed as for frames (truth_frames.py), with the
owner's uid as the nonce. The nonce distinguishes jobs and is not secret.

The summary's JSON contains "start" and "end" (ms), "lines" (number of @rec1 and @rec2 lines), "chain" (from
the last of them), "sent" (digest_reports.Reports.state, or null), "restart" (torchrun's restart count, or
null), "world", "group" ({"backend", "store", "rank", "size"} of torch.distributed, or null), "host", "pid",
"parent", the account of the values that were passed to the client ("handed", "logged", "left", "past",
"unseen", "omitted"), "fault", and "runs". Each run is {"run", "uploads", "merged": [[name in the run, names],
...], "uncounted", "metrics", "groups"}. A metric is [name, points, first step, last step, first time, last
time, level, digest, nodes], see `nodes_text`. Metrics that do not fit into the summary are combined into
groups by a hash of their names (`group_of`): [group, metrics, points, digest]. A digest is "" if it is
unknown. This module uses only the standard library, and supports Python 3.9 and later.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

LINE_MARK = "@rec1 "
REPORTED_MARK = "@rec2 "
SUMMARY_MARK = "@sum1 "
MAX_LINE = 100
"""Maximum length of a @rec1 or @rec2 line in bytes, including the newline."""
MAX_SUMMARY = 100_000
"""Maximum size of a summary in bytes."""
MAX_JSON = 70_000
"""Maximum size of a summary's JSON in bytes. Base64 makes JSON that cannot be compressed a third larger."""
PART = 3600
GROUPS = 64
DIGEST_BYTES, NODE_BYTES = 16, 6
LINE_BYTES, HEAD_BYTES = 12, 9
"""Lengths in bytes of the digest in a @rec1 line and in a @rec2 line."""
_REPORTED_MAC_BYTES = 6
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_LINE = re.compile(
    LINE_MARK + r"(-|\d{1,6}) ([0-9a-z]{8}) ([0-9a-z]{1,4}) ([0-9a-z]{1,8}) ([0-9a-z]{1,9}) "
    r"([\w-]{16}) ([\w-]{16}) ([\w-]{16})(?![\w-])",
    re.ASCII,
)
_REPORTED = re.compile(
    REPORTED_MARK + r"(-|\d{1,6}) ([0-9a-z]{8}) ([0-9a-z]{1,4}) ([0-9a-z]{1,8}) ([0-9a-z]{1,9}) "
    r"([\w-]{12}) ([0-9a-z]{1,4}) ([\w-]{12}) ([\w-]{12}) ([\w-]{8})(?![\w-])",
    re.ASCII,
)
_PART = re.compile(
    SUMMARY_MARK
    + r"(-|\d{1,6}) ([0-9a-z]{8}) (\d{1,6}) (\d{1,3})/(\d{1,3}) ([A-Za-z0-9+/=]+) ([\w-]{16})(?![\w-])",
    re.ASCII,
)


class Line(NamedTuple):
    """A line that is written once a minute. `rank` is None if it is unknown."""

    rank: int | None
    attempt: str
    number: int
    points: int
    time_ms: int
    digest: str
    chain: str
    reports: int = 0
    """Number of reports that the tracker has acknowledged. If it is greater than 0, this is a @rec2 line."""
    head: str = ""


class Part(NamedTuple):
    """A part of a summary. Each part is written as one line."""

    rank: int | None
    attempt: str
    number: int
    part: int
    parts: int
    body: str


def text36(number: int) -> str:
    """Return the number as text in base 36."""
    text = ""
    while number or not text:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text


def short(digest: int, size: int = DIGEST_BYTES) -> str:
    """Return the first `size` bytes of a 128-bit digest in URL-safe base64."""
    return _base64(digest.to_bytes(DIGEST_BYTES, "big")[:size])


def digest_from(text: str) -> int:
    """Return the digest that `short` encoded, or 0 for "". Raises ValueError if the text is invalid."""
    return int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), "big")


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _mac(nonce: str, text: str, size: int = 12) -> str:
    return _base64(hmac.digest(nonce.encode(), text.encode(), "sha256")[:size])


def _fields(line: Line) -> str:
    rank = "-" if line.rank is None else str(line.rank)
    numbers = " ".join(map(text36, (line.number, line.points, line.time_ms)))
    reports = f" {text36(line.reports)} {line.head}" if line.reports else ""
    return f"{rank} {line.attempt} {numbers} {line.digest}{reports}"


def chained(before: str, line: Line) -> str:
    """Return the line's chain. `before` is the previous line's chain, or "" for the first line."""
    return _base64(hashlib.sha256(f"{before} {_fields(line)}".encode()).digest()[: line_bytes(line)])


def line_bytes(line: Line) -> int:
    """Return the length in bytes that both the digest and the chain have in this line."""
    return HEAD_BYTES if line.reports else LINE_BYTES


def encode_line(nonce: str, line: Line) -> str:
    """Return the encoded line without a newline. Raises ValueError if it would exceed MAX_LINE bytes."""
    text = f"{_fields(line)} {line.chain}"
    mark, size = (REPORTED_MARK, _REPORTED_MAC_BYTES) if line.reports else (LINE_MARK, 12)
    encoded = f"{mark}{text} {_mac(nonce, text, size)}"
    if len(encoded) + 1 > MAX_LINE:
        raise ValueError(f"the line has {len(encoded)} bytes; the maximum is {MAX_LINE - 1}")
    return encoded


def encode_summary(
    nonce: str, rank: int | None, attempt: str, number: int, summary: dict[str, Any]
) -> list[str]:
    """Return the lines of a summary, without their newlines."""
    packed = zlib.compress(json.dumps(summary, separators=(",", ":")).encode(), 6)
    body = base64.b64encode(packed).decode()
    parts = [body[at : at + PART] for at in range(0, len(body), PART)]
    lines = []
    for at, part in enumerate(parts, 1):
        name = "-" if rank is None else rank
        text = f"{name} {attempt} {number} {at}/{len(parts)} {part}"
        lines.append(f"{SUMMARY_MARK}{text} {_mac(nonce, text)}")
    return lines


def decode(nonce: str, lines: Iterable[str]) -> Iterator[Line | Part | None]:
    """Yield each line or summary part in the log, or None if its MAC does not match the nonce.

    Other text may precede a line or part, because several processes share one pipe.
    """
    for text in lines:
        if LINE_MARK in text:
            for match in _LINE.finditer(text):
                fields, _, mac = match[0][len(LINE_MARK) :].rpartition(" ")
                if not hmac.compare_digest(mac, _mac(nonce, fields)):
                    yield None
                    continue
                number, points, time_ms = (int(match[at], 36) for at in (3, 4, 5))
                yield Line(_rank(match[1]), match[2], number, points, time_ms, match[6], match[7])
        if REPORTED_MARK in text:
            for match in _REPORTED.finditer(text):
                fields, _, mac = match[0][len(REPORTED_MARK) :].rpartition(" ")
                if not hmac.compare_digest(mac, _mac(nonce, fields, _REPORTED_MAC_BYTES)):
                    yield None
                    continue
                number, points, time_ms, reports = (int(match[at], 36) for at in (3, 4, 5, 7))
                fields_read = _rank(match[1]), match[2], number, points, time_ms, match[6], match[9]
                yield Line(*fields_read, reports, match[8])
        if SUMMARY_MARK in text:
            for match in _PART.finditer(text):
                fields, _, mac = match[0][len(SUMMARY_MARK) :].rpartition(" ")
                if not hmac.compare_digest(mac, _mac(nonce, fields)):
                    yield None
                    continue
                number, part, parts = (int(match[at]) for at in (3, 4, 5))
                yield Part(_rank(match[1]), match[2], number, part, parts, match[6])


def _rank(text: str) -> int | None:
    return None if text == "-" else int(text)


def decode_summary(bodies: Iterable[str]) -> dict[str, Any]:
    """Return the summary decoded from the bodies of all its parts. Raises ValueError if they are invalid."""
    try:
        data = base64.b64decode("".join(bodies), validate=True)
        summary = json.loads(zlib.decompressobj().decompress(data, 10 * MAX_JSON))
    except (zlib.error, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not isinstance(summary, dict):
        raise ValueError("the summary is not a JSON object")
    return summary


def group_of(metric: str) -> int:
    """Return the number of the group that contains a metric if the metric does not fit into the summary."""
    return hashlib.sha256(metric.encode(errors="surrogatepass")).digest()[0] % GROUPS


def nodes_text(nodes: dict[int, int], unknown: Iterable[int]) -> str:
    """Return node digests as "<first node>:<8 characters per node>;…". An unknown digest is "--------"."""
    unknown_nodes, parts = set(unknown), list[str]()
    before = None
    for node in sorted({*nodes, *unknown_nodes}):
        if before is None or node != before + 1:
            parts.append(f";{node}:" if parts else f"{node}:")
        parts.append("--------" if node in unknown_nodes else short(nodes[node], NODE_BYTES))
        before = node
    return "".join(parts)


def nodes_from(text: str) -> dict[int, str]:
    """Return each node's encoded digest, or "" if it is unknown. Raises ValueError if the text is invalid."""
    nodes: dict[int, str] = {}
    for run in text.split(";") if text else ():
        first, _, digests = run.partition(":")
        for at in range(0, len(digests), 8):
            digest = digests[at : at + 8]
            nodes[int(first) + at // 8] = "" if digest == "--------" else digest
    return nodes
