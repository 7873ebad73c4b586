"""Rules that recognize a secret by the name or by the format of the value.

These rules are used for logs, bundles and the tracker's pages. They also find secrets that the launch itself
does not use. `harness.evidence.io.known_secrets` finds the secrets that the launch uses, in all their
encodings. This module needs only the standard library, because the tracker's image contains little else.

A number is not considered a secret, unless its name ends with a word such as "password" or "api_key", because
metrics are often named "token" or "secret". All patterns take linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

MASK = "***"
Span = tuple[int, int]
"""The location of a secret in a string, as (position of its first character, position after its last
character)."""

STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:[0-9:.,]+(?:Z|[+-]\d\d:?\d\d)?"
PREFIX = (
    rf"(?:(?:{STAMP}|\[[\w.:/ -]{{1,40}}\]:?"
    r"|(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)\b:?|std(?:out|err) [FP])[ \t]?)*"
)
"""Matches the prefix of a log line written by the kubelet or a program: a time, rank or log level. The
pattern is also valid in RE2."""
LINE_END = r"(?:\r\n?|\n|\\\\*(?:r\\+)?n)"
"""Matches a line ending, including one that is an escape sequence in a string literal."""
FIRST = r"\\(?<!\\\\)\\*"
"""Matches a sequence of backslashes, but only from its first backslash. Without the lookbehind, a search
would start at each backslash of a long sequence and take quadratic time. RE2 does not support lookbehinds and
does not need this one."""
FULL_LINE_END = LINE_END.replace(r"\\\\*", FIRST)
"""A variant of `LINE_END` for Python's regular expressions, which takes linear time."""
_JOINT = re.compile(rf"(?:[ \t]*(?:\r\n?|\n){PREFIX})+[ \t]*")
_FRAME = re.compile(
    r"@[a-z]+1 (?:[0-9a-f]{16} \d{1,6}/\d{1,6} )?[A-Za-z0-9+/]+={0,2} [0-9a-f]{32}(?!\w)|@exit1 \w+ -?\d+"
    r"|@sum1 (?:-|\d{1,6}) [0-9a-z]{8} \d{1,6} \d{1,3}/\d{1,3} [A-Za-z0-9+/]+={0,2} [\w-]{16}(?![\w-])"
)
"""Matches a frame, which is text in a log line that a rank writes for the harness (truth_frames.py,
digest_lines.py, netcheck/frames.py). The base64 text of a frame can end like the name of a secret, for
example with "token=". The signature that follows must not be taken for the value of such a secret.
"""

