"""A verdict does not depend on whether rows were written as lines or in columns."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sample_jobs import JOBS, written

from harness.evidence import Bundle
from harness.evidence.io.column_files import PointWriter, in_columns
from harness.evidence.io.files import Appender
from harness.evidence.schema.columns import Columns
from harness.evidence.schema.record import Record
from harness.faults.recorded_bundles import extract
from harness.judge import judge
from harness.judge.case import Case
from harness.judge.points.ground_truth import read
from harness.report.diff.compare import compare
from harness.report.diff.facts import facts

RECORDED = Path(__file__).parents[2] / "recorded"
BUNDLES = (
    *("client-collision", "client-drop-point", "client-foreign-writer", "client-merged-names"),
    *("client-other-run", "client-stranger-rows", "client-sync-killed", "client-unaided-killed"),
    *("client-wrong-value", "rank-restarted-by-torchrun", "rank-exception-while-logging"),
    *("tracker-loses-acknowledged", "tracker-slow", "training-data-repeated", "training-rank-killed"),
)


def packed(bundle: Path, to: Path) -> Path:
    """Copy a bundle, and convert all of its rows to columns."""
    source = Bundle.open(bundle)
    shutil.copytree(bundle, to)
    for path in sorted((bundle / "truth").glob("*.jsonl")):
        rank, _, suffix = path.name.removesuffix(".jsonl").partition(".")
        name = f"truth/{path.stem}"
        binary, lines = Appender(to / f"{name}.columns"), []
        for line in in_columns(
            (line for _, line in source.truth(int(rank), f".{suffix}" if suffix else "")),
            f"{name}.columns",
            binary.append,
            least=1,
        ):
            lines.append(line.model_dump_json() + "\n")
        (to / f"{name}.jsonl").write_text("".join(lines))
    if source.has("tracker/points.jsonl"):
        records: list[Record] = []
        binary = Appender(to / "tracker/points.columns")
        writer = PointWriter(records.append, "tracker/points.columns", binary.append, lines=0)
        for _, point in source.points():
            writer.add(point)
        writer.flush()
        text = "".join(record.model_dump_json() + "\n" for record in records)
        (to / "tracker/points.jsonl").write_text(text)
    return to


def verdict_document(bundle: Bundle) -> dict[str, object]:
    """Return the verdict without line numbers, because a line with columns contains many rows."""
    document = judge(bundle).model_dump(mode="json")
    document["next"] = [line.replace(str(bundle.path), "BUNDLE") for line in document["next"]]
    for item in (document, *document["checks"]):
        item["evidence"] = [ref.partition(".jsonl:")[0] for ref in item["evidence"]]
    return document


WHOLE = [name for name in JOBS if name != "cut off"]
"""Bundles without truncated lines, which `packed` would not copy."""


@pytest.mark.parametrize("name", [*WHOLE, *BUNDLES])
def test_verdict_is_same_of_lines_and_of_columns(name: str, tmp_path: Path) -> None:
    """Contract: the verdict, cause, ranks, explanations and checks are equal, and `harness diff` finds no
    difference."""
    lines = written(name) if name in JOBS else extract(RECORDED / f"{name}.tar.xz", tmp_path / "lines")
    one, other = Bundle.open(lines), Bundle.open(packed(lines, tmp_path / "columns"))
    assert verdict_document(one) == verdict_document(other)
    found = compare(facts(one, "a"), facts(other, "b"))
    assert not found.matters
    assert found.values == []
    if (lines / "truth").is_dir():
        ranks = one.manifest.expected.ranks if one.manifest and one.manifest.expected else 0
        parts = [part for rank in range(ranks) for _, part in other.truth_parts(rank)]
        rows = [line for rank in range(ranks) for _, line in one.truth(rank) if line.kind == "row"]
        assert any(isinstance(part, Columns) for part in parts) == bool(rows)


def test_damage_counts_though_another_check_has_seen_it(tmp_path: Path) -> None:
    """Contract: a rank's record with a damaged line is incomplete, even if another check has already read the
    file."""
    shutil.copytree(written("healthy"), tmp_path / "bundle")
    file = tmp_path / "bundle/truth/0.jsonl"
    file.write_text("no record\n" + file.read_text())
    bundle = Bundle.open(tmp_path / "bundle")
    manifest = bundle.manifest
    assert manifest is not None
    assert manifest.expected is not None
    assert manifest.launch is not None
    case = Case(bundle, manifest, manifest.expected, manifest.launch)
    assert case.record_ended(0)
    assert list(bundle.truth(0))
    assert read(case, 0).incomplete == "its file is damaged"
