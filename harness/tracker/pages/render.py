"""Render pages. The templates escape all values, and the headers allow only the tracker's own script."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import Response

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATIC = {
    "axes.js": "text/javascript; charset=utf-8",
    "pages.css": "text/css; charset=utf-8",
    "pages.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("harness.tracker.pages", "files"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"figure": figure, "moment": moment, "size": size}
    return environment


def page(template: str, code: int = 200, /, **variables: Any) -> Response:
    """Return an HTML page, rendered from a template.

    A lone surrogate that an older tracker stored is shown as an escape sequence.
    """
    text = _environment().get_template(f"{template}.html.j2").render(**variables)
    body = text.encode(errors="backslashreplace")
    return Response(body, code, HEADERS, "text/html; charset=utf-8")


def static(name: str) -> Response:
    """Return the file `name`, which is the script, the style sheet or the icon."""
    body = (resources.files("harness.tracker.pages") / "files" / name).read_bytes()
    return Response(body, 200, {**HEADERS, "Cache-Control": "no-cache"}, STATIC[name])


def figure(value: object) -> str:
    """Return a float with five significant digits, and any other value as text."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def moment(text: str | None) -> str:
    """Return an RFC 3339 time formatted like `2026-01-31 12:00:00`, or "" for None."""
    return "" if not text else text[:19].replace("T", " ")


def size(count: int) -> str:
    for unit, bytes_ in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}"
    return f"{count} B"
