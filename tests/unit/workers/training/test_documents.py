"""Texts as people have them: encodings, compression, shards, and files that are none."""

from __future__ import annotations

import gzip
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.workers.training import documents

TEXTS = ["ab", "é \u2028 \x00 𝄞", ""]
LINES = "".join(f"{json.dumps({'text': text}, ensure_ascii=False)}\n" for text in TEXTS)
PLAIN = LINES.encode()


def gz(content: bytes) -> bytes:
    """Compress without the time, so that the names of the tests stay the same."""
    return gzip.compress(content, mtime=0)


def read(*paths: Path, field: str = "text") -> list[str]:
    return list(documents.documents(paths, field))


def problems(*paths: Path) -> list[str]:
    return [f"{each}" for each in documents.checked(paths, "text") if isinstance(each, ValueError)]


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        b"\xef\xbb\xbf" + PLAIN,
        PLAIN.replace(b"\n", b"\r\n"),
        b"\n \r\n" + PLAIN.replace(b"\n", b"\n\n\t\n"),
        PLAIN.removesuffix(b"\n"),
        LINES.encode("utf-16"),
        LINES.encode("utf-16-le"),
        LINES.encode("utf-16-be"),
        b"\xfe\xff" + LINES.encode("utf-16-be"),
        LINES.replace("\n", "\r\n").encode("utf-16"),
        LINES.encode("utf-32"),
        LINES.encode("utf-32-be"),
        gz(PLAIN),
        gz(PLAIN[:20]) + gz(PLAIN[20:]),
        b"".join(b"\xef\xbb\xbf" + line for line in PLAIN.splitlines(True)),
        b"".join(gz(b"\xef\xbb\xbf" + line) for line in PLAIN.splitlines(True)) + gz(b"\xef\xbb\xbf"),
        b"".join(f"{line}\n".encode("utf-16") for line in LINES.split("\n")),
        gz(LINES.encode("utf-16")),
        json.dumps({"text": TEXTS[0], "n": int("9" * 4300)}).encode()[:-1]
        + b"9}\n"
        + b"".join(PLAIN.splitlines(True)[1:]),
    ],
)
def test_the_content_decides_how_a_file_is_read(content: bytes, tmp_path: Path) -> None:
    """Contract: byte order marks, line ends, encodings with a mark or without, gzip, whatever the name is."""
    path = tmp_path / "train.jsonl"
    path.write_bytes(content)
    assert read(path) == TEXTS


def zstd(content: bytes) -> bytes:
    """Return compressed content, by Python 3.14 or zstandard."""
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.compress(content)
    return pytest.importorskip("zstandard").ZstdCompressor().compress(content)


