"""Replace secrets with *** before evidence is written.

Two kinds of secrets are replaced: known secrets in any encoding (`known_secrets.py`), and values that look
like secrets because of their name or format (`harness/core/secret_rules.py`). An RE2 pattern finds the lines
that might contain a secret. Only these lines and their neighbours are searched in detail.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

from harness.core import secret_rules
from harness.core.secret_rules import MASK, SETTING, VARIABLE, Span, is_secret_name, masked, merged
from harness.evidence.io.known_secrets import MIN_ENCODED, MIN_LENGTH, KnownSecrets, compiled

_LINES = 3
"""The number of lines before and after a match that are also searched, because a secret can be split across
lines."""
_CONTEXT = 24_576
"""The number of characters that a stream keeps after it has returned them, so that it can recognise a secret
that began in them."""
_LONGEST_LINE = 64 * 1024
_LINE_REST = 1024
"""The minimum number of characters that a stream holds back at the end of an incomplete line that is longer
than _LONGEST_LINE."""
_KEY_BEGIN, _KEY_END, _KEY_MAX = b"-----BEGIN ", b"-----END ", 20_000
_NAMED = re.compile(r'(?a)"name":\s*"([-.\w]+)"')
_VALUED = re.compile(r'(?a)(\{"name":"([-.\w]+)","value":)"[^"\\]*(?:\\.[^"\\]*)*"\}')
_LISTED = re.compile(r'"(--?[-\w]{1,120})",(?=("[^"\\]*(?:\\.[^"\\]*)*"))')
_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"')
_MAX_CLEAN = 4_000_000
"""The maximum total length, in characters, of the strings that are cached as containing no secret. The cache
helps, because an object's states mostly contain the same strings."""
_SAFE = re.compile(
    r'\{"name":"[^"\\]*",(?:"value":"\*\*\*"|"valueFrom":\{"\w+":\{(?![^{}]*"value":)[^{}]*\}\})\}'
)
"""Matches an environment variable in a pod spec whose value is already redacted or is a reference
(valueFrom). All of the harness's pods have variables of both kinds."""
_PREFIX = re.compile(secret_rules.PREFIX)
_NAMES = rf'(?i)"(?:{SETTING})":|"name":\s*"(?:{VARIABLE})"'
_URL_PASSWORD = re.compile(r"://[^/\s:@\"']*:([^/\s\"']+)@")
_ASSIGNMENT = re.compile(r"(?a)(?<![-.\w])([-.\w]+)=(\"[^\"]*\"|'[^']*'|[^\s;&|\"']+)")


