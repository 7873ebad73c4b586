"""A known secret cannot be read from redacted text, however it was encoded, composed and split."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from urllib.parse import quote, quote_plus, unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.evidence import Redactor
from harness.evidence.io.files import Appender, LogFile
from harness.workers.ground_truth import truth_frames
from harness.workers.netcheck import frames

SECRET = 's3cr/et+k"ey=äöü&x'
STAMP = "2026-11-28T14:10:11.123456789Z "
PREFIXES = (
    "",
    STAMP,
    f"{STAMP}[rank0]: ",
    f"{STAMP}stdout F ",
    "[default3]:",
    "2026-11-28 14:10:11,123 INFO ",
)


QUOTES: dict[str, Callable[[str], str]] = {
    "plain": str,
    "url": lambda text: quote(text, safe=""),
    "url, spaces as +": quote_plus,
    "url, lower case": lambda text: re.sub("%..", lambda match: match[0].lower(), quote(text, safe="")),
    "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON, UTF-8": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "JSON of a web framework": lambda text: (
        json.dumps(text)[1:-1].replace("&", "\\u0026").replace("<", "\\u003c").replace("/", "\\/")
    ),
    "HTML": html.escape,
    "Python": lambda text: repr(text)[1:-1],
    "Python, bytes": lambda text: repr(text.encode())[2:-1],
    "shell": shlex.quote,
    "shell, backslashes": lambda text: re.sub(r"([^\w])", r"\\\1", text),
}
ESCAPES = {
    **QUOTES,
    "url, every byte": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "JSON, every character": lambda text: re.sub(
        "....", lambda match: f"\\u{match[0].upper()}", text.encode("utf-16-be").hex()
    ),
    "HTML, decimal": lambda text: "".join(f"&#{ord(character)};" for character in text),
    "HTML, hex": lambda text: "".join(f"&#x{ord(character):X};" for character in text),
    "Python, every byte": lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode()),
}
ENCODINGS: dict[str, Callable[[bytes], str]] = {
    "base64": lambda raw: base64.b64encode(raw).decode(),
    "base64 without =": lambda raw: base64.b64encode(raw).decode().rstrip("="),
    "base64url": lambda raw: base64.urlsafe_b64encode(raw).decode(),
    "hex": bytes.hex,
    "HEX": lambda raw: raw.hex().upper(),
}


def decodings(text: str) -> Iterator[str]:
    """Yield what each decoder makes of a text, or of a part of it."""
    yield unquote(text)
    yield html.unescape(text)
    yield re.sub(
        r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})|\\(.)",
        lambda match: chr(int(match[1] or match[2], 16)) if match[1] or match[2] else match[3],
        text,
    )
    yield text.replace("'\\''", "'").replace("'\"'\"'", "'")
    for run in re.findall(r"[A-Za-z0-9+/_-]{10,}", text):
        for skipped in range(4):
            part = run[skipped:].replace("-", "+").replace("_", "/")
            part = part[: len(part) - 1] if len(part) % 4 == 1 else part
            yield base64.b64decode(part + "=" * (-len(part) % 4)).decode(errors="replace")
    for run in re.findall(r"[0-9a-fA-F]{16,}", text):
        for skipped in range(2):
            part = run[skipped:]
            yield bytes.fromhex(part[: len(part) // 2 * 2]).decode(errors="replace")


def readings(text: str) -> set[str]:
    """Return what a patient reader can make of a text: every decoding of it, and of the decodings."""
    known, new = {text}, {text}
    for _ in range(4):
        new = {each for one in new if len(one) >= 8 for each in decodings(one)} - known
        known |= new
        if len(known) > 200:
            break
    return known


CHARACTERS = st.characters(min_codepoint=33, max_codepoint=126)
WORDS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
SECRETS = st.one_of(
    st.text(CHARACTERS, min_size=8, max_size=48),
    st.text(st.sampled_from(WORDS), min_size=8, max_size=80),
    st.text(st.sampled_from("aB3 +/=\"'\\&<>%$äö€😀"), min_size=8, max_size=24).filter(
        lambda text: text == text.strip()
    ),
)
SURROUNDINGS = st.binary(max_size=4)


@st.composite
def encoded(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a secret, and a text that has it in a composition of encodings."""
    secret = draw(SECRETS)
    text = draw(st.sampled_from(list(QUOTES.values())))(secret) if draw(st.booleans()) else secret
    for _ in range(draw(st.integers(0, 2)) if text == secret else draw(st.integers(0, 1))):
        before, after = draw(SURROUNDINGS), draw(SURROUNDINGS)
        text = draw(st.sampled_from(list(ENCODINGS.values())))(before + text.encode() + after)
    for _ in range(draw(st.integers(0, 2))):
        text = draw(st.sampled_from(list(ESCAPES.values())))(text)
    return secret, text


