"""Find known secrets in text, in any encoding in which programs print them.

The search covers secrets in plain text, base64, base64url and hex, at any alignment and even if they are
encoded twice. Before the search, nested escape sequences (%xx, HTML entities, backslashes) are decoded. Line
endings are removed, together with the prefix of the following line, to find secrets that are split across
lines.

The search has two steps. First, an RE2 pattern finds the few lines that might contain part of a secret, in
linear time and at several hundred MB/s. The exact search is then limited to these lines and their neighbours.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any
from urllib.parse import quote, quote_plus

from harness.core.secret_rules import (
    FULL_LINE_END,
    LINE_END,
    PREFIX,
    STAMP,
    Span,
    frames,
    merged,
    without,
)
from harness.evidence.io.decoded_text import ESCAPE, ONE_LEVEL, View, decodings, unescape

MIN_LENGTH = 4
"""The minimum length of a secret, in characters. Shorter secrets would match ordinary text."""
MIN_ENCODED = 8
"""The minimum length, in characters, of a secret that is searched for in all its forms.

Shorter secrets are searched for only in plain text, base64 and the usual escapes, because their other forms,
or parts of them, would match ordinary text.
"""
_SHORT, _LONG = 16, 32
"""Lengths, in characters, that determine which part of a form triggers the exact search. A form is a secret
in one encoding.

A form shorter than _SHORT triggers the search if it occurs as a whole, or with one half at the end or start
of a line. A form of up to _LONG characters also triggers the search with either of its halves anywhere, and a
longer form with any of its blocks.
"""
_BLOCK, _LONG_BLOCK, _LONG_PLAIN_BLOCK = 6, 8, 10
"""The lengths, in characters, of the blocks into which forms are divided. They apply, in this order, to forms
of up to 2 * _LONG characters, longer encoded forms and longer plain forms."""
_PART = 2 * _LONG_BLOCK - 1
"""The minimum length, in characters, of the parts of an encoded form that are replaced even if the rest of
the form is missing. Each part of this length contains a whole block."""
_DEPTH = 4
"""The number of nested levels of escape sequences that are decoded."""
_MAX_QUOTED = 256
"""The maximum length, in characters, of a secret whose quoted forms are also searched for in base64 and
hex."""
_MAX_SPLIT = 512
"""The maximum number of encoded forms that are searched for across three or more short lines."""
_MAX_TWICE = 1024
"""The maximum number of doubly encoded forms for which line endings between the two encodings are
considered."""
_CUT = 9
"""The number of characters on each side of a line ending that are encoded to find doubly encoded text."""
_MAX_UNFINISHED = 16_384
"""The maximum number of characters that a stream holds back until the rest of a secret arrives."""
_SEAM_CHARACTERS = " \t\"'\\,;+()|>#"
_SEAMS = rf"[{re.escape(_SEAM_CHARACTERS)}]*"
"""Matches the characters between the parts of a string literal that is split across lines, such as quotes."""
_JOINTS = tuple(
    (re.compile(rf"{end}(?:{end})*"), seams)
    for end, seams in (
        (rf"{FULL_LINE_END}(?:{STAMP} ?)?", ""),
        (rf"{FULL_LINE_END}{PREFIX}", ""),
        (rf"{FULL_LINE_END}{PREFIX}{_SEAMS}", _SEAM_CHARACTERS),
    )
)
"""Pairs of (pattern for a line ending, characters that are also removed if they precede it). Each pattern
removes more of the surrounding text than the previous one. Removing too much would remove part of a secret,
so all patterns are tried. All alternatives in a pattern begin with a literal character, so Python's search is
several times faster."""
_TAIL = re.compile(rf"(?:{FULL_LINE_END}{PREFIX}{_SEAMS})+$")
_WRAPPED = re.compile(r"[A-Za-z0-9+/_=-]\r?\n[A-Za-z0-9+/_-]")
"""Matches a line ending inside base64 or hex."""
_JSON_SPECIAL = '"\\ \r\n'
"""Characters that often follow a backslash in logs. A backslash before one of them does not trigger the exact
search. `_quoted` yields the forms of secrets that contain these characters."""
_ESCAPED_END = re.compile(r"%[0-9A-Fa-f]{2}|&#?\w+;|\\[ux][0-9A-Fa-f]{2}")
_ESCAPED = r"%[0-9A-Fa-f]{2}|&#?[0-9A-Za-z]{2,8};|\\[ux][0-9A-Fa-f]{2}"


def _encodings(raw: bytes) -> Iterator[str]:
    """Yield the base64 and hex encodings of `raw`, each without characters that depend on the bytes around
    it."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for offset in range(3):
            text = encode(b"\0" * offset + raw).decode().rstrip("=")
            tail = len(text) - 1 if (offset + len(raw)) % 3 else len(text)
            yield text[(0, 2, 3)[offset] : tail]
    yield raw.hex()
    yield raw.hex().upper()


