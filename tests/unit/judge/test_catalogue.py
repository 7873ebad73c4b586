"""The check registry: exactly the registered checks are run."""

import dataclasses
from pathlib import Path

import bundles
import pytest
from sample_jobs import JOBS, written

from harness.evidence import Bundle
from harness.judge import engine, judge
from harness.judge.catalogue import NEEDS, REGISTRY, REQUIREMENTS
from harness.judge.context import Facts
from harness.judge.finding import Finding, passed

ROOT = Path(__file__).parents[3]
APPLIES = ("always", "tracked", "frames", "ranks")
TRACKED = [entry for entry in REGISTRY.values() if entry.applies in APPLIES]
"""The checks for a launch whose ranks log with Pluto, without acceptance tests and without netcheck."""


def names(verdict) -> list[str]:
    return [check.name for check in verdict.checks]


def test_every_registered_check_has_a_function():
    """Contract: every check has a function, and every function has an entry in the registry."""
    assert list(engine.CHECKS) == list(REGISTRY)


@pytest.mark.parametrize("name", JOBS)
def test_a_verdict_lists_every_check_in_order(name):
    """Contract: if there was a job, each check has exactly one result."""
    assert names(judge(Bundle.open(written(name)))) == [entry.id for entry in TRACKED]


@pytest.mark.parametrize("need", ["manifest", "launch", "job"])
def test_without_a_job_only_what_needs_none_is_listed(need, tmp_path):
    """Contract: checks that cannot be judged without a job are not listed, and the verdict is not PASS."""
    job = bundles.healthy()
    if need == "launch":
        job.manifest = job.manifest.model_copy(update={"expected": None})
    if need == "job":
        launch = job.manifest.launch.model_copy(update={"uid": None})
        job.manifest = job.manifest.model_copy(update={"launch": launch})
    bundle = job.write(tmp_path / "b")
    if need == "manifest":
        (bundle.path / "manifest.json").unlink()
    verdict = judge(Bundle.open(bundle.path))
    before = NEEDS[: NEEDS.index(need)]
    assert names(verdict) == [entry.id for entry in TRACKED if entry.needs in before]
    assert verdict.verdict != "PASS"


@pytest.mark.parametrize(
    "findings",
    [[], [passed("values", "a"), passed("values", "b")], passed("status", "another check")],
    ids=["nothing", "twice", "another"],
)
def test_a_check_must_return_exactly_its_own_finding(findings, monkeypatch):
    """Contract: if a check returns no finding, two findings, or a finding with another id, the verdict is
    UNKNOWN."""
    monkeypatch.setitem(engine.CHECKS, "values", lambda facts: findings)
    verdict = judge(Bundle.open(written("healthy")))
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.judge_error")
    assert verdict.explanation.startswith("The check values failed with ValueError: ")


def test_a_function_that_is_not_there_is_an_error(monkeypatch):
    """Contract: if a registered check has no function, the verdict is not PASS."""
    monkeypatch.delitem(engine.CHECKS, "evidence")
    assert judge(Bundle.open(written("healthy"))).cause == "run.judge_error"


@pytest.mark.parametrize("id_", [e.id for e in TRACKED if NEEDS.index(e.needs) > 3])
def test_a_check_is_not_made_without_its_need(id_, monkeypatch):
    """Contract: if a requirement is not met, the check is UNKNOWN with the requirement's sentence, and its
    function is not called."""
    need = REQUIREMENTS[REGISTRY[id_].needs]

    def lacks(self: Facts, up_to):
        return (need, [1]) if NEEDS.index(up_to) >= NEEDS.index(need.id) else None

    monkeypatch.setattr(Facts, "lacks", lacks)
    monkeypatch.setitem(engine.CHECKS, id_, lambda facts: pytest.fail("it was made"))
    check = next(c for c in judge(Bundle.open(written("healthy"))).checks if c.name == id_)
    text = need.missing.format(ranks="rank 1")
    assert (check.result, check.cause, check.explanation) == ("UNKNOWN", None, text[0].upper() + text[1:])


@pytest.mark.parametrize("id_", [entry.id for entry in REGISTRY.values() if entry.passes_with])
def test_a_check_without_its_requirement_cannot_pass(id_, monkeypatch):
    """Contract: without the requirement, a FAIL remains a FAIL, and a PASS becomes UNKNOWN."""
    lacks = Facts.lacks
    need = REGISTRY[id_].passes_with
    monkeypatch.setattr(
        Facts, "lacks", lambda self, n: (REQUIREMENTS[n], [0]) if n == need else lacks(self, n)
    )
    by_name = {f.name: f for f in _findings(written("healthy"))}
    assert by_name[id_].result == "UNKNOWN"
    failed = dataclasses.replace(by_name[id_], result="FAIL", cause="unification.lost_points")
    monkeypatch.setitem(engine.CHECKS, id_, lambda facts: failed)
    assert {f.name: f.result for f in _findings(written("healthy"))}[id_] == "FAIL"


def _findings(bundle: Path) -> list[Finding]:
    facts = Facts(Bundle.open(bundle))
    for entry in REGISTRY.values():
        if (finding := engine._finding(facts, entry)) is not None:
            facts.findings.append(finding)
    return facts.findings


@pytest.mark.parametrize("entry", REGISTRY.values(), ids=lambda entry: entry.id)
def test_an_entry_is_complete(entry):
    """Contract: each entry describes in one sentence what the check proves."""
    assert entry.proves[0].isupper()
    assert entry.proves.endswith(".")
    assert entry.passes_with is None or NEEDS.index(entry.passes_with) > NEEDS.index(entry.needs)