@given(encoded(), st.lists(st.integers(1, 200), max_size=2), st.sampled_from(PREFIXES))
def test_no_reading_of_a_redacted_text_has_the_secret(case, cuts, prefix):
    """Contract: whatever encodings are composed, and wherever the text is split over lines."""
    secret, text = case
    ends = sorted({cut for cut in cuts if cut < len(text)})
    parts = [text[low:high] for low, high in zip([0, *ends], [*ends, None], strict=True)]
    joint = f"\n{prefix}"
    redacted = Redactor([secret]).text(f"{prefix}before {joint.join(parts)} after{joint}end\n")
    assert redacted.startswith(f"{prefix}before ")
    assert redacted.endswith(f" after{joint}end\n") or "***" in redacted
    joined = redacted.replace(joint, "")
    assert [reading for reading in readings(joined) if secret in reading] == []


@given(encoded(), st.lists(st.integers(1, 300), max_size=4), st.sampled_from(PREFIXES), st.booleans())
@example(("00000\\<>", r"00000\\\u003c>"), [], "", False)
def test_no_reading_of_a_streamed_log_has_the_secret(tmp_path_factory, case, cuts, prefix, lines):
    """Contract: also if the chunks of the stream split it, and if each chunk is a line of its own."""
    secret, text = case
    joint = f"\n{prefix}"
    whole = f"{prefix}before {text} after\n" if not lines else f"{prefix}before {text}"
    ends = sorted({cut for cut in cuts if cut < len(whole)})
    chunks = [whole[low:high] for low, high in zip([0, *ends], [*ends, None], strict=True)]
    if lines:
        chunks = [f"{chunk}\n{prefix}" for chunk in chunks]
    path = tmp_path_factory.mktemp("log") / "c.log"
    with LogFile(Appender(path), Redactor([secret])) as log:
        written = "".join(log.write(chunk) for chunk in chunks)
    redacted = path.read_text()
    assert redacted.startswith(written)
    assert redacted.count("\n") == "".join(chunks).count("\n") + (1 if lines and prefix else 0)
    assert [reading for reading in readings(redacted.replace(joint, "")) if secret in reading] == []


COLUMNS = st.sampled_from([64, 76])
CUT_INSIDE = base64.b64encode(base64.encodebytes(b"x" * 48 + b"G9cRcwzHDj2VVyna and more")).decode()
"""The first encoding is wrapped in the middle of the secret."""