def _quoted(secret: str) -> Iterator[str]:
    """Yield the escaped forms of a secret in URLs, JSON, HTML, Python and the shell."""
    yield secret
    for url in (quote(secret, safe=""), quote_plus(secret), quote(secret)):
        lower = re.sub("%..", lambda match: match[0].lower(), url)
        yield from (url, lower, quote(url, safe=""), quote(lower, safe=""))
    for ascii_only in (True, False):
        escaped = secret
        for _ in range(3):
            escaped = json.dumps(escaped, ensure_ascii=ascii_only)[1:-1]
            yield escaped
    yield re.sub("[<>&'+]", lambda match: f"\\u{ord(match[0]):04x}", json.dumps(secret)[1:-1])
    yield html.escape(secret)
    yield html.escape(secret).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
    yield html.escape(secret, quote=False)
    yield repr(secret)[1:-1]
    yield repr(_raw(secret))[2:-1]
    yield secret.replace("'", "'\\''")
    yield secret.replace("'", "'\"'\"'")
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", secret)
    yield re.sub(r'([\\"$`])', r"\\\1", secret)
    yield re.sub(r"(\W|_)", r"\\\1", secret)
    yield re.sub(r"(\W)", r"\\\1", secret)


def _one_line(secret: str) -> Iterator[str]:
    """Yield a multi-line secret as it appears after a shell has replaced or removed its line endings."""
    for joint in ("", " "):
        yield re.sub(r"\s*\n\s*", joint, secret)
        yield secret.replace("\n", joint)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


