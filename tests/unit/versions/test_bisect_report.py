"""The result of a bisect in one sentence, and the report without secrets and local paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.settings import load
from harness.versions.bisect_report import headline, markdown
from harness.versions.bisect_result import Changed, Changes, Result, Side
from harness.versions.bisection import classified
from harness.versions.cell import Outcome

GOOD = Side(version="1.0", label="1.0", date="2026-01-01", verdict="PASS", launches=2)
BAD = Side(version="1.1", label="1.1", verdict="FAIL rank.crashed", ranks=[1], explanation="x", launches=3)


def result(**more: object) -> Result:
    fields = {
        "package": "client",
        "ending": "found",
        "fix": False,
        "cause": "FAIL rank.crashed",
        "good": GOOD,
        "bad": BAD,
        "suspects": ["1.1"],
        "again": "harness run job.yaml --replace client=1.1",
        "folder": "/data/private/runs/bisect",
    }
    return Result.model_validate(fields | more)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({}, "client 1.1 is the first bad version: FAIL rank.crashed"),
        (
            {"fix": True},
            "client 1.0 is the first version without FAIL rank.crashed; 1.1 still has this failure",
        ),
        (
            {"suspects": ["1.0.1", "1.1"]},
            "FAIL rank.crashed begins in one of 2 versions of client after 1.0, up to 1.1: the versions "
            "in between could not be judged",
        ),
        (
            {"suspects": ["1.0.1", "1.1"], "fix": True},
            "FAIL rank.crashed ends in one of 2 versions of client after 1.1, up to 1.0: the versions "
            "in between could not be judged",
        ),
        ({"ending": "unsure"}, "Probably, but not certainly: client 1.1 is the first bad version: FAIL rank"),
        ({"ending": "newest_good", "bad": None}, "nothing to search for: client 1.0"),
        ({"ending": "oldest_bad", "good": None}, "no good version: client 1.1 is bad"),
        ({"ending": "not_judged", "good": None, "bad": None}, "too few versions of client could be judged"),
    ],
)
def test_each_ending_is_one_sentence(more: dict[str, object], sentence: str) -> None:
    found = result(**more)
    assert headline(found).startswith(sentence)
    assert found.certain == (found.ending == "found" and len(found.suspects) == 1)


def test_the_report_has_no_local_paths_in_the_command() -> None:
    """Contract: job, checkouts and wheels of this machine are named without their folders."""
    again = (
        "harness run '/data/a b/job.yaml' --replace other=/data/x/other.whl "
        "--replace 'client=git+file:///data/a b/repo@1234'"
    )
    text = markdown(
        result(
            again=again,
            repository="/data/a b/repo",
            bad=BAD.model_copy(update={"explanation": "from /data/a b/repo and /data/private/runs/bisect/x"}),
            changes=Changes(files=[Changed(name="client/a.py", before=1200, after=None)]),
            skipped={"1.0.1": "does not resolve"},
        ),
        load(),
    )
    assert "/data" not in text
    assert "harness run PATH/TO/job.yaml --replace other=PATH/TO/other.whl" in text
    assert "--replace client=git+file:///PATH/TO/repo@1234" in text
    assert "REPOSITORY and BISECT/x" in text
    assert "| `client/a.py` | 1,200 | – |" in text
    assert str(Path.home()) not in text


@pytest.mark.parametrize(
    ("verdict", "cause", "wanted", "found"),
    [
        ("PASS", None, None, "good"),
        ("FAIL", "rank.crashed", None, "bad"),
        ("UNKNOWN", "run.evidence_missing", None, "bad"),
        ("FAIL", "rank.crashed", "FAIL rank.crashed", "bad"),
        ("FAIL", "rank.crashed", "rank.crashed", "bad"),
        ("FAIL", "rank.killed", "FAIL rank.crashed", "other"),
        ("UNKNOWN", None, "UNKNOWN", "bad"),
        ("FAIL", "rank.killed", "any", "bad"),
        ("not installable", None, None, "skip"),
    ],
)
def test_launch_is_bad_only_with_searched_failure(
    verdict: str, cause: str | None, wanted: str | None, found: str
) -> None:
    outcome = Outcome.model_validate(
        {
            "key": "k",
            "cell": {},
            "attempt": 1,
            "result": verdict,
            "cause": cause,
            "exit_code": 0 if verdict == "PASS" else 1,
            "started_at": "t",
            "seconds": 1,
        }
    )
    assert classified("1.0", outcome, wanted).result == found


def test_version_whose_launches_contradict_each_other_shows_both_numbers() -> None:
    """Contract: the bad version's passes are not hidden."""
    text = markdown(result(bad=BAD.model_copy(update={"launches": 2, "launches_in_all": 3})), load())
    assert "2 of 3 launches" in text
    assert "| 2 launches |" in text