@st.composite
def encoded_twice(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a secret, and a document with it that was encoded, wrapped or split, and encoded again."""
    secret = draw(SECRETS)
    before, after = draw(st.binary(max_size=100)), draw(st.binary(max_size=40))
    text = draw(st.sampled_from(list(ENCODINGS.values())))(before + secret.encode() + after)
    end = draw(st.sampled_from(["\n", "\r\n"]))
    if draw(st.booleans()):
        text = wrapped(text, draw(COLUMNS), end)
    else:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + end + text[at:]
    return secret, draw(st.sampled_from(list(ENCODINGS.values())))(text.encode() + b"\n")


@given(
    encoded_twice(),
    COLUMNS | st.lists(st.integers(1, 400), max_size=1),
    st.sampled_from(PREFIXES),
    st.booleans(),
)
@example(("G9cRcwzHDj2VVyna", CUT_INSIDE), [], "", False)
@example(("G9cRcwzHDj2VVyna", CUT_INSIDE), 64, PREFIXES[2], True)
def test_document_encoded_twice_has_no_secret(case, cuts, prefix, streamed):
    """Contract: wherever the first encoding and the second one are wrapped or split over lines."""
    secret, text = case
    joint = f"\n{prefix}"
    if isinstance(cuts, list):
        text = "".join(
            part + joint * (part != text[cut:]) for cut in cuts for part in (text[:cut], text[cut:])
        )
    else:
        text = wrapped(text, cuts, joint)
    whole = f"{prefix}before {text}{joint}end\n"
    stream = Redactor([secret]).stream()
    lines = [stream.feed(line) for line in whole.splitlines(keepends=True)] if streamed else []
    redacted = "".join([*lines, stream.flush()]) if streamed else Redactor([secret]).text(whole)
    assert redacted.startswith(f"{prefix}before ")
    assert redacted.endswith(f"{joint}end\n")
    known = {re.sub(r"\s", "", each) for each in readings(redacted.replace(joint, ""))}
    assert not any(secret in reading for each in known for reading in readings(each))


def wrapped(text: str, columns: int, joint: str) -> str:
    return joint.join(text[at : at + columns] for at in range(0, len(text), columns))


@pytest.mark.parametrize("columns", [16, 64, 76])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_document_in_wrapped_base64_shows_no_part_of_secret(columns: int, prefix: str) -> None:
    """Contract: a kubeconfig in base64, also in base64 again, is masked line by line. The rest stays."""
    secret = "hV7kQ2mZ9xW4tB8nL3pR6sD1fG5jC0yA" * 3
    document = f"apiVersion: v1\nusers: [{{name: u, user: {{x: {secret}}}}}]\ncontexts: []\n".encode()
    once = base64.b64encode(document)
    for encoded in (once, base64.b64encode(once), base64.b64encode(base64.encodebytes(document))):
        joint = f"\n{prefix}"
        text = f"{prefix}before\n{prefix}{wrapped(encoded.decode(), columns, joint)}\n{prefix}after\n"
        redacted = Redactor([secret]).text(text)
        assert redacted.count("\n") == text.count("\n")
        assert redacted.startswith(f"{prefix}before\n{prefix}{encoded.decode()[:8]}")
        assert redacted.endswith(f"\n{prefix}after\n")
        read = readings(redacted.replace(f"\n{prefix}", ""))
        assert not any(secret[at : at + 12] in each for each in read for at in range(len(secret) - 12))


def test_multiline_secret_is_found_whole_and_on_one_line() -> None:
    """Contract: as `set -x`, repr and a pretty printer show it. Its braces and short lines are no secrets.

    Public reports: actions/runner #326, #161 and #2232, buildkite/agent #3233, buildbot #4793.
    """
    secret = json.dumps(
        {"type": "service_account", "private_key_id": "f871b60d0617be19393b", "x": {}}, indent=2
    )
    redactor = Redactor([secret])
    for text in (secret, secret.replace("\n", " "), repr(secret)[1:-1], secret.replace("\n", f"\n{STAMP}")):
        assert "f871b60d0617be19393b" not in redactor.text(f"echo {text} end")
    ordinary = '{\n  "loss": {}\n}\n'
    assert redactor.text(ordinary) == ordinary


@pytest.mark.parametrize(
    ("secret", "text", "report"),
    [
        ("1234abcd", "MTIzNGFiY2QK", "actions/runner #291: base64 of the secret and a line end"),
        ("foo'bar-baz", "+ echo 'foo'\\''bar-baz'", "JENKINS-42950: quoted by bash -x"),
        ("p@ss/w:rd&1", "https://u:p%40ss%2fw%3ard%261@host/x", "SAP/jenkins-library #2284: in a URL"),
        ("hunter2-hunter2", "hunter2-\nhunter2", "buildbuddy #10386: split by a chunk or line"),
        (
            "tiny<secret>&x",
            "tiny\\u003csecret\\u003e\\u0026x",
            "JSON of Go programs such as kubectl and Argo",
        ),
        ("pa$$w0rd-1", 'sh -c "pa\\$\\$w0rd-1"', "quoted in double quotes by a shell"),
        (
            "s3cr3t-value-1",
            "c3 s3cr3t-value-1-and-more s3cr3t-value",
            "buildkite/agent #3588: prefix of a longer one",
        ),
    ],
)
def test_inputs_of_public_reports(secret: str, text: str, report: str) -> None:
    """Contract: what other redactors missed, by their public reports."""
    redacted = Redactor([secret, secret[:-2]] if "3588" in report else [secret]).text(text)
    assert "***" in redacted
    assert not any(secret in reading for reading in readings(redacted.replace("\n", "")))


def test_short_secrets_do_not_garble_the_log() -> None:
    """Contract: a secret of up to three characters is ignored (credentials-binding-plugin #284). One of up to
    seven is replaced as it is and in plain base64, but not in a frame (config-file-provider-plugin #296)."""
    frame = truth_frames.encode("n", {"k": "start", "r": 0, "a": "x", "q": 0})
    part = frame.split()[1][4:9]
    redactor = Redactor(["a", "dev1", part])
    assert redactor.text(f"a dev1 elopment {part}\n{frame}\n") == f"a *** elopment ***\n{frame}\n"


ROWS = st.lists(
    st.tuples(st.text(min_size=1, max_size=12), st.integers(0, 99), st.floats(allow_nan=False)), max_size=20
)


@given(SECRETS, ROWS, st.integers(0, 2**64))
def test_frames_stay_unless_they_have_the_secret(
    secret: str, rows: list[tuple[str, int, float]], nonce: int
) -> None:
    """Contract: a frame is evidence. It is changed only if its payload has a known secret."""
    payload = {"k": "rows", "r": 0, "a": "x", "q": 0, "n": 0, "rows": [[*row, 1] for row in rows]}
    if any(secret in row[0] for row in rows) or secret in json.dumps(payload):
        return
    lines = [truth_frames.encode(str(nonce), payload), *frames.encode(str(nonce), payload)]
    text = "".join(f"{STAMP}{line}\n" for line in lines)
    assert Redactor([secret]).text(text) == text
    payload["rows"] = [[f"loss/{secret}", 0, 0.5, 1]]
    line = truth_frames.encode(str(nonce), payload)
    assert not any(secret in reading for reading in readings(Redactor([secret]).text(line)))


ORDINARY = st.lists(
    st.sampled_from(
        [
            "step 10 loss 1.234 tokens/s: 1,234.5 max_tokens=8\n",
            '{"token_count": 5, "secret_santa_loss": 0.5, "path": "a\\/b", "text": "\\u00e4\\n"}\n',
            "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\n",
            "commit e47b8da2c0ffee00112233445566778899aabbcc\n",
            "123e4567-e89b-12d3-a456-426614174000\n",
            '  File "/workspace/train.py", line 10, in <module>\n',
            " 45%|████▌     | 450/1000 [00:10<00:12, 44.1it/s]\r",
            "GET /a%20b?x=1&y=2 &amp; &#38; 200\n",
            STAMP,
            "done\n",
            "}\n",
            "aGVsbG8gd29ybGQsIHRoaXMgaXMgYmFzZTY0IHRleHQ=\n",
        ]
    ),
    max_size=40,
)


@given(
    st.lists(st.text(st.sampled_from(WORDS), min_size=12, max_size=48), max_size=3),
    ORDINARY,
    st.integers(1, 50),
)
def test_texts_without_a_secret_stay_byte_for_byte(secrets: list[str], lines: list[str], size: int) -> None:
    """Contract: whatever the secrets are, also in a stream of any chunks."""
    text = "".join(lines)
    if any(secret in reading for secret in secrets for reading in readings(text)):
        return
    redactor = Redactor([secret for secret in secrets if len(set(secret)) > 4])
    assert redactor.text(text) == text
    stream = redactor.stream()
    parts = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
    assert "".join([*parts, stream.flush()]) == text


@pytest.mark.parametrize(
    "unit",
    [
        "hV7kQ2mZ9xW4\n",
        "hV7kQ2mZ",
        "%68V7kQ2mZ9xW4",
        "\\u0068V7\n",
        "x hV7kQ2mZ9xW4 x\n",
        "\\",
        "\\\n",
        "\\x",
        "' ",
        "%9",
    ],
)
def test_time_is_linear(unit: str) -> None:
    """Contract: ten times as much text takes ten times as long, in a text and in a stream, also if
    every line has a part of a secret."""
    redactor = Redactor(["hV7kQ2mZ9xW4", "hV7k" * 12])

    def seconds(count: int) -> float:
        text = "%20 " + unit * count
        start = time.process_time()
        redactor.text(text)
        stream = redactor.stream()
        for at in range(0, len(text), 4096):
            stream.feed(text[at : at + 4096])
        stream.flush()
        return time.process_time() - start

    seconds(10)
    small = min(seconds(500) for _ in range(3))
    assert seconds(10_000) < 100 * small + 0.5


@pytest.mark.parametrize("size", [1, 7, 64, 1000, 100_000])
def test_a_private_key_is_masked_in_a_stream(size: int) -> None:
    """Contract: whatever the chunks are. A frame between the lines of the key stays."""
    frame = truth_frames.encode("n", {"k": "start", "r": 0, "a": "x", "q": 0})
    body = [base64.b64encode(bytes([number]) * 48).decode() for number in range(60)]
    lines = [
        "before",
        "-----BEGIN PRIVATE KEY-----",
        *body,
        frame,
        *body,
        "-----END PRIVATE KEY-----",
        "after",
    ]
    text = "".join(f"{STAMP}{line}\n" for line in lines)
    stream = Redactor(["another-secret"]).stream()
    parts = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
    redacted = "".join([*parts, stream.flush()])
    expected = [line if line not in body else "***" for line in lines]
    assert redacted == "".join(f"{STAMP}{line}\n" for line in expected)


def test_lines_are_written_immediately_unless_secret_may_begin() -> None:
    """Contract: the last lines of a rank that hangs are in its log. Only what can begin a secret waits."""
    stream = Redactor(["hV7kQ2mZ9xW4"]).stream()
    assert stream.feed(f"{STAMP}step 1 loss 2.5\n") == f"{STAMP}step 1 loss 2.5\n"
    assert stream.feed(f"{STAMP}waiting for hV7kQ2\n") == f"{STAMP}waiting for "
    assert stream.feed(f"{STAMP}mZ9xW4 and more\n") == f"***\n{STAMP}*** and more\n"
    assert stream.feed(f"{STAMP}waiting for hV7kQ2\n") == f"{STAMP}waiting for "
    assert stream.feed(f"{STAMP}step 2\n") == f"hV7kQ2\n{STAMP}step 2\n"


@pytest.mark.parametrize(
    ("secret", "text", "gone", "kept", "report"),
    [
        (
            "1234abcd",
            "MTIzNGFiY2QK eDEyMzRhYmNkCmZvbw==",
            ["MTIzNGFi", "EyMzRhYmNk"],
            ["CmZvbw=="],
            "actions/runner#291",
        ),
        ("{\n}\n", "map { x } e fQ== ew==", [], ["map { x } e fQ== ew=="], "actions/runner#326"),
        (
            '{"hosts": [{"name": "vps-1", "key": "-----BEGIN OPENSSH PRIVATE KEY-----\\nb3BlbnNzaC1rZXktdjEA'
            '\\n-----END OPENSSH PRIVATE KEY-----\\n"}]}',
            "client-0 2026-06-04 vps-1 --> b3BlbnNzaC1rZXktdjEA",
            ["b3BlbnNzaC1rZXktdjEA"],
            ["client-0 2026-06-04 vps-1 --> "],
            "stardew-valley-dedicated-server/server#354",
        ),
        ("hunter2", "hunter2 aHVudGVyMg==", ["hunter2", "aHVudGVyMg"], [], "thomhurst/ModularPipelines#2994"),
        (
            "s3cr3tV@lue/+x",
            "eyJwIjoiczNjcjN0VkBsdWUvK3gifQ==",
            ["czNjcjN0VkBsdWUvK3"],
            ["eyJwIjoi"],
            "SAP/jenkins-library#3908",
        ),
        (
            "USER=robot\nPASSWORD=pa55-Word-77\n",
            "login pa55-Word-77 ok",
            ["pa55-Word-77"],
            ["login "],
            "found here",
        ),
        (
            '{"auths": {"r": {"username": "robot", "password": "pa55-Word-77"}}}',
            "login pa55-Word-77 of robot",
            ["pa55-Word-77"],
            ["robot"],
            "a pull Secret",
        ),
    ],
)
def test_secrets_that_other_redactors_missed(
    secret: str, text: str, gone: list[str], kept: list[str], report: str
) -> None:
    """Contract: a secret in a document, or encoded with other text, is redacted; ordinary text is not."""
    redacted = Redactor([secret]).text(text)
    assert not [part for part in gone if part in redacted], report
    assert not [part for part in kept if part not in redacted], report