class KnownSecrets:
    """Searches text for a fixed set of secrets, in all their forms. A form is a secret in one encoding."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._short: set[str] = set()
        """The forms of secrets shorter than MIN_ENCODED."""
        self._plain: set[str] = set()
        self._encoded: set[str] = set()
        self._once: set[str] = set()
        """The forms in `_encoded` that are encoded only once."""
        self._twice: set[str] = set()
        self._wrapped: set[str] = set()
        """The forms in `_once` that are also searched for in text that was split across lines and encoded
        again."""
        for secret in secrets:
            quoted = {*_quoted(secret), *_one_line(secret)} - {""}
            if len(secret) < MIN_ENCODED:
                encoded = base64.b64encode(_raw(secret)).decode()
                self._short |= quoted | {encoded, encoded.rstrip("=")}
                continue
            self._plain |= {form for form in quoted if len(form) >= MIN_ENCODED}
            plain = {secret, *_one_line(secret)}
            inner = quoted | plain if len(secret) <= _MAX_QUOTED else plain
            once = {
                text: [form for form in _encodings(_raw(text)) if len(form) >= MIN_ENCODED] for text in inner
            }
            self._once |= {form for forms in once.values() for form in forms}
            self._encoded |= self._once
            for text in {secret, re.sub(r"\s*\n\s*", "", secret), json.dumps(secret)[1:-1]} & inner:
                self._twice |= {form for each in once[text] for form in _encodings(each.encode())}
                if len(text) <= _MAX_QUOTED:
                    self._wrapped |= set(once[text])
        self._encoded |= self._twice
        if len(self._twice) > _MAX_TWICE:
            self._wrapped = set()

    @property
    def longest(self) -> int:
        """Return the length in characters of the longest known secret, in any of its encodings."""
        return max(map(len, (*self._short, *self._plain, *self._encoded)), default=0)

    # -- first step: find lines that might contain a secret --------------------------------------------
    @cached_property
    def pattern(self) -> bytes:
        """Return an RE2 pattern, in Latin-1, that matches wherever a form of a secret, or part of a form,
        might be."""
        special = {*"+/=-_&#;%", *(each for form in self._plain for each in form if not each.isalnum())}
        anywhere, endings, beginnings, middles = [], [], [], []
        if self._plain:
            anywhere.append(_ESCAPED)
            anywhere += [rf"\\{_literal(each)}" for each in sorted(special - set(_JSON_SPECIAL))]
        for form in sorted(self._short):
            anywhere.append(_literal(form))
        for form in sorted(self._plain | self._encoded):
            length, half = len(form), (len(form) + 1) // 2
            if length > _LONG:
                blocks = _blocks(form, form in self._encoded)
                anywhere += [_literal(form[at : at + size]) for at, size in blocks]
                continue
            raw = [_literal(character) for character in form]
            if length < _SHORT:
                anywhere.append("".join(raw))
                endings.append("".join(raw[:half]) + _nested(raw[half:-1]))
                beginnings.append(_nested(raw[1:-half], reverse=True) + "".join(raw[-half:]))
            else:
                anywhere += ["".join(raw[: length // 2]), "".join(raw[-(length // 2) :])]
            if form in self._plain or (form in self._once and len(self._once) <= _MAX_SPLIT):
                middles += [raw[at] + _nested(raw[at + 1 : -1]) for at in range(1, length - 1)]
        anywhere += self._twice_parts
        line = rf"{LINE_END}{PREFIX}{_SEAMS}"
        patterns = ["|".join(dict.fromkeys(anywhere))]
        if endings:
            patterns += [rf"(?:{'|'.join(endings)}){_SEAMS}{LINE_END}", rf"{line}(?:{'|'.join(beginnings)})"]
        if middles:
            patterns.append(rf"{line}(?:{'|'.join(dict.fromkeys(middles))}){_SEAMS}{LINE_END}")
        return "|".join(filter(None, patterns)).encode()

    @cached_property
    def _twice_parts(self) -> list[str]:
        """Return RE2 patterns for parts of secrets that were encoded, split across lines and encoded again.

        In a long form, the line ending leaves at least one block unchanged. In a short form, it changes most
        blocks, so there is a pattern for each half and each position of the line ending.
        """
        parts: list[str] = []
        for form in sorted(self._twice) if self._wrapped else ():
            step = 1 if len(form) <= _LONG else 3 if len(form) <= 2 * _LONG else _LONG_BLOCK
            parts += [_literal(form[at : at + _BLOCK]) for at in range(0, len(form) - _BLOCK + 1, step)]
        for form in sorted(self._wrapped):
            for split_form in _cuts(form, len(form)) if len(form) <= 3 * _LONG // 4 else ():
                parts += [
                    _literal(split_form[: len(split_form) // 2]),
                    _literal(split_form[-(len(split_form) // 2) :]),
                ]
        return list(dict.fromkeys(parts))

    # -- second step: search these lines exactly -------------------------------------------------------
    def spans(self, text: str) -> list[Span]:
        """Return the (start, end) of all secrets in the text, in order."""
        spans: list[Span] = []
        short_pattern = self._short_pattern
        if short_pattern is not None:
            spans = without((match.span() for match in short_pattern.finditer(text)), frames(text))
        if not self._plain or self._hint.search(text.encode("utf-8", "surrogatepass")) is None:
            return merged(spans)
        stack, seen_texts = [(View(text), 0)], {text}
        while stack:
            view, depth = stack.pop()
            spans += [view.place(*span) for span in self._in(view.text)]
            if self._twice_hint is not None and self._twice_hint.search(_raw(view.text)) is not None:
                spans += [view.place(*span) for span in self._in_decoded(view.text)]
            views = [(view.replaced(joint, _nothing, seams), depth) for joint, seams in _JOINTS]
            if depth < _DEPTH:
                views += [(view.replaced(escape, unescape), depth + 1) for escape in (ESCAPE, ONE_LEVEL)]
            for each in views:
                if each[0].text not in seen_texts:
                    seen_texts.add(each[0].text)
                    stack.append(each)
        return merged(spans)

    def _in(self, text: str) -> Iterator[Span]:
        for match in self._whole.finditer(text):
            yield match.span()
        if self._blocks:
            yield from self._parts(text)

    def _in_decoded(self, text: str) -> Iterator[Span]:
        """Yield the (start, end) of secrets that were encoded, split across lines and encoded again."""
        for start, characters, size, decoded in decodings(text):
            if _WRAPPED.search(decoded) is None:
                continue
            view = View(decoded).replaced(_JOINTS[0][0], _nothing)
            for low, high in (view.place(*span) for span in self._in(view.text)):
                yield (
                    start + low // size * characters,
                    min(len(text), start - (-high // size) * characters),
                )

    def _parts(self, text: str) -> Iterator[Span]:
        """Yield the (start, end) of parts of long encoded forms. Each part has at least _PART characters."""
        data, at = text.encode("latin-1", "replace"), 0
        while (match := self._block_pattern.search(data, at)) is not None:
            low, high = match.start(), match.end()
            at = low + 1
            for form, offset in self._blocks[match.group().decode()]:
                start, end = _grown(text, form, low, offset)
                if end - start >= _PART:
                    low, high = min(low, start), max(high, end)
            if high - low >= _PART:
                yield low, high
                at = high

    @cached_property
    def _hint(self) -> Any:
        return compiled(self.pattern)

    @cached_property
    def _twice_hint(self) -> Any:
        return compiled("|".join(self._twice_parts).encode()) if self._twice_parts else None

    @cached_property
    def _short_pattern(self) -> re.Pattern[str] | None:
        return _any_of(self._short) if self._short else None

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        return _any_of(self._plain | {form for form in self._encoded if len(form) <= _LONG})

    @cached_property
    def _blocks(self) -> dict[str, list[tuple[str, int]]]:
        """Map each block of the long encoded forms to (form, position in the form) for the forms that contain
        it."""
        blocks: dict[str, list[tuple[str, int]]] = {}
        for form in sorted(self._encoded):
            if len(form) > _LONG:
                for at, size in _blocks(form, encoded=True):
                    places = blocks.setdefault(form[at : at + size], [])
                    if len(places) < _LONG:
                        places.append((form, at))
        return blocks

    @cached_property
    def _block_pattern(self) -> Any:
        return compiled("|".join(map(_literal, self._blocks)).encode())

    @cached_property
    def _beginnings(self) -> set[str]:
        """Return all substrings of MIN_LENGTH characters in the forms.

        A text that ends with one of them might end with an incomplete secret.
        """
        cuts = {cut for form in self._wrapped for cut in _cuts(form, _CUT)}
        return {
            form[at : at + MIN_LENGTH]
            for form in (*self._plain, *self._encoded, *cuts)
            for at in range(len(form) - MIN_LENGTH + 1)
        }

    def unfinished(self, text: str, end: int) -> int:
        """Return the position at which an incomplete secret at the end of `text[:end]` might begin, or `end`.

        An incomplete secret can be split across several lines. All of these lines except the first then
        contain only parts of the secret.
        """
        hold = at = end
        while self._plain and end - at < _MAX_UNFINISHED:
            tail = text[max(0, at - _MAX_UNFINISHED) : at]
            stripped = tail.rstrip(_SEAM_CHARACTERS + "\r\n")
            if at < end:
                seam = _TAIL.search(tail, max(0, len(stripped) - 1)) or _TAIL.search(
                    tail, max(0, len(tail) - 128)
                )
                if seam is None:
                    break
                stripped = tail[: seam.start()].rstrip(_SEAM_CHARACTERS)
            word = stripped[max(stripped.rfind(blank) for blank in " \t\n") + 1 :]
            if not self._can_end(word, whole=at < end):
                break
            hold = at = at - len(tail) + len(stripped) - len(word)
        return hold

    def _can_end(self, word: str, whole: bool) -> bool:
        """Return whether a word might end with the beginning of a secret's form.

        If `whole` is true, the word is a whole line and may also lie within a form.
        """
        last = word[-MIN_LENGTH:]
        if last in self._beginnings or _ESCAPED_END.search(word, max(0, len(word) - 64)):
            return True
        return whole and bool(last) and any(last in each for each in self._beginnings)


def compiled(pattern: bytes) -> Any:
    """Compile a pattern for Latin-1 bytes with RE2, which matches in linear time."""
    import re2

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.max_mem = 1 << 30  # This limit, in bytes, is high enough for hundreds of secrets.
    options.log_errors = False
    return re2.compile(pattern, options)


def _nothing(_: re.Match[str]) -> str:
    return ""


def _literal(text: str) -> str:
    """Return an RE2 pattern, to be compiled for Latin-1, that matches the UTF-8 encoding of a string."""
    return "".join(
        chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\x{byte:02x}" for byte in _raw(text)
    )


def _nested(parts: list[str], reverse: bool = False) -> str:
    """Return a pattern that matches any prefix of a sequence of patterns, or any suffix if `reverse` is
    true."""
    pattern = ""
    for part in parts if reverse else reversed(parts):
        pattern = f"(?:{pattern}{part})?" if reverse else f"(?:{part}{pattern})?"
    return pattern


def _blocks(form: str, encoded: bool) -> Iterator[tuple[int, int]]:
    """Yield the position and length of each block in a long form.

    Any part of the form that is twice as long as a block contains a whole block. In the forms of long
    secrets, such as private keys, every full line of 64 characters contains a block.
    """
    long = _LONG_BLOCK if encoded else _LONG_PLAIN_BLOCK
    size = _BLOCK if len(form) <= 2 * _LONG else long
    for at in range(0, len(form) - size + 1, size if len(form) <= 512 else _LONG):
        yield at, size


def _cuts(form: str, length: int) -> Iterator[str]:
    """Yield encodings of a form with an inserted line ending.

    Each contains up to `length` characters of the form on each side of the line ending.
    """
    for at in range(1, len(form)):
        yield from _encodings(f"{form[max(0, at - length) : at]}\n{form[at : at + length]}".encode())


def _any_of(forms: Iterable[str]) -> re.Pattern[str]:
    return re.compile(
        "|".join(re.escape(form) for form in sorted(forms, key=lambda each: (-len(each), each)))
    )


def _grown(text: str, form: str, at: int, offset: int) -> Span:
    """Return the longest span of text around the position `at` that equals the part of the form around the
    position `offset`."""
    start, low = at, offset
    while start > 0 and low > 0 and text[start - 1] == form[low - 1]:
        start, low = start - 1, low - 1
    end, high = at, offset
    while end < len(text) and high < len(form) and text[end] == form[high]:
        end, high = end + 1, high + 1
    return start, end