# -- names that denote a secret ----------------------------------------------------------------------------
_KEYS = (
    "api|access|secret|private|client|account|storage|shared|signing|encryption|ssh|master|auth|session|license"
    "|deploy|webhook|hmac|consumer"
)
_STRONG = rf"pass_?word|passwd|pass_?phrase|(?:{_KEYS})[-_. ]?key|[-_]key[-_]data|x-api-key"
"""Matches the ends of names whose values are secrets, even if the values are numbers."""
_WEAK = (
    r"authorization|cookie|dsn|jwt|connection[-_]?string|[-_]pwd|[-_\"']auth"
    r"|(?:db|database|user|admin|root|smtp|mysql|pg|redis|mongo|ftp|mail|proxy|login)[-_]?pass"
    r"|dockerconfigjson|x-amz-(?:signature|credential)|[?&](?:sig|token)|(?-i:[A-Z0-9]_(?:KEY|PASS))"
)
_BARE_NAMES = "token|secrets?|credentials?"
"""Matches the ends of names whose values are secrets only if the name has another part (as in hf_token) or if
the value looks random."""
_ANYWHERE = "password|passwd|passphrase|secret|credential|api[-_.]?key|connection[-_]?string"
_ALONE, _WITH_OTHERS = "token|authorization|cookie|dsn|jwt|pwd|pass", "key|auth"
"""Last words of names that denote a secret. In a document's keys, the words in _WITH_OTHERS denote a secret
only if another word precedes them."""
_LAST = f"{_ALONE}|{_WITH_OTHERS}"
SETTING = (
    rf"(?:[-.\w]*[-._])?(?:{_ALONE})|[-.\w]*[-._](?:{_WITH_OTHERS})|[-.\w]*(?:{_ANYWHERE})[-.\w]*"
    rf"|[-.\w]*(?-i:[a-z0-9](?:Token|Key|Auth|Dsn|Jwt|Pwd))|[-.\w]*(?:{_KEYS})_?key|[-.\w]*key-data"
    r"|\w*(?:auth|api|access)_?token"
)
"""Matches document keys that denote a secret. The bare key "key" does not match, because Kubernetes uses it
for labels and taints."""
VARIABLE = rf"{SETTING}|{_WITH_OTHERS}|[-.\w]*(?:cookies|session[-_]?id|webhook[-_]?url)"
"""Matches names of environment variables and headers that denote a secret."""
_SETTING = re.compile(rf"(?ai){SETTING}")
_SECRET_NAME = re.compile(rf"(?ai){VARIABLE}")
_STRONG_NAME = re.compile(rf"(?ai)[-.\w]*(?:{_STRONG})")
_REFERENCE = re.compile(
    r"(?ai)(?:.*[-._])?(?:topology|label|taint|partition|primary|foreign|sort|cache|public)[-_]?key"
    r"|.*(?:name|ref|file|path|dir|url|uri|id|type|mode|count|limit|class|provider)s?"
)
"""Matches names that contain a word for a secret but denote a location, a number or an object, such as
secretName."""
_PULL_SECRET = re.compile(r"(?ai)pull[-_.]?secrets?$")
"""Matches settings whose value is the name of a Kubernetes Secret, such as HARNESS_IMAGE_PULL_SECRET."""
_LABEL = r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?"
_OBJECT = re.compile(rf"{_LABEL}(?:/{_LABEL})?|[A-Z]+/[A-Z]+")
"""Matches the name of a Kubernetes object, possibly with its namespace, or a placeholder for both
(NAMESPACE/NAME)."""
_WORD_OF_NAME = r"(?:[a-z]{1,16}|[a-z]{1,3}\d{1,2})"
_WORDS = rf"{_WORD_OF_NAME}(?:[-.](?:{_WORD_OF_NAME}|\d{{1,3}}))*"
_CAPITALS = r"[A-Z]+(?:_[A-Z]+)*"
_SECRET_OBJECT = re.compile(rf"(?a)(?:{_WORDS}|{_CAPITALS})(?:/(?:{_WORDS}|{_CAPITALS}))?(?:={_CAPITALS})?")
"""Matches a Secret's name that consists of words, possibly with a namespace, a key or a variable: hf-token,
team/hf-token, pluto/PLUTO_API_KEY, hf-token=HF_TOKEN. The values of the harness's `--secret` option have this
form."""
_PLACEHOLDER = re.compile(r"(?ai)…|\.\.\.|your(?:[-_][a-z]{1,12}){1,4}[-_]here")
_VOCABULARY = re.compile(
    r"(?i)(?<![A-Za-z])(?:bos|eos|pad|unk|sep|cls|mask|image|audio|video|special|next|last|first|prev|new|per|each|start|end|stop"
    r"|max|min|num|n|total|target|prompt|completion|generated|input|output|sampled|current|added|additional|blank"
    r"|word|sub|bad|unexpected|invalid|missing|expected|unknown|boi|eoi|tool|think|a|the|this|that)[-_ ]?\Z"
)
"""Matches the text before the word "token" if the word refers to a token of a language model or a parser."""
_NUMBER = re.compile(r"[-+0-9.,_%]*")
_DIGIT = re.compile(r"(?a)\d")
_LITERAL = re.compile(
    r"(?i)[-+]?[\d.,_]+(?:e[-+]?\d+)?%?|true|false|none|null|nan|-?inf(?:inity)?|yes|no|on|off|\**|str|bytes|int|any"
)
_CODE = re.compile(
    r"[A-Za-z_][\w.]*[(\[{]|(?:self|cls|os|args|cfg|config|settings|options|opts|kwargs)\.[\w.]+$"
)
_WORD = re.compile(r"[A-Za-z_]+[.!?]?")
_REFERENCES = ("<", "[", "{", "(", "$", "%", "`")
"""The first characters of values that are placeholders or references: <pad>, $TOKEN, %(token)s."""


