"""Replace secrets by *** before evidence is written.

A known secret is replaced in plain form, URL-quoted, JSON-escaped (also twice) and in base64, at each of the
three offsets that it can have in a longer base64 text. Unknown secrets of common forms are replaced too:
bearer tokens, Pluto keys, `..._API_KEY=value`, and passwords in URLs.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "***"
MIN_LENGTH = 4
_MIN_SHIFTED = 8
"""The minimum length of a base64 form to search for. The first and last characters of the form depend on the
text around the secret, so they are dropped. If the remaining text is too short, it would match other text."""

_NAMES = "(?:API_?KEY|API_?TOKEN|ACCESS_?KEY|SECRET_?KEY|AUTH_?TOKEN|PASSWORD|PASSWD)"
_NAME = rf"[A-Za-z0-9_]*{_NAMES}"
_ASSIGNED = re.compile(rf"(?i)({_NAMES}(?:\\*[\"'])?\s*[=:]\s*(?:\\*[\"'])?)[^\s\"',;&\\]+")
"""An assignment to a name that ends with one of _NAMES. Matching the full name would be ten times slower."""
_ASSIGNS = re.compile(rf"{_NAMES.lower()}(?:\\*[\"'])?\s*[=:]")
"""The start of _ASSIGNED, for lower-case text. A pattern that ignores case would take eight times as long."""
_ASSIGNABLE = {
    "key": ("api_key", "apikey", "access_key", "accesskey", "secret_key", "secretkey"),
    "token": ("api_token", "apitoken", "auth_token", "authtoken"),
    "passw": ("password", "passwd"),
}
"""Hint → the names of _ASSIGNED that contain the hint. The hint alone is not enough, because training logs
often contain the word "tokens"."""
_SHAPES: tuple[tuple[tuple[str, ...], re.Pattern[str], str], ...] = (
    (("bearer", "basic"), re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}"), rf"\1{MASK}"),
    (
        ("authorization",),
        re.compile(r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?)(?!bearer|basic)[^\s\"',;\\]+"),
        rf"\1{MASK}",
    ),
    (("mlpi_", "mlps_"), re.compile(r"\bml(?:pi|ps)_[A-Za-z0-9_.-]+"), MASK),
    (tuple(_ASSIGNABLE), _ASSIGNED, rf"\1{MASK}"),
    (("://",), re.compile(r"(://[^/\s:@\"]+:)[^/\s@\"]+(?=@)"), rf"\1{MASK}"),
)
"""(hints, pattern, replacement) for each form of a secret. A text that matches the pattern contains at least
one of the hints in lower case."""
_HINTS = (
    "bearer",
    "basic",
    "authorization",
    "mlpi_",
    "mlps_",
    "key",
    "token",
    "passw",
    "://",
    "secret",
    "credential",
)
"""If a text in lower case contains none of these strings, no pattern of _SHAPES matches it. This is true for
most evidence."""
_SENSITIVE_NAME = re.compile(rf"(?i){_NAME}$")
_VARIABLE = r"(?:[-.\w]*[-._])?(?:token|key)|[-.\w]*(?:password|passwd|secret|credential)[-.\w]*"
_SECRET_VARIABLE = re.compile(rf"(?ai){_VARIABLE}")
_NAMED_VALUE = re.compile(rf'(?ai)"name":\s*"(?:{_VARIABLE}|{_NAME})"')
_VALUED = re.compile(rf'(?ai)(\{{"name":"(?:{_VARIABLE}|{_NAME})","value":)"(?:[^"\\]|\\.)*"\}}')
_SAFE = re.compile(
    r'\{"name":"[^"\\]*",(?:"value":"\*\*\*"|"valueFrom":\{"\w+":\{(?![^{}]*"value":)[^{}]*\}\})\}'
)
"""An environment variable in a pod's spec whose value is already replaced, or that refers to a value stored
elsewhere. Every pod of the harness has variables of both kinds."""


def secret_variable(name: str) -> bool:
    """Return whether the name of an environment variable denotes a secret: *_TOKEN, *_KEY, *PASSWORD*, …"""
    return bool(_SECRET_VARIABLE.fullmatch(name) or _SENSITIVE_NAME.match(name))


_URL_PASSWORD = re.compile(r"://[^/\s:@\"']+:([^/\s@\"']+)@")
_ASSIGNMENT = re.compile(rf"(?ai)(?<![-\w])({_VARIABLE}|{_NAME})=(\"[^\"]*\"|'[^']*'|[^\s;&|\"']+)")


def secret_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose name denotes a secret, or whose value contains a secret."""
    return {name: value for name, value in variables.items() if secret_variable(name) or secrets_in(value)}


