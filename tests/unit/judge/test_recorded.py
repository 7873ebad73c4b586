"""Judge recorded bundles of real faults on real clusters again (tests/recorded/, made by `harness faults
--record`).

Each must get the verdict, cause and ranks in its fault's file. Damage to the evidence must not turn the
verdict into a PASS.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from odd_objects import spoil
from sample_jobs import NIGHTLY

from harness.evidence import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.faults.fault_file import catalogue
from harness.faults.recorded_bundles import extract
from harness.judge import judge

RECORDED = {
    path.name.removesuffix(".tar.xz"): path for path in sorted(Path("tests/recorded").glob("*.tar.xz"))
}
FAULTS = catalogue()
WITHOUT_MANAGERS = {"rank-jobset-suspended"}
"""Bundles that were recorded before field managers were, so the verdict cannot name the clients that changed
objects."""
CUTS = 12 if NIGHTLY else 1
"""The number of truncations per bundle. Each bundle is truncated at another place, so all kinds of files are
covered."""
HALF = list(RECORDED) if NIGHTLY else list(RECORDED)[::2]
FOURTH = list(RECORDED) if NIGHTLY else list(RECORDED)[::4]
ODD = 12 if NIGHTLY else 1
"""The number of copies of each bundle that have wrong types in three files of objects."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recorded")


@cache
def _extracted(name: str, folder: Path) -> Path:
    return extract(RECORDED[name], folder / name)


@cache
def _verdict(whole: Path) -> Verdict:
    return judge(Bundle.open(whole))


def short(verdict: Verdict) -> tuple[str, str | None, list[int]]:
    return verdict.verdict, verdict.cause, verdict.ranks


def test_the_faults_of_the_table_are_recorded():
    """Contract: there is a recording for exactly those rows of docs/faults.md whose fault left a bundle."""
    judged = {name for name, fault in FAULTS.items() if fault.expect is not None and fault.expect.verdict}
    rows = set(re.findall(r"^\| ✓ \| \*\*([-a-z0-9]+)\*\*", Path("docs/faults.md").read_text(), re.MULTILINE))
    assert set(RECORDED) == judged & rows
    assert len(RECORDED) >= 40


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_bundle_gets_the_verdict_of_its_fault(name, folder):
    """Contract: the judges reproduce the verdict from the cluster, and its text is the expected one."""
    expect = FAULTS[name].expect
    assert expect is not None
    verdict = _verdict(_extracted(name, folder))
    assert (verdict.verdict, verdict.cause) == (expect.verdict, expect.cause)
    if expect.ranks is not None:
        assert verdict.ranks == expect.ranks
    if expect.message_pattern and name not in WITHOUT_MANAGERS:
        explanations = "\n".join(check.explanation for check in verdict.checks)
        assert re.search(expect.message_pattern, explanations, re.DOTALL)


@pytest.mark.parametrize("name", HALF)
def test_cutting_recorded_evidence_makes_no_pass(name, folder, tmp_path):
    """Contract: truncating any file at any byte does not turn FAIL or UNKNOWN into PASS, and no judge
    raises."""
    whole = _extracted(name, folder)
    bad = FAULTS[name].expect.verdict != "PASS"
    chance = random.Random(name)
    files = sorted(path for path in whole.rglob("*") if path.is_file() and path.name != "verdict.json")
    copy = shutil.copytree(whole, tmp_path / "cut")
    for _ in range(CUTS):
        path = copy / chance.choice(files).relative_to(whole)
        content = path.read_bytes()
        path.write_bytes(content[: chance.randrange(len(content) + 1)])
        verdict = judge(Bundle.open(copy))
        path.write_bytes(content)
        assert not any(check.cause == "run.judge_error" for check in verdict.checks), (path, verdict)
        if bad:
            assert verdict.verdict != "PASS", path


@pytest.mark.parametrize("name", FOURTH)
def test_wrong_types_in_recorded_objects_raise_nowhere(name, folder, tmp_path):
    """Contract: there is a verdict for any type of value in any field of recorded objects, and no judge
    raises. A wrong type in a field that a judge reads is damage, which never leads to a PASS.
    """
    whole = _extracted(name, folder)
    chance = random.Random(f"types of {name}")
    files = [path.relative_to(whole) for path in sorted(whole.glob("objects/*.jsonl"))]
    if not files:
        return
    for turn in range(ODD):
        copy = shutil.copytree(whole, tmp_path / f"odd-{turn}")
        places = []
        for file in chance.choices(files, k=3):
            lines = [json.loads(line) for line in (copy / file).read_bytes().splitlines()]
            places.append((file, *spoil([line["object"] for line in lines], chance)))
            (copy / file).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        bundle = Bundle.open(copy)
        verdict = judge(bundle)
        raised = [check.explanation for check in verdict.checks if check.cause == "run.judge_error"]
        assert raised == [], places
        assert verdict.verdict != "PASS" or not bundle.damaged, places


@pytest.mark.parametrize("name", FOURTH)
def test_the_order_and_repetition_of_deliveries_do_not_matter(name, folder, tmp_path):
    """Contract: if watch events are reordered within half a second and repeated, the verdict is the same."""
    whole = _extracted(name, folder)
    copy = shutil.copytree(whole, tmp_path / "permuted")
    chance = random.Random(name)
    for path in [*copy.glob("objects/*.jsonl"), copy / "events.jsonl"]:
        if not path.is_file():
            continue
        lines = path.read_bytes().splitlines(keepends=True)
        if not lines or not lines[-1].endswith(b"\n"):
            continue
        lines += chance.choices(lines, k=3)
        path.write_bytes(b"".join(sorted(lines, key=lambda line: _received(line) + chance.random() / 2)))
    assert short(judge(Bundle.open(copy))) == short(_verdict(whole))


def _received(line: bytes) -> float:
    from harness.core.clock import seconds

    return seconds(json.loads(line)["received_at"]) or 0.0