def is_secret_name(name: str) -> bool:
    """Return whether a name denotes a secret: HF_TOKEN, X-Api-Key, dsn, clientSecret, client-key-data, …"""
    return bool(_SECRET_NAME.fullmatch(name))


def denotes_value(name: str) -> bool:
    """Return whether a document key denotes a secret value rather than a reference such as secretName."""
    return bool(_SETTING.fullmatch(name)) and not _REFERENCE.fullmatch(name)


def redact(name: str, value: Any) -> Any:
    """Return a setting's value for display, with secrets replaced by ***.

    The whole value is replaced if its name denotes a secret. Otherwise, secrets inside a string are replaced.
    The tracker's pages call this function with (name, value), so its interface must not change. `name` can be
    a path such as "tracker.api_key". Numbers and booleans are unchanged, unless the name ends with a word
    such as "password" or "api_key". The result has the same type as `value`, unless a number is replaced. The
    caller must handle lists and mappings.
    """
    if value is None or isinstance(value, bool):
        return value
    text = str(value)
    if hidden(name, text):
        return MASK
    return masked(value, spans(value)) if isinstance(value, str) else value


def hidden(name: str, text: str) -> bool:
    """Return whether a name denotes a secret and the text could be its value."""
    if not text or not denotes_value(name):
        return False
    if _is_object(name, text):
        return False
    return not _NUMBER.fullmatch(text) or bool(_STRONG_NAME.fullmatch(name))


# -- values that are secrets -------------------------------------------------------------------------------
_BLANK = r"[ \t\r\n]{0,8}"
_SEPARATOR = rf"(?:\\*[\"']\]?)?{_BLANK}(?:=>|:=|[=:]){_BLANK}"
_NAMED = re.compile(rf"(?a)(?<![\w.-])([\w.-]++){_SEPARATOR}")
"""Matches any name that is followed by a value. _END then checks the name. A single pattern for both steps
would be several times slower."""
_END = re.compile(rf"(?ais).*?(?:({_STRONG})|({_BARE_NAMES}|{_WEAK}))$")
_TAILS = (
    *(
        "word",
        "passwd",
        "phrase",
        "key",
        "data",
        "token",
        "secret",
        "secrets",
        "credential",
        "credentials",
        "pwd",
    ),
    *("authorization", "cookie", "dsn", "jwt", "string", "auth", "pass", "json", "signature", "sig"),
)
"""The last words of all names that _END matches."""
_LONGEST_NAME, _BEFORE_NAME = 64, 13
"""_LONGEST_NAME is the maximum number of characters of a name that are checked. _BEFORE_NAME is the number of
characters before the name that are also checked, because a name can consist of two words ("api key")."""
_OPTION_NAME = r"--?(?:passwd|(?:[a-z0-9]{1,20}[-_]){0,4}(?:token|password|secret|key))"
_OPTIONS = rf"{_OPTION_NAME}(?:[ \t]+|\\*[\"'],[ \t\r\n]{{0,40}}|[\"']?\r?\n{PREFIX}[ \t]{{0,40}}-[ \t]+)"
"""Matches an option whose value is a secret. The value is the next word, or the next item of a JSON, Python
or YAML list."""
_OPTION = re.compile(rf"(?ai)(?<![\w-]){_OPTIONS}")
_ONLY_OPTION = re.compile(rf"(?ai){_OPTION_NAME}")
_OTHER_OPTION = re.compile(
    r"(?ai)--?(?:[a-z0-9]{1,20}[-_]){0,4}(?:(?:text|label|sort|group|column|field|data|dataset|image|audio|video|prompt"
    r"|input|output|target|primary|foreign|partition|cache|public)[-_]key"
    r"|(?:bos|eos|pad|unk|sep|cls|mask|image|audio|video|special|stop)[-_]token)(?![a-z0-9_-])"
)
"""Matches options of training scripts that name a column of the data or a token of a vocabulary. Their values
are not secrets."""
_YAML_BLOCK = re.compile(rf"[|>][+-]?[ \t]*\n{PREFIX}[ \t]+")
_OPENED = re.compile(r"(?a)[bBrRuU]{0,2}(\\*)([\"'`])")
_BARE = re.compile(r"(?a)(?:[^\s\"',;&<>)}\]\\]|\\[^\sA-Za-z0-9\"'\\])+")
_REST_OF_LINE = re.compile(r"[^\r\n\"']{1,4096}")
_SCHEME = re.compile(r"(?ai)(?:bearer|basic|token|apikey|negotiate|digest|aws4-hmac-sha256)[ \t]+")