def secrets_in(text: str) -> set[str]:
    """Return the secrets in a text.

    A secret is a password in a URL, or a value that a shell command assigns to a variable whose name denotes
    a secret. A reference such as `$TOKEN` does not count.
    """
    secrets = set(_URL_PASSWORD.findall(text))
    secrets |= {value.strip("\"'") for _, value in _ASSIGNMENT.findall(text)}
    return {secret for secret in secrets if secret and "$" not in secret}


def _forms(secret: str) -> Iterator[str]:
    yield secret
    yield quote(secret, safe="")
    yield quote_plus(secret)
    for ascii_only in (True, False):
        escaped = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield escaped
        yield json.dumps(escaped, ensure_ascii=ascii_only)[1:-1]
    raw = secret.encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield encode(raw).decode()
        yield encode(raw).decode().rstrip("=")
        for offset in range(3):
            text = encode(b"\0" * offset + raw).decode().rstrip("=")
            head = (0, 2, 3)[offset]
            tail = len(text) - 1 if (offset + len(raw)) % 3 else len(text)
            if tail - head >= _MIN_SHIFTED:
                yield text[head:tail]


def _folded(text: str) -> str:
    """Return the text case-folded. Like a pattern that ignores case, this treats "ı" as "i"."""
    return text.casefold() if text.isascii() else text.casefold().replace("ı", "i")


def _any_in(hints: Iterable[str], folded: str) -> bool:
    return any(hint in folded for hint in hints)


def _hinted(text: str) -> bool:
    return _any_in(_HINTS, _folded(text))


class Redactor:
    """Replaces secrets in text and in JSON-like values. Thread-safe. Secrets can be added at any time."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._secret_forms: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Redact this secret from now on. A secret shorter than MIN_LENGTH is ignored."""
        if len(secret) < MIN_LENGTH:
            return
        with self._lock:
            self._secret_forms.update(form for form in _forms(secret) if len(form) >= MIN_LENGTH)
            longest_first = sorted(self._secret_forms, key=lambda form: (-len(form), form))
            self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    @property
    def longest(self) -> int:
        """Return the length of the longest form of a known secret.

        Code that writes text in chunks must hold back as many characters.
        """
        return max((len(form) for form in self._secret_forms), default=0)

    def text(self, text: str) -> str:
        """Return the text with every secret replaced by ***."""
        if self._pattern is not None:
            text = self._pattern.sub(MASK, text)
        folded = _folded(text)
        if not _any_in(_HINTS, folded):
            return text
        for hints, pattern, replacement in _SHAPES:
            matches = [hint for hint in hints if hint in folded]
            if pattern is _ASSIGNED:
                matches = [hint for hint in matches if _any_in(_ASSIGNABLE[hint], folded)]
            if matches and (pattern is not _ASSIGNED or _ASSIGNS.search(folded)):
                text = pattern.sub(replacement, text)
        return text

    def encoded(self, encoded: str) -> str | None:
        """Return compact JSON with every secret replaced, or None if only `value()` can replace them all.

        This method takes a third of the time of `value()`.
        """
        if not _hinted(encoded):
            return None if self._knows(encoded) else encoded
        masked = _VALUED.sub(rf'\1"{MASK}"}}', encoded)
        left = (
            self._knows(masked) or self.text(masked) != masked or _NAMED_VALUE.search(_SAFE.sub("", masked))
        )
        return None if left else masked

    def _knows(self, text: str) -> bool:
        return self._pattern is not None and self._pattern.search(text) is not None

    def value(self, value: Any) -> Any:
        """Return a JSON-like value with every string redacted, including keys. Numbers are unchanged.

        In `{"name": "..._TOKEN", "value": x}`, as in a pod's environment, x is replaced.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            named = value.get("name")
            sensitive = isinstance(named, str) and secret_variable(named)
            return {
                self.text(str(key)): MASK
                if isinstance(item, str)
                and (_SENSITIVE_NAME.match(str(key)) or (sensitive and key == "value"))
                else self.value(item)
                for key, item in value.items()
            }
        return value
