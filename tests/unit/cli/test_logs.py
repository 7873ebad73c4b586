"""Print logs of ranks from a bundle, during the launch and afterwards, and find bundles by a part of their
name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest
from bundles import healthy

from harness.cli import logs
from harness.core.clock import Clock
from harness.core.errors import UsageError
from harness.evidence.io.reader import Bundle
from harness.evidence.io.runs_folder import opened
from harness.evidence.schema.bundle import Manifest
from harness.workers.ground_truth.truth_frames import MARK


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return healthy().write(tmp_path / "20261121T050000Z-n0nce7f3a")


def log_of(bundle: Bundle, rank: int) -> Path:
    pod = bundle.ranks()[rank].name
    return next((bundle.path / "logs").glob(f"{pod}-*.log"))


def write(bundle: Bundle, rank: int, text: str) -> None:
    with log_of(bundle, rank).open("a") as log:
        log.write(text)


def under_way(bundle: Bundle, ended: str | None) -> None:
    """A bundle as the harness that writes it has it."""
    path = bundle.path / "manifest.json"
    manifest = Manifest.model_validate_json(path.read_text())
    partial = path.with_suffix(".partial")
    partial.write_text(manifest.model_copy(update={"ended_at": ended}).model_dump_json())
    partial.replace(path)


def test_lines_of_one_rank(bundle: Bundle) -> None:
    """Lines are named by node, with the time of day. Lines of other ranks and ground truth are left out."""
    log_of(bundle, 1).write_text(f"2026-11-21T05:00:08.123456789Z hello\n2026-11-21T05:00:09.000Z {MARK}x\n")
    shown = list(logs.lines(bundle, 1))
    assert shown[0] == "1 | 05:00:08.123 | hello"
    assert len(shown) == 1


def test_lines_are_what_a_terminal_shows(bundle: Bundle) -> None:
    """A progress bar is one line, no word is lost, and no control character reaches the reader's terminal.

    The log is that of a worker that writes bars, and text without a line end before a frame of the recorder.
    """
    stamp = "2026-11-21T05:00:08.123456789Z"
    updates = "".join(
        f"\r\x1b[32mepoch 1\x1b[0m {i / 200:5.1f}%|{'#' * (i // 1000):<20}| {i}/20000 [loss=0.1]"
        for i in range(20000)
    )
    nested = "".join(f"\x1b[Ainner {i}\r" for i in range(3000))
    log = f"{stamp} first words\n{stamp} {updates}\n"
    log += f"{stamp} {nested}no newline at the end of this text{MARK}x 1\n"
    log += f"{stamp} \x1b]0;title\x07\x1b[31mTraceback\x1b[0m: \xff\n{stamp} [rank1]: {MARK}x 2\n"
    log_of(bundle, 1).write_bytes(log.encode("latin-1"))
    shown = [line.split(" | ", 2)[2] for line in logs.lines(bundle, 1)]
    assert not any(ord(one) < 32 or 127 <= ord(one) < 160 for line in shown for one in line)
    assert "first words (replaced by later output)" in shown
    assert "no newline at the end of this textTraceback: \ufffd" in shown
    assert any(line.startswith("epoch 1") and "19,999 updates left out" in line for line in shown) or any(
        "epoch" in line and "replaced by later output" in line for line in shown
    )
    assert len(shown) < 10


def test_a_line_without_a_timestamp_keeps_its_words(bundle: Bundle) -> None:
    """In public reports (kubernetes #77603), a log has lines that do not begin with a timestamp.

    Such a line has all its words, and no control character of it reaches the reader's terminal.
    """
    lines = [
        "unable to retrieve container logs",
        "aaaaaaaaaaa\x1b]0;pwn\x07 text",
        "2026-11-21T05:00:08.1Z \u202egnp",
    ]
    log_of(bundle, 1).write_text("".join(f"{line}\n" for line in lines))
    assert list(logs.lines(bundle, 1)) == [
        "1 |              | unable to retrieve container logs",
        "1 |              | aaaaaaaaaaa text",
        "1 | 05:00:08.1Z  | \ufffdgnp",
    ]


def test_a_line_of_megabytes_is_read_in_parts(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """No character is lost where the parts meet, even if it has several bytes."""
    monkeypatch.setattr(logs, "READ_BYTES", 1000)
    words = " ".join(f"wört{n}" for n in range(20_000))
    log_of(bundle, 1).write_text(f"2026-11-21T05:00:08.123Z {words}\n2026-11-21T05:00:09.123Z end\n")
    assert list(logs.lines(bundle, 1)) == [f"1 | 05:00:08.123 | {words}", "1 | 05:00:09.123 | end"]


def test_a_rank_without_a_pod_is_told(bundle: Bundle) -> None:
    for read in (logs.lines(bundle, 7), logs.follow(bundle.path, 7)):
        with pytest.raises(UsageError, match="no pod for rank 7"):
            next(read)


def test_following_prints_complete_lines_until_the_launch_ends(bundle: Bundle) -> None:
    """A line is printed when it is complete, once. What is left when the harness has ended is printed too."""
    under_way(bundle, None)
    log_of(bundle, 0).write_text("")
    output: Queue[str] = Queue()
    done = threading.Event()

    def read(lines: Iterator[str]) -> None:
        for line in lines:
            output.put(line)
        done.set()

    threading.Thread(target=read, args=(logs.follow(bundle.path, 0),), daemon=True).start()
    write(bundle, 0, "2026-11-21T05:00:08.1Z first\n2026-11-21T05:00:09.1Z sec")
    assert output.get(timeout=20).endswith("| first")
    write(bundle, 0, "ond\n2026-11-21T05:00:10.1Z cut off")
    assert output.get(timeout=20).endswith("| second")
    assert not done.is_set()
    under_way(bundle, "2026-11-21T05:00:30.000000Z")
    assert output.get(timeout=20).endswith("| cut off")
    assert done.wait(20)
    assert output.empty()


def test_following_reads_what_was_recorded_only_when_it_changed(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that comes later is found. Records are read again only after a change."""
    under_way(bundle, None)
    log_of(bundle, 0).write_text("")
    pods = bundle.path / "objects" / "pod.jsonl"
    later = pods.with_suffix(".later")
    pods.rename(later)
    opened, looks = 0, 0
    really_open = Bundle.open

    def count(path: Path) -> Bundle:
        nonlocal opened
        opened += 1
        return really_open(path)

    def look(_: float) -> None:
        nonlocal looks
        looks += 1
        write(bundle, 0, f"2026-11-21T05:00:08.1Z look {looks}\n")
        if looks == 50:
            later.rename(pods)
        if looks == 100:
            under_way(bundle, "2026-11-21T05:00:30.000000Z")

    monkeypatch.setattr(Bundle, "open", count)
    lines = list(logs.follow(bundle.path, 0, Clock(sleep=look)))
    assert [line.rpartition(" ")[2] for line in lines] == [str(n) for n in range(1, 101)]
    assert opened == 3


def test_a_bundle_by_a_part_of_its_name(bundle: Bundle, tmp_path: Path) -> None:
    """The nonce is enough. Two bundles that match are both named. `latest` is a link and does not count."""
    (tmp_path / "latest").symlink_to(bundle.path.name)
    assert opened(Path("n0nce7f3a"), tmp_path).path == bundle.path
    assert opened(tmp_path / "latest").path.resolve() == bundle.path
    assert opened(Path("latest"), tmp_path).path.resolve() == bundle.path
    with pytest.raises(UsageError, match="no bundle in"):
        opened(Path("elsewhere"), tmp_path)
    healthy().write(tmp_path / "20261121T060000Z-n0nce7f3b")
    with pytest.raises(UsageError, match="more than one bundle"):
        opened(Path("n0nce"), tmp_path)