def _pair(name: str) -> str:
    """Return a pattern for an environment variable in YAML or JSON: its name, and the text up to its
    value."""
    return (
        rf"name(?:\\*[\"'])?{_BLANK}[:=]{_BLANK}(?:\\*[\"'])?({name})(?:\\*[\"'])?,?"
        rf"(?:[ \t]*\n{PREFIX}[ \t]*|{_BLANK})(?:\\*[\"'])?value(?:\\*[\"'])?{_BLANK}[:=]{_BLANK}"
    )


_PAIR = re.compile("(?ai)" + _pair(r"[-.\w]{1,200}"))
"""Matches an environment variable in YAML or JSON, up to the beginning of its value."""

_BEFORE = r"(?<![A-Za-z0-9])"
_TOKENS = (
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,}|[sr]k_(?:live|test)_\w{16,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}"
    r"|gl(?:pat|dt|rt|ptt|cbt|soat|ft|imt|agent|oas)-[\w.-]{16,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}"
    r"|AIza[\w-]{30,}|ya29\.[\w-]{20,}|dckr_[po]at_[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,}|dop_v1_[0-9a-f]{32,}"
    r"|nvapi-[\w-]{20,}|r8_[A-Za-z0-9]{30,}|shp(?:at|ca|pa|ss)_[0-9a-f]{32}|AGE-SECRET-KEY-1[A-Z0-9]{50,}"
    r"|ATATT3[\w=-]{30,}|lin_api_\w{30,}|pul-[0-9a-f]{40}|hvs\.[\w-]{20,}|tskey-[\w-]{20,}|ml(?:pi|ps)_[\w.-]+"
)
_URLS = (
    r"://[^/\s:@\"]*:([^/\s\"]+)@",
    r"://[^/\s:@&\"]*:([^/\s@\"]+?)(?:&#64;|&#x40;|&commat;)",
    r"%2[fF]%2[fF][^%/\s:@\"]*(?:%3[aA]|:)([^/\s@\"]{1,256}?)(?:%40|@)",
    r"://([A-Za-z0-9_-]{20,})@",
    r"hooks\.slack\.com/services/([A-Za-z0-9/]{20,})",
    r"discord(?:app)?\.com/api/webhooks/[0-9]+/([\w-]{20,})",
    r"\.webhook\.office\.com/webhookb2/([\w@./-]{20,})",
    r"api\.telegram\.org/(?:file/)?bot([0-9]{6,}:[\w-]{30,})",
)
"""Patterns for URLs that contain a password, possibly with escape sequences, or that are themselves
secret."""
_ARGUMENTS = r"[^\r\n;|&]{0,200}?[ \t]"
_COMMANDS = (
    r"sshpass[ \t]+-p[ \t]*([^\s-]\S*)",
    rf"(?:docker|podman|nerdctl|skopeo|oras|registry)[ \t]+login[ \t]+(?:{_ARGUMENTS})??-p[ \t]+([^\s-]\S*)",
    rf"curl[ \t](?:{_ARGUMENTS})??(?:-u[ \t]*|--user[ \t=]+)[\"']?[^\s:\"']{{1,200}}:([^\s\"']+)",
    rf"redis-cli[ \t](?:{_ARGUMENTS})??-a[ \t]+([^\s-]\S*)",
    rf"mysql(?:dump|admin)?[ \t](?:{_ARGUMENTS})??-p([^\s-]\S*)",
    r"wandb[ \t]+login[ \t]+(?:--\w+[ \t]+){0,3}([0-9a-f]{40})",
    r"machine[ \t\r\n]+\S{1,200}[ \t\r\n]+login[ \t\r\n]+\S{1,200}[ \t\r\n]+password[ \t\r\n]+(\S+)",
)
"""Patterns for commands with a password as an argument, and for the entries of a .netrc file."""
_JWT = r"eyJ[\w-]{6,}\.[\w-]{6,}\.[\w.-]*"
_SHAPES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?a){_BEFORE}({_TOKENS})",
        rf"(?a)(?<![\w-])({_JWT})",
        r"(?ai)\b(?:bearer|basic)[ \t\r\n]+([A-Za-z0-9._~+/=-]{6,})",
        *(f"(?a){pattern}" for pattern in (*_URLS, *_COMMANDS)),
    )
)
_COMPACT = re.compile(r"(?a)[^\s\"'\\,}]{8}[^\s]*")
_MIXED = re.compile(r"(?=.*\d)(?=.*[A-Za-z])")
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_MAX = 20_000
"""The maximum number of characters in a private key, including line prefixes. A 16,384-bit key has 13,000
characters."""
_KEY_LINE = re.compile(
    rf"{FULL_LINE_END}{PREFIX}[ \t]*([A-Za-z0-9+/=]{{16,100}}|[A-Za-z0-9+/]{{2,15}}={{1,2}})"
    r"(?=[ \t]*(?:[\r\n\"'\\,]|$))"
)
"""Matches a line of a private key, for keys whose last line is missing."""

