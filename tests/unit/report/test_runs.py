"""Past bundles as a table and as rows."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import bundles
import pytest
from rich.console import Console

from harness.evidence import BundleWriter, Redactor
from harness.evidence.io import runs_folder
from harness.faults.recorded_bundles import extract
from harness.judge import judge
from harness.report.amounts import amount, ranges
from harness.report.terminal.runs import WIDE, Row, row, show


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    """A launch that passed, one that was killed and one that failed, recorded on real clusters."""
    good = tmp_path / "20261121T045900Z-n0nce7f3a"
    BundleWriter(good, "n", Redactor()).verdict(judge(bundles.healthy().write(good)))
    for name in ("harness-sigkill-observe", "client-wrong-value"):
        extract(Path(f"tests/recorded/{name}.tar.xz"), tmp_path / name)
    return [row(one) for one in runs_folder.past(tmp_path)]


def text(rows: list[Row], width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    show(rows, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_rows_list_runs_from_oldest_to_newest(rows: list[Row]) -> None:
    """Contract: seconds, ISO times and bytes; the newest last, whatever their names."""
    summaries = [(one.state, one.verdict, one.cause, one.job[:15]) for one in rows]
    assert summaries == [
        ("judged", "PASS", None, bundles.JOBSET),
        ("judged", "FAIL", "unification.wrong_value", "pluto-multinode"),
        ("cut off", "none", None, "pluto-multinode"),
    ]
    assert [one.started_at for one in rows] == sorted(one.started_at for one in rows)
    assert all(one.bytes > 10_000 for one in rows)
    assert [one.seconds is None for one in rows] == [one.state == "cut off" for one in rows]


@pytest.mark.parametrize("width", [80, WIDE, 240])
def test_a_line_each(rows: list[Row], width: int) -> None:
    """Contract: no row is folded and no cause cut, on a narrow terminal too."""
    lines = text(rows, width).splitlines()
    assert len(lines) == len(rows) + 2
    assert "unification.wrong_value" in "\n".join(lines)
    began = rows[-1].started_at[:19].replace("T", " ")
    assert (began in "\n".join(lines)) == (width >= WIDE)
    assert lines[-1].startswith("3 bundles")
    assert lines[-1].endswith("MiB")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([1], "1"),
        ([1, 0], "0, 1"),
        (range(512), "0-511"),
        ([0, 1, 2, 5, 7, 8], "0-2, 5, 7, 8"),
        (range(0, 60, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 18 more"),
    ],
)
def test_ranks_are_told_as_ranges(numbers: Iterable[int], text: str) -> None:
    assert ranges(numbers) == text


def test_byte_amounts_have_binary_units() -> None:
    sizes = [0, 9, 1023, 1024, 10_240, 1023 * 1024, 1024**2 - 1, 5 * 1024**4]
    assert [amount(size) for size in sizes] == [
        *("0 B", "9 B", "1023 B", "1.0 KiB", "10 KiB", "1023 KiB", "1.0 MiB", "5.0 TiB")
    ]
