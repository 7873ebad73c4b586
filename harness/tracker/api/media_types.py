"""Choose the response headers for uploaded files, so that browsers never execute the files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import quote

INLINE = frozenset(
    {
        *("image/png", "image/jpeg", "image/gif", "image/webp"),
        *("text/plain", "application/json"),
        *("audio/mpeg", "audio/wav", "audio/x-wav", "audio/ogg", "audio/flac", "audio/mp4", "audio/webm"),
        *("video/mp4", "video/webm", "video/ogg"),
    }
)
"""Content types that browsers display without executing scripts. Files of other types are downloaded. The
list contains only complete types and no patterns, because a browser parses any type that ends in +xml as XML,
which can contain scripts."""
UNKNOWN = "application/octet-stream"
POLICY = "default-src 'none'; img-src 'self'; media-src 'self'; sandbox; frame-ancestors 'none'"


def media_type(header: str | None) -> str:
    """Return the content type in a header if INLINE contains this type, and otherwise UNKNOWN.

    Parameters such as `charset` are dropped. For a header with several types, such as "text/plain,
    text/html", return UNKNOWN.
    """
    essence = (header or "").partition(";")[0].strip(" \t").lower()
    return essence if essence in INLINE else UNKNOWN


def headers(kind: str, file_name: str) -> Mapping[str, str]:
    """Return the response headers for an uploaded file.

    `kind` is the content type that `media_type` returned.
    """
    disposition: Literal["inline", "attachment"] = "attachment" if kind == UNKNOWN else "inline"
    last = "".join(one for one in file_name.replace("\\", "/").rpartition("/")[2] if one.isprintable())
    last = last if last.strip(".") else "file"
    return {
        "Content-Type": f"{kind}; charset=utf-8" if kind == "text/plain" else kind,
        "Content-Disposition": f"{disposition}; filename*=utf-8''{quote(last, safe='')}",
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "private",
    }
