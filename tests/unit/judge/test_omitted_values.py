"""The check that accounts for every key passed to `run.log`. Values that the client omitted are a FAIL."""

from __future__ import annotations

from collections.abc import Callable

import bundles
import pytest

from harness.evidence.schema.bundle import Launch, Verdict
from harness.evidence.schema.ground_truth import TruthAccount, TruthEnd, TruthLeft, TruthSettings, TruthStart
from harness.judge.finding import explanation

Judged = Callable[[bundles.Job], Verdict]
Entry = tuple[str, str, str, int, str, str]
TIME = 1_795_237_210_000
BOOLEAN = "the client leaves out booleans (bool)"


def accounted(rank: int = 0, *left: Entry, **account: object) -> bundles.Job:
    """Return a healthy job whose recorders account for keys, and in which one rank's client omitted these
    values."""
    job = bundles.healthy()
    launch = job.manifest.launch
    assert launch is not None
    job.manifest = job.manifest.model_copy(
        update={"launch": Launch(**{**launch.model_dump(), "recorder": True, "accounts": ["keys"]})}
    )
    for each in range(job.ranks):
        rows = job.rows(each)
        mine = left if each == rank else ()
        missing = sum(entry[3] for entry in mine)
        totals = {"handed": len(rows) + missing, "logged": len(rows), "left": missing}
        totals |= account if each == rank else {}  # type: ignore[assignment]
        end = job.truth[each][-1]
        assert isinstance(end, TruthEnd)
        job.truth[each] = [
            TruthStart(attempt=f"a{each}", time_ms=TIME, outside=True, pod=job.pod_name(each)),
            *rows,
            *([TruthLeft(left=list(mine))] if mine else []),
            TruthAccount(**totals),
            end,
        ]
    return job


def keys_explanation(verdict: Verdict) -> str:
    (check,) = [check for check in verdict.checks if check.name == "keys"]
    return explanation(check.explanation)


def test_account_that_closes_is_pass_with_its_number(judged: Judged) -> None:
    job = accounted()
    verdict = judged(job)
    assert verdict.verdict == "PASS", verdict
    assert keys_explanation(verdict) == f"{sum(len(job.rows(rank)) for rank in range(2))} keys × steps"


def test_a_value_the_client_omits_is_named_with_reason(judged: Judged) -> None:
    verdict = judged(accounted(1, ("flag", "bool", BOOLEAN, 6, "0", "5")))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.client_rewrote", [1])
    assert f"6 values of rank 1: {BOOLEAN}: 'flag' (bool) at steps 0 to 5 of rank 1" in verdict.explanation


def test_many_equal_reasons_do_not_hide_another_reason(judged: Judged) -> None:
    many = [(f"flag{n}", "bool", BOOLEAN, 1, "0", "0") for n in range(20)]
    other = (
        "half",
        "Fraction",
        "the client leaves out values that are not int or float (Fraction)",
        1,
        "3",
        "3",
    )
    explained = judged(accounted(0, *many, other)).explanation
    assert "and 17 more keys (20 values)" in explained
    assert "not int or float (Fraction): 'half'" in explained


def test_key_that_was_only_ever_none_is_note(judged: Judged) -> None:
    verdict = judged(accounted(0, ("val_loss", "NoneType", "not int or float (NoneType)", 6, "0", "5")))
    assert verdict.verdict == "PASS", verdict
    assert "only ever None, so not logged: 'val_loss'" in keys_explanation(verdict)


def test_a_frequency_that_the_recorder_supplied_is_a_note(judged: Judged) -> None:
    """Contract: a PASS names the rank whose client could not have started without the harness."""
    job = accounted()
    job.truth[1].insert(1, TruthSettings(mode="perf", uploads=True, cpu_frequency=False))
    verdict = judged(job)
    assert verdict.verdict == "PASS", verdict
    assert "so the recorder gave 0 MHz to the client of rank 1: " in verdict.explanation


def test_none_between_numbers_of_a_key_is_a_gap(judged: Judged) -> None:
    job = accounted()
    metric = job.rows(0)[0].metric
    verdict = judged(accounted(0, (metric, "NoneType", "not int or float (NoneType)", 1, "9", "9")))
    assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.client_rewrote")


@pytest.mark.parametrize(
    ("account", "expected"),
    [
        ({"unseen": "this client's queue is not known"}, "this client's queue is not known"),
        ({"handed": 100}, "run.log received 100 values: "),
        ({"left": 3, "handed": 0}, "3 omitted, with a recorded reason for 0"),
    ],
)
def test_an_account_that_does_not_close_is_no_pass(
    judged: Judged, account: dict[str, object], expected: str
) -> None:
    verdict = judged(accounted(1, **account))
    assert (verdict.verdict, verdict.ranks) == ("UNKNOWN", [1])
    assert expected in verdict.explanation


def test_a_rank_without_a_recorder_is_no_pass(judged: Judged) -> None:
    """Contract: a worker's own record does not show which values were passed to the client."""
    job = accounted()
    job.retell(1, job.rows(1))
    verdict = judged(job)
    assert (verdict.verdict, verdict.ranks) == ("UNKNOWN", [1])
    assert "no recorder ran around its client" in verdict.explanation


def test_a_recorder_that_closed_no_account_is_no_pass(judged: Judged) -> None:
    job = accounted()
    job.truth[0] = [line for line in job.truth[0] if not isinstance(line, TruthAccount)]
    assert "its recorder did not write its final counts of the values" in judged(job).explanation


def test_bundle_of_older_harness_has_no_such_check(judged: Judged) -> None:
    verdict = judged(bundles.healthy())
    assert verdict.verdict == "PASS"
    assert "keys" not in {check.name for check in verdict.checks}