def secret_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose names denote a secret or whose values contain a secret."""
    return {name: value for name, value in variables.items() if is_secret_name(name) or secrets_in(value)}


def secrets_in(text: str) -> set[str]:
    """Return the secrets in a string.

    A secret is a password in a URL, or a value that a shell command assigns to a variable whose name denotes
    a secret. References such as `$TOKEN` do not count.
    """
    secrets = set(_URL_PASSWORD.findall(text))
    secrets |= {value.strip("\"'") for name, value in _ASSIGNMENT.findall(text) if is_secret_name(name)}
    return {secret for secret in secrets if secret and "$" not in secret}


class Redactor:
    """Replaces secrets in text and in JSON-like values. Thread-safe. Secrets can be added at any time."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._secrets: set[str] = set()
        self._search: _Search | None = None
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """From now on, redact this secret and all secrets that it contains.

        Secrets shorter than MIN_LENGTH are ignored.
        """
        if len(secret) < MIN_LENGTH:
            return
        with self._lock:
            self._secrets.update((secret, *_inner(secret)))
            self._search = None

    @property
    def longest(self) -> int:
        """Return the number of characters in the longest form of a known secret."""
        return self.search.known.longest

    @property
    def search(self) -> _Search:
        """Return an object that searches for all secrets added so far."""
        search = self._search
        if search is None:
            with self._lock:
                search = self._search = _Search(self._secrets)
        return search

    def text(self, text: str) -> str:
        """Return the text with every secret replaced by ***."""
        spans = self.search.spans(text)
        return masked(text, spans) if spans else text

    def stream(self) -> RedactedStream:
        """Return an object that redacts text that arrives in chunks."""
        return RedactedStream(self)

    def encoded(self, encoded: str) -> str | None:
        """Return compact JSON with every secret replaced, or None if only `value()` can replace them all.

        Each string is searched only once, because all states of an object contain mostly the same strings.
        """
        search = self.search
        if not search.in_document(encoded):
            return encoded
        without = _VALUED.sub(_masked_variable, encoded)
        has_secrets = (
            not search.clean(without)
            or any(map(_is_secret_name, _NAMED.findall(_SAFE.sub("", without))))
            or any(secret_rules.hidden(*each) for each in _named_strings(without))
            or any(_arguments(without))
        )
        return None if has_secrets else without

    def value(self, value: Any) -> Any:
        """Return a JSON-like value with every string redacted, including keys. Numbers are unchanged.

        In `{"name": "..._TOKEN", "value": x}` (an environment variable) and in `["--token", x]` (arguments),
        x is replaced.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            options = [None, *value]
            return [
                MASK if secret_rules.argument(option, item) else self.value(item)
                for option, item in zip(options, value, strict=False)
            ]
        if isinstance(value, dict):
            name = value.get("name")
            sensitive = isinstance(name, str) and is_secret_name(name)
            return {
                self.text(str(key)): MASK
                if isinstance(item, str)
                and (secret_rules.hidden(str(key), item) or (sensitive and key == "value"))
                else self.value(item)
                for key, item in value.items()
            }
        return value


class RedactedStream:
    """Redacts text that arrives in chunks, with the same result as for the whole text."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._context = self._pending = ""

    def feed(self, text: str) -> str:
        """Return the complete lines, redacted. Text that might be the start of a secret is returned later."""
        start, whole = len(self._context), self._context + self._pending + text
        search = self._redactor.search
        unfinished = len(whole) - max(start, whole.rfind("\n") + 1)
        if unfinished > _LONGEST_LINE:
            unfinished = min(unfinished, max(_LINE_REST, search.known.longest))
        return self._emitted(whole, max(start, search.known.unfinished(whole, len(whole) - unfinished)))

    def flush(self) -> str:
        """Return the text that was held back, redacted. Call this at the end of the text."""
        whole = self._context + self._pending
        return self._emitted(whole, len(whole))

    def _emitted(self, whole: str, until: int) -> str:
        start = len(self._context)
        if until == start:
            self._pending = whole[start:]
            return ""
        # A secret that began on an earlier line continues after the prefix of the next line.
        prefix = _PREFIX.match(whole, start) if whole[start - 1 : start] == "\n" else None
        content_start = prefix.end() if prefix else start
        spans = [
            ((content_start if low < start else low) - start, min(high, until) - start)
            for low, high in self._redactor.search.spans(whole, start)
            if high > start and low < until
        ]
        self._context, self._pending = whole[max(0, until - _CONTEXT) : until], whole[until:]
        return masked(whole[start:until], spans)


def _inner(secret: str) -> Iterator[str]:
    """Yield the secrets in a secret that is a document, such as values of named fields and lines of a key."""
    yield secret.strip()
    for low, high in secret_rules.spans(secret):
        if high - low >= MIN_ENCODED:
            yield secret[low:high]
    for text in (secret, *_strings_in(secret)):
        if "\n" in text:
            yield from re.findall(r"(?m)^\s*([A-Za-z0-9+/=_-]{16,})\s*$", text)


def _strings_in(secret: str) -> Iterator[str]:
    """Yield all strings in a secret that is a JSON document.

    Such a string can be a private key with escaped line endings.
    """
    if not secret.lstrip().startswith(("{", "[")):
        return
    try:
        stack = [json.loads(secret)]
    except (ValueError, RecursionError):
        return
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            stack += value.values() if isinstance(value, dict) else value


def _masked_variable(match: re.Match[str]) -> str:
    """Return the text of a matched environment variable, masking the value if the name denotes a secret."""
    return f'{match[1]}"{MASK}"}}' if _is_secret_name(match[2]) else match[0]


_is_secret_name = lru_cache(maxsize=1024)(is_secret_name)


def _named_strings(encoded: str) -> Iterator[tuple[str, str]]:
    """Yield (key, value) for the string values in a JSON document whose keys might denote a secret."""
    data, at = encoded.encode("utf-8", "surrogatepass"), 0
    while (match := _strings().search(data, at)) is not None:
        name, value = match.group(1).decode(), match.group(2).decode("utf-8", "surrogatepass")
        at = match.end()
        if value != MASK:
            yield name, value