def test_zstd_is_read_over_several_frames(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl.zst"
    path.write_bytes(zstd(PLAIN[:20]) + zstd(PLAIN[20:] + PLAIN * 3000))
    assert read(path) == TEXTS * 3001


def test_zstd_frames_without_data_are_skipped(tmp_path: Path) -> None:
    """Contract: pzstd writes one before the data, and the seekable format one after it."""
    path = tmp_path / "train.jsonl.zst"
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"
    path.write_bytes(skippable + zstd(PLAIN) + skippable + zstd(PLAIN) + skippable)
    assert read(path) == TEXTS * 2


def test_zstd_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl.zst"
    path.write_bytes(zstd(PLAIN)[:-3])
    assert "compressed data is damaged or cut off after line" in problems(path)[0]


def test_zstd_without_a_module_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    path = tmp_path / "train.jsonl.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd rest")
    assert problems(path) == [
        f"{path}: compressed by zstd, which this Python cannot read: run `pip install zstandard`, "
        "or decompress the file with `zstd -d`"
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"text": "caf\xe9"}\n',
            ":1: UTF-8 is expected, but byte 0xe9 at offset 13 is not valid UTF-8; `iconv -f LATIN1",
        ),
        (
            b'{"text": "caf\xe9"}',
            ":1: UTF-8 is expected, but byte 0xe9 at offset 13 is not valid UTF-8; `iconv -f LATIN1",
        ),
        (LINES.encode("utf-16") + b"\x00", ":4: UTF-16 is expected, as in the first line"),
        (gz(PLAIN * 99)[:-9], "the compressed data is damaged or cut off after line"),
        (gz(PLAIN)[:-8] + b"\x00" * 8, "the compressed data is damaged or cut off after line"),
        (gz(PLAIN)[:12] + b"\xff\xff\xff", "the compressed data is damaged or cut off after line"),
        (
            b"PK\x03\x04...",
            "JSON Lines are expected, plain or compressed by gzip or zstd; found a zip archive",
        ),
        (b"PAR1....", "found a Parquet file"),
        (b"BZh91AY", "found compressed by bzip2"),
        (
            b'[\n{"text": "a"},\n{"text": "b"}\n]\n',
            ":1: one JSON object per line is expected, not an array",
        ),
        (b'[{"text": "a"}, {"text": "b"}]\n', ":1: one JSON object per line is expected, not an array"),
        (
            b'{\n  "text": "a"\n}\n',
            ":1: one JSON object per line is expected, not an array (convert it with",
        ),
        (b'text\n"a"\n', ":1: one JSON object per line is expected; found 'text'"),
        (b"\x00\x00\x00\x18ftyp", ":1: one JSON object per line is expected; found"),
        (b'{"text": null}\n', ':1: "text" must be a string; found null'),
        (b'{"text": ["a"]}\n', ':1: "text" must be a string; found an array'),
        (b'{"text": {"a": 1}}\n', ':1: "text" must be a string; found an object'),
        (b'{"text": true}\n', ':1: "text" must be a string; found a boolean'),
        (
            b'{"content": "a"}\n',
            ':1: the key "text" is expected; the object has "content". Use --text-field to read another',
        ),
        (b'{"text": "\\ud83d"}\n', ':1: "text" has \\ud83d, half of a surrogate pair, which is not text'),
        (b'{"text": "a"}\n{"text": "b"}{"text": "c"}\n', ":2: one JSON object per line is expected; found"),
        (
            b'{"text": "a\tb"}\n',
            " (column 12: a tab or another control character must be escaped, as in \\t)",
        ),
        (b'{"text": "a"},\n{"text": "b"}\n', "(column 14: the line continues after the object)"),
        (b"{'text': 'a'}\n", "(column 2: Expecting property name enclosed in double quotes)"),
        (b'{"text": "abc", "m": {"a": 1}', ":1: the last line is cut off; found"),
        (
            PLAIN + bytes(5000),
            ":4: one JSON object per line is expected; found 5000 NUL characters, as after",
        ),
        (bytes(5000) + PLAIN, ":1: one JSON object per line is expected; found 5000 NUL characters"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
            "found a Git LFS pointer, which `git",
        ),
        (b"<!DOCTYPE html>\n<html></html>\n", "found an HTML page"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "found an XML document"),
        (b"\x04\x22\x4d\x18abc", "found compressed by lz4"),
        (gz(gz(PLAIN)), "found data that was compressed twice"),
        (gz(b"train.jsonl".ljust(257, b"\0") + b"ustar\x0000"), "found a tar archive"),
        (b'{"text": "a"}\r{"text": "b"}\r', ":1: one JSON object per line is expected; found"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    """Contract: the file, the line, what was expected and what was found."""
    path = tmp_path / "train.jsonl"
    path.write_bytes(content)
    found = problems(path)
    assert found[0].startswith(f"{path}:")
    assert message in found[0]
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the message is compared
        read(path)
    assert f"{raised.value}" == found[0]


def test_a_text_is_not_taken_for_a_tar_archive(tmp_path: Path) -> None:
    """Contract: whatever stands at the place of tar's magic number."""
    path = tmp_path / "train.jsonl"
    text = "a" * 247 + "ustard"
    path.write_text(json.dumps({"text": text}))
    assert path.read_bytes()[257:262] == b"ustar"
    assert read(path) == [text]


def test_all_wrong_lines_are_found(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"text": "a"}\nx\n{"text": "b"}\n{"text": null}\n')
    assert [each.partition(": ")[0] for each in problems(path)] == [f"{path}:2", f"{path}:4"]


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_LINE", 1000)
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"text": "a" * 1000}))
    assert "found a line of more than 1000 bytes" in problems(path)[0]


# -- files -----------------------------------------------------------------------------------------------
def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(gz(PLAIN) if name.endswith(".gz") else PLAIN)