_NO_NUMBER = r"(?:[\"'`\\]*[0-9.,_+%-]*[^0-9.,_+%\s-]|[bru]{0,2}\\*[\"'`]+[0-9.,_+%-]+ )"
_SECRET_PAIR = _pair(rf"[-.\w]*(?:{_LAST}|{_ANYWHERE})[-.\w]*")
HINTS = (
    rf"(?i)(?:{_STRONG}){_SEPARATOR}[^ \t\r\n]|{_OPTIONS}[0-9.,_+%-]*[^0-9.,_+%\s-]"
    rf"|(?:[\w-](?:{_BARE_NAMES})|(?-i:{_BARE_NAMES.upper()})|{_WEAK}){_SEPARATOR}{_NO_NUMBER}"
    rf"|(?:{_BARE_NAMES}){_SEPARATOR}(?:[bru]{{0,2}}\\*[\"'`])?[^\s\"'\\,}}]{{8}}"
    rf"|(?:{_BARE_NAMES}){_SEPARATOR}[|>][+-]?[ \t]*\n"
    rf"|{_SECRET_PAIR}[\"'`\\]*[^*\s\"'\\]"
    rf"|(?:bearer|basic)[ \t\r\n]+[A-Za-z0-9._~+/=-]{{6}}|{'|'.join((*_URLS, *_COMMANDS))}"
    rf"|(?-i:{_JWT}|{_TOKENS}|-----BEGIN [A-Z0-9 ]{{0,40}}PRIVATE KEY)"
)
"""An RE2 pattern that matches every string in which `spans` finds a secret, and some strings that contain
none."""


def spans(text: str) -> list[Span]:
    """Return a (start, end) pair for each secret that the rules find in a string. Frames, which ranks write
    for the harness, are left out.
    """
    secret_spans = [*_named(text), *_shaped(text), *_private_keys(text)]
    return without(secret_spans, frames(text)) if secret_spans else []