def _arguments(encoded: str) -> Iterator[bool]:
    """For each option that is followed by a string in a JSON list, yield whether that string is a secret."""
    for match in _LISTED.finditer(encoded):
        yield secret_rules.argument(match[1], json.loads(match[2]))


@cache
def _strings() -> Any:
    return compiled(rf'(?i)"({SETTING})":\s*"((?:[^"\\]|\\.)*)"'.encode())


class _Search:
    """Searches text for a fixed set of known secrets, and for values that look like secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self.known = KnownSecrets(secrets)
        hints = [secret_rules.HINTS.encode(), *filter(None, [self.known.pattern])]
        self._hint = compiled(b"|".join(hints))
        self._known_hint = compiled(self.known.pattern) if self.known.pattern else None
        self._document_hint = compiled(b"|".join([*hints, _NAMES.encode()]))
        self._clean: set[str] = set()
        """A cache of strings, as escaped in JSON, that are known to contain no secret."""
        self._clean_size = 0

    def in_document(self, encoded: str) -> bool:
        """Return whether a JSON document might contain a secret, or a name that denotes a secret."""
        return self._document_hint.search(encoded.encode("utf-8", "surrogatepass")) is not None

    def clean(self, encoded: str) -> bool:
        """Return whether no string in a JSON document contains a secret."""
        for string in set(_STRING.findall(encoded)) - self._clean:
            if self.spans(json.loads(f'"{string}"') if "\\" in string else string):
                return False
            if self._clean_size > _MAX_CLEAN:
                self._clean, self._clean_size = set(), 0
            self._clean.add(string)
            self._clean_size += len(string)
        return True

    def spans(self, text: str, start: int = 0) -> list[Span]:
        """Return the (start, end) of the secrets in a string, in order.

        Secrets before `start` may be missing.
        """
        matches: list[Span] = []
        for low, high in self._windows(text, start):
            window = text[low:high]
            for begin, end in (*self._known(window), *secret_rules.spans(window)):
                matches.append((low + begin, low + end))
        return merged(matches)

    def _known(self, window: str) -> Iterable[Span]:
        """Return the (start, end) of the known secrets in a window of text.

        A pattern quickly rules out windows without secrets.
        """
        hint = self._known_hint
        if hint is None or hint.search(window.encode("utf-8", "surrogatepass")) is None:
            return ()
        return self.known.spans(window)

    def _windows(self, text: str, start: int) -> Iterator[Span]:
        """Yield the (start, end) of the parts of a string that might contain a secret.

        These are the lines that match the pattern, and their neighbours.
        """
        data = text.encode("utf-8", "surrogatepass")
        if start and len(data) > len(text):
            start = len(text[:start].encode("utf-8", "surrogatepass"))
        key = data.rfind(_KEY_BEGIN, 0, start)
        byte = character = 0
        for low, high in _joined(self._hits(data, _line_before(data, start if key < 0 else key))):
            if len(data) == len(text):
                yield low, high
                continue
            first = character + len(data[byte:low].decode("utf-8", "surrogatepass"))
            byte, character = high, first + len(data[low:high].decode("utf-8", "surrogatepass"))
            yield first, character

    def _hits(self, data: bytes, at: int) -> Iterator[Span]:
        """Yield the byte range of the lines around each line matched by the pattern."""
        while at >= 0 and (hit := self._hint.search(data, at)) is not None:
            low, high = hit.span()
            last = high
            if _KEY_BEGIN in data[low:high]:
                closing = data.find(_KEY_END, high, high + _KEY_MAX)
                last = min(len(data), high + _KEY_MAX) if closing < 0 else closing
            yield _line_before(data, low), _line_after(data, last)
            at = data.find(b"\n", high)


def _joined(windows: Iterable[Span]) -> Iterator[Span]:
    """Merge windows that overlap or are adjacent. `windows` must be sorted."""
    low = high = -1
    for first, last in windows:
        if first > high:
            if high >= 0:
                yield low, high
            low = first
        high = max(high, last)
    if high >= 0:
        yield low, high


def _line_before(data: bytes, at: int) -> int:
    """Return the start of the line that is _LINES lines above a position."""
    for _ in range(_LINES + 1):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return 0
    return at + 1


def _line_after(data: bytes, at: int) -> int:
    """Return the end of the line that is _LINES lines below a position."""
    for _ in range(_LINES + 1):
        at = data.find(b"\n", at) + 1
        if at == 0:
            return len(data)
    return at