@pytest.mark.parametrize(
    ("there", "used"),
    [
        (["train.jsonl"], ["train.jsonl"]),
        (["train.jsonl.gz"], ["train.jsonl.gz"]),
        (["train/b.jsonl", "train/a.jsonl.gz"], ["train/a.jsonl.gz", "train/b.jsonl"]),
        (
            ["train.jsonl/part-00000.json", "train.jsonl/_SUCCESS", "train.jsonl/.x.crc"],
            ["train.jsonl/part-00000.json"],
        ),
        (["train-0.jsonl", "train-1.jsonl.gz"], ["train-0.jsonl", "train-1.jsonl.gz"]),
        (
            ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"],
            ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"],
        ),
        (["train.jsonl", "train-old.jsonl", "train/notes.txt", "training.jsonl"], ["train.jsonl"]),
    ],
)
def test_one_file_or_shards_in_order_of_their_names(
    there: list[str], used: list[str], tmp_path: Path
) -> None:
    write(tmp_path, *there)
    found = documents.files(tmp_path, "train")
    assert [f"{path.relative_to(tmp_path)}" for path in found] == used
    assert read(*found) == TEXTS * len(used)


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ([], "expected train.jsonl (also .gz or .zst), or shards in a folder train; found nothing"),
        (["data.csv"], "or shards in a folder train; found data.csv"),
        (["train.jsonl", "train.jsonl.gz"], "found train.jsonl and train.jsonl.gz. Remove or rename"),
        (["train.jsonl", "train/a.jsonl"], "found train.jsonl and train. Remove or rename"),
        (["train.jsonl", "train-0.jsonl"], "found train.jsonl and train-0.jsonl. Remove or rename"),
        (["train/a.jsonl", "train/b.csv"], "train: expected only files .jsonl, .jsonl.gz"),
        (["train/_SUCCESS"], "train: expected files .jsonl, .jsonl.gz"),
        (["train-00000-of-00003.jsonl", "train-00002-of-00003.jsonl"], "expected 3 shards, as train-00000"),
        (["train/a.jsonl", "train/a.jsonl.gz"], "each shard once; found a.jsonl and a.jsonl.gz. Remove one"),
        (["train-0.jsonl", "train-0.jsonl.gz"], "each shard once; found train-0.jsonl and train-0.jsonl.gz"),
        (["train-1.jsonl", "train-01.jsonl"], "each shard once; found train-01.jsonl and train-1.jsonl"),
        (
            [f"train-0000{i}-of-0000{n}.jsonl" for n in (2, 3) for i in range(n)],
            "shards of one set; found train-00000-of-00002.jsonl and train-00000-of-00003.jsonl. Remove",
        ),
        (
            ["train-0.jsonl", "train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"],
            "shards of one set; found train-0.jsonl and train-00000-of-00002.jsonl",
        ),
        (
            ["train/a-00000-of-00002.jsonl", "train/a-00001-of-00002.jsonl", "train/b-00000-of-00002.jsonl"],
            "expected 2 shards, as b-00000-of-00002.jsonl; found 1",
        ),
        (
            ["train/c4.00000-of-00003.json.gz", "train/c4.00002-of-00003.json.gz"],
            "expected 3 shards, as c4.00000-of-00003.json.gz; found 2, without number 1",
        ),
        (
            [f"train/a_{number}_of_2.jsonl" for number in range(3)],
            "expected 2 shards, as a_0_of_2.jsonl; found 3",
        ),
        (
            [f"train-{number}-of-4.jsonl" for number in (0, 1, 2, 4)],
            "expected 4 shards, as train-0-of-4.jsonl; found 4, without number 3",
        ),
    ],
)
def test_unclear_texts_are_refused(there: list[str], message: str, tmp_path: Path) -> None:
    """Contract: no file is left out in silence, and no shard is missing in silence."""
    write(tmp_path, *there)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the message is compared
        documents.files(tmp_path, "train")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        (["train/shard-0.jsonl", "train/shard-1.jsonl", "train/shard-3.jsonl"], "2 is missing"),
        (["train-1.jsonl", "train-2.jsonl", "train-4.jsonl"], "3 is missing"),
        ([f"train/{n:05}.jsonl.gz" for n in (0, 1, 2, 3, 6, 7)], "4, 5 are missing"),
        ([f"train/part_{n}.jsonl" for n in (*range(10), *range(17, 20))], "10, 11, 12, 13, 14 and 2 more"),
        (["train/en-0.jsonl", "train/en-1.jsonl", "train/de0.jsonl", "train/de2.jsonl"], "1 is missing"),
    ],
)
def test_gap_among_plain_numbers_is_a_warning(there: list[str], missing: str, tmp_path: Path) -> None:
    """Contract: the number is named, and the texts are used, because a sample of shards has gaps too."""
    write(tmp_path, *there)
    assert missing in documents.gap(documents.files(tmp_path, "train"))


@pytest.mark.parametrize(
    "there",
    [
        ["train.jsonl"],
        ["train/shard-3.jsonl", "train/shard-4.jsonl"],
        ["train/shard-9.jsonl", "train/shard-10.jsonl"],
        ["train/log-1700000000.jsonl", "train/log-1700003600.jsonl"],
        ["train/2024-01-01.jsonl", "train/2024-01-04.jsonl", "train/2024-01-05.jsonl"],
        ["train/part-0.jsonl", "train/part-17.jsonl", "train/part-40.jsonl"],
        ["train/part-00000-of-00002.jsonl", "train/part-00001-of-00002.jsonl"],
        ["train/de.jsonl", "train/en.jsonl"],
    ],
)
def test_other_names_of_shards_have_no_gap(there: list[str], tmp_path: Path) -> None:
    write(tmp_path, *there)
    assert documents.gap(documents.files(tmp_path, "train")) == ""


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        before = Path.cwd()
        os.chdir(path.parent)  # the path of a socket is short
        try:
            made.bind(path.name)
        finally:
            os.chdir(before)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a FIFO"),
        (_socket, "a socket"),
        (lambda path: path.symlink_to("/dev/null"), "a device"),
        (lambda path: path.symlink_to(path.name), "a symlink loop"),
        (lambda path: path.symlink_to("nowhere"), "a broken link"),
    ],
)
@pytest.mark.parametrize("name", ["train.jsonl", "train/a.jsonl"])
def test_what_is_no_file_is_refused_and_not_opened(
    make: Callable[[Path], None], kind: str, name: str, tmp_path: Path
) -> None:
    """Contract: a FIFO would block for ever."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    make(path)
    with pytest.raises(ValueError, match=f"{path}: expected a file, found {kind}"):
        documents.files(tmp_path, "train")


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    write(tmp_path, "elsewhere")
    (tmp_path / "train.jsonl").symlink_to("elsewhere")
    assert read(*documents.files(tmp_path, "train")) == TEXTS