def frames(text: str) -> list[Span]:
    """Return a (start, end) pair for each frame in a string. Ranks write frames for the harness."""
    return [match.span() for match in _FRAME.finditer(text)] if "@" in text else []


def without(secret_spans: Iterable[Span], excluded: list[Span]) -> list[Span]:
    """Return the parts of the spans in `secret_spans` that are outside the spans in `excluded`.

    The spans in `excluded` must be in order.
    """
    parts, first = [], 0
    for start, end in merged(secret_spans):
        while first < len(excluded) and excluded[first][1] <= start:
            first += 1
        at, low = first, start
        while at < len(excluded) and excluded[at][0] < end:
            if low < excluded[at][0]:
                parts.append((low, excluded[at][0]))
            low, at = excluded[at][1], at + 1
        if low < end:
            parts.append((low, end))
    return parts


def masked(text: str, secret_spans: Iterable[Span]) -> str:
    """Return the text with each span replaced by ***. In a span of several lines, each line is replaced
    separately, and line prefixes and line endings are kept."""
    parts, at = [], 0
    for start, end in merged(secret_spans):
        low = start
        for joint in (*_JOINT.finditer(text, start, end), None):
            high = end if joint is None else joint.start()
            if high > low:
                parts += [text[at:low], MASK]
                at = high
            low = end if joint is None else joint.end()
    return "".join([*parts, text[at:]]) if parts else text


def merged(secret_spans: Iterable[Span]) -> list[Span]:
    """Return the spans in the order of the text. Spans that overlap are merged."""
    result: list[Span] = []
    for start, end in sorted(secret_spans):
        if result and start < result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        elif start < end:
            result.append((start, end))
    return result


def _named(text: str) -> Iterator[Span]:
    at = 0
    while (match := _NAMED.search(text, at)) is not None:
        at, end = match.end(), match.end(1)
        if not text[max(0, end - 13) : end].lower().endswith(_TAILS):
            continue
        name = _END.match(text, max(0, end - _LONGEST_NAME, match.start() - _BEFORE_NAME), end)
        if name is None:
            continue
        strong, word = name[1] is not None, (name[1] or name[2]).lower()
        place = _header(text, at, word) or _value(text, at)
        if place is not None and _is_value(text, name.start(1 if strong else 2), word, strong, place):
            yield place
            at = place[1]
    for match in _OPTION.finditer(text):
        place = _value(text, match.end())
        if place is not None and argument(re.split(r"[ \t\r\n\\\"',]", match[0])[0], text[slice(*place)]):
            yield place
    for match in _PAIR.finditer(text):
        place = _value(text, match.end())
        if place is not None and is_secret_name(match[1]) and text[slice(*place)] not in ("", MASK):
            yield place


def _value(text: str, at: int) -> Span | None:
    """Return the span of the value that begins at a position: the content of a quoted string, or a word."""
    block = _YAML_BLOCK.match(text, at)
    at = block.end() if block else at
    quote_match = _OPENED.match(text, at)
    if quote_match is None:
        word = _BARE.match(text, at)
        return word.span() if word else None
    if slashes := len(quote_match[1]):
        end = re.compile(rf"(?<!\\)\\{{{slashes}}}{quote_match[2]}|[\r\n]").search(text, quote_match.end())
        return quote_match.end(), end.start() if end else len(text)
    plain = rf"[^{quote_match[2]}\\\r\n]*"
    content = re.compile(rf"{plain}(?:\\.{plain})*").match(text, quote_match.end())
    return (quote_match.end(), content.end()) if content else None


def _header(text: str, at: int, name: str) -> Span | None:
    """Return the span of the credentials in an Authorization or Cookie header at the position, or None.

    The credentials extend to the end of the line or string. For some authentication schemes, the credentials
    are only the next word.
    """
    if name not in ("authorization", "cookie"):
        return None
    quote_match = _OPENED.match(text, at)
    start = quote_match.end() if quote_match else at
    scheme = _SCHEME.match(text, start)
    if name == "authorization":
        if scheme is None:
            return None
        start = scheme.end()
        if scheme[0][0] in "bBtTnN" or scheme[0][:2].lower() == "ap":
            word = _BARE.match(text, start)
            return word.span() if word else None
    elif text.startswith(_REFERENCES, start):
        return None
    rest = _REST_OF_LINE.match(text, start)
    return rest.span() if rest else None


def argument(option: object, value: object) -> bool:
    """Return whether the argument `value`, which follows `option` in a command line, is a secret."""
    if not (isinstance(option, str) and isinstance(value, str)) or not _ONLY_OPTION.fullmatch(option):
        return False
    if option.lstrip("-").lower() == "secret" and _SECRET_OBJECT.fullmatch(value.rstrip("`:.,;)")):
        return False
    return _is_argument(value) and not _OTHER_OPTION.match(option)


def _is_argument(value: str) -> bool:
    return not value.startswith("-") and not _harmless(value)


def _harmless(value: str) -> bool:
    """Return whether a value cannot be a secret because it is a number, literal, reference, placeholder or
    code."""
    if not value or value.startswith(_REFERENCES):
        return True
    patterns = _NUMBER, _LITERAL, _PLACEHOLDER
    return any(pattern.fullmatch(value) for pattern in patterns) or _CODE.match(value) is not None


def _is_value(text: str, start: int, name: str, strong: bool, place: Span) -> bool:
    """Return whether the value at `place`, which follows a name, is a secret.

    `start` is the position of the name's last word.
    """
    value, quoted = text[slice(*place)], text[place[0] - 1] in "\"'`"
    before = text[max(0, start - 24) : start]
    if _PLACEHOLDER.fullmatch(value) or _is_object(before + name, value):
        return False
    if strong and (quoted or (_NUMBER.fullmatch(value) and _DIGIT.search(value))):
        return value not in ("", MASK) and not value.startswith(_REFERENCES)
    if _harmless(value) or (name == "token" and _VOCABULARY.search(before)):
        return False
    header = name in ("dsn", "cookie", "authorization", "jwt")
    last, upper = before[-1:], text[start : start + len(name)].isupper()
    specific = strong or upper or header or last.isalnum() or last in ("_", "-") or not name[0].isalpha()
    if not quoted and not upper and _WORD.fullmatch(value) and (is_secret_name(value) or not specific):
        return False  # This is code such as `api_key=api_key`, or a sentence such as "Unexpected token: end".
    if specific:
        return not (name.endswith("pwd") and value.startswith("/"))
    return _COMPACT.fullmatch(value) is not None and (len(value) >= 20 or bool(_MIXED.match(value)))


def _is_object(name: str, value: str) -> bool:
    """Return whether a value is the name of a Kubernetes Secret, according to the setting's name and the
    value's form."""
    return bool(_PULL_SECRET.search(name) and _OBJECT.fullmatch(value.rstrip("`:.;)")))


def _shaped(text: str) -> Iterator[Span]:
    for pattern in _SHAPES:
        for match in pattern.finditer(text):
            value = match[1]
            if value.startswith(("sk-", "pypi-")) and not _MIXED.match(value[5:]):
                continue  # The value consists of hyphenated words.
            if value != MASK and not value.startswith(("${", "$(", "{{")):
                yield match.span(1)


def _private_keys(text: str) -> Iterator[Span]:
    """Yield the spans of private keys, without their first and last lines.

    If a key's last line is missing, yield each following line that looks like part of a key.
    """
    end: int | None = None
    begin = _KEY_BEGIN.search(text)
    while begin is not None:
        at = begin.end()
        if end is None or 0 <= end < at:
            closing = _KEY_END.search(text, at)
            end = closing.start() if closing else -1
        if 0 <= end - at <= _KEY_MAX:
            yield at, end
            begin = _KEY_BEGIN.search(text, end)
            continue
        begin = _KEY_BEGIN.search(text, at)
        limit = at + _KEY_MAX if begin is None else min(begin.start(), at + _KEY_MAX)
        for line in _KEY_LINE.finditer(text, at, limit):
            yield line.span(1)
