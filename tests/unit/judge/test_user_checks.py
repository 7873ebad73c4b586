"""Judges written by users: whatever they do, no FAIL or UNKNOWN becomes a PASS, and the harness does not
crash."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bundles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_jobs import JOBS, slow, written

from harness.context import RecordedContext
from harness.evidence import BundleWriter, Redactor
from harness.judge import judge, users
from harness.judge.catalogue import CAUSES
from harness.judge.users import Bundle, Check, failed, passed, unknown
from harness.report.finalize import finish
from harness.settings import Settings


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def spoil(bundle: Bundle) -> None:
    """Change everything in a bundle that a judge can change."""
    for kind in ("jobset", "pod", "workload"):
        for seen in bundle.history(kind):
            seen.object.clear()
        bundle.history(kind).clear()


def leave(_: Bundle) -> None:
    sys.exit(0)


def fails(error: BaseException) -> Callable[[Bundle], None]:
    def act(_: Bundle) -> None:
        raise error

    return act


HARMLESS: list[Any] = [spoil, passed("fine", "it is")]
HARMFUL: list[Any] = [
    *(failed("bad", "it is not", ranks=[1]), failed("bad", "it is not", cause="worse"), unknown("dim", "?")),
    *(None, "PASS", 7, {"result": "PASS"}, Check(name="no-lost-points", result="PASS")),
    *(Check(name="user.x", result="FAIL"), Check(name="user.x", result="PASS", cause="user.y")),
    *(Check(name="user.x", result="FAIL", cause="run.no_manifest"), Check.model_construct(name="user.x")),
    *(leave, fails(ValueError("boom")), fails(Unspeakable()), fails(pytest.fail.Exception("no"))),
    fails(RecursionError()),
]
acts = st.lists(st.sampled_from(HARMLESS) | st.sampled_from(HARMFUL), max_size=4)


def acting(acts: list[Any]) -> Callable[[Bundle], Iterator[Any]]:
    """Return a judge that carries out these steps, one after the other."""

    def one(bundle: Bundle) -> Iterator[Any]:
        for act in acts:
            if callable(act):
                act(bundle)
            else:
                yield act

    return one


@given(st.sampled_from(list(JOBS)), st.lists(acts, max_size=3))
@slow
def test_no_judge_makes_a_verdict_better(name: str, act_lists: list[list[Any]]) -> None:
    """Property: a verdict remains a PASS only if every judge yields only passed(). Any other verdict does not
    change, and neither do the harness's own checks and the closed list of causes.
    """
    before = judge(Bundle.open(written(name)))
    after = judge(Bundle.open(written(name)), [(f"j{n}", acting(acts)) for n, acts in enumerate(act_lists)])
    good = all(not any(act in HARMFUL for act in acts) and HARMLESS[1] in acts for acts in act_lists)
    assert (after.verdict == "PASS") == (before.verdict == "PASS" and good)
    if before.verdict != "PASS":
        assert (after.verdict, after.cause) == (before.verdict, before.cause)
    assert after.checks[: len(before.checks)] == before.checks
    own = after.checks[len(before.checks) :]
    assert all(check.name.startswith("user.") for check in own)
    assert all(c.cause is None or c.cause in CAUSES or c.cause.startswith("user.") for c in after.checks)


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(written("healthy"), tmp_path / "bundle"))


def test_a_fail_of_ones_own(healthy: Path) -> None:
    """The verdict has the check's cause, ranks, text and evidence, and advises reading the log of its
    rank."""

    def steps(bundle: Bundle) -> Iterator[Check]:
        assert bundle.manifest is not None
        yield failed("steps", "6 steps, not 7", cause="too-few", ranks=[1, 1], evidence=["truth/1.jsonl:1"])

    verdict = judge(Bundle.open(healthy), [("steps", steps)])
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "user.too-few", [1])
    assert (verdict.explanation, verdict.evidence) == ("6 steps, not 7", ["truth/1.jsonl:1"])
    assert verdict.next[0].endswith("--rank 1")
    assert verdict.checks[-1].name == "user.steps"


def test_what_was_said_before_an_error_counts(healthy: Path) -> None:
    """A judge that yields a FAIL and then raises gives a FAIL. Its error is a consequence."""
    acts = [failed("bad", "it is not"), fails(ValueError("boom"))]
    verdict = judge(Bundle.open(healthy), [("mine", acting(acts))])
    assert (verdict.verdict, verdict.cause) == ("FAIL", "user.bad")
    assert verdict.consequences == ["run.judge_error: The judge mine failed: ValueError: boom"]


def test_a_judge_that_reads_damaged_evidence_proves_nothing(healthy: Path) -> None:
    """The harness's own judges do not read the damaged file."""
    (healthy / "extra.jsonl").write_bytes(b"cut")

    def reads(bundle: Bundle) -> Iterator[Check]:
        yield passed("extra", f"{len(list(bundle.lines('extra.jsonl')))} lines")

    verdict = judge(Bundle.open(healthy), [("extra", reads)])
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.evidence_damaged")


def test_job_that_was_not_let_end_is_no_fail(tmp_path: Path) -> None:
    """If the job was interrupted, a judge that finds something missing proves nothing."""
    job = bundles.healthy()
    job.drop("jobset", 2)
    job.manifest = job.manifest.model_copy(update={"interrupted": "SIGINT"})
    verdict = judge(job.write(tmp_path / "b"), [("bad", acting([failed("bad", "too few steps")]))])
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.interrupted")
    assert verdict.consequences == ["user.bad: too few steps"]


def test_without_a_job_nobody_is_asked(tmp_path: Path) -> None:
    """User judges are not called for runs that launched nothing, so they need no code for this case."""
    job = bundles.healthy()
    job.manifest = job.manifest.model_copy(update={"expected": None, "launch": None})
    bundle = job.write(tmp_path / "b")
    assert judge(bundle, [("mine", acting([fails(ValueError())]))]) == judge(bundle)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path in which packages are installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def install(site: Path, package: str, judge_: str, code: str) -> None:
    module = package.replace("-", "_")
    (site / f"{module}.py").write_text(code)
    info = site / f"{module}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{users.GROUP}]\n{judge_} = {module}:judge\n")


def test_judges_are_found_by_entry_point(site: Path, healthy: Path) -> None:
    """If judges in two packages have the same name, both are called. A judge that cannot be imported is
    UNKNOWN."""
    code = "from harness.judge.users import passed\ndef judge(b): return [passed('{0}', b.path.name)]\n"
    install(site, "own-a", "same", code.format("a"))
    install(site, "own-b", "same", code.format("b"))
    assert [name for name, _ in users.installed()] == ["same", "same"]
    verdict = users.judge(Bundle.open(healthy))
    assert (verdict.verdict, [c.name for c in verdict.checks[-2:]]) == ("PASS", ["user.a", "user.b"])
    install(site, "own-c", "torn", "import no_such_module\n")
    verdict = users.judge(Bundle.open(healthy))
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.judge_error")
    assert "judge torn failed: ModuleNotFoundError" in verdict.explanation


def test_a_run_asks_them(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: the verdict of a run includes user checks, and their output is not on stdout."""
    code = (
        "from harness.judge.users import failed\ndef judge(b): print('hello'); yield failed('never', 'no')\n"
    )
    install(site, "own-d", "never", code)
    job = bundles.healthy()
    writer = BundleWriter(job.write(tmp_path / "b").path, bundles.NONCE, Redactor())
    writer.manifest(job.manifest)
    outcome = finish(RecordedContext(settings=Settings(), progress=print, writer=writer))
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("FAIL", "user.never")
    assert Bundle.open(outcome.bundle).recorded_verdict == outcome.verdict
    captured = capsys.readouterr()
    assert (captured.out, "hello" in captured.err) == ("", True)


def test_nobody_judges_without_them() -> None:
    """Contract: all commands obtain the verdict from judge.users, so they agree."""
    sources = [path for path in Path("harness").rglob("*.py") if path.parts[1] != "judge"]
    assert len(sources) > 80
    assert [str(path) for path in sources if "from harness.judge import judge" in path.read_text()] == []


@pytest.mark.parametrize("name", ["Loss Falls", "", "../x", "a_", "ä"])
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        passed(name, "")


@pytest.mark.parametrize("name", ["Loss", "a_", "a--b", "a.b"])
def test_message_about_name_has_whole_rule(name: str) -> None:
    """Contract: the message must not exclude names that are allowed, such as loss_falls."""
    with pytest.raises(ValueError, match="a-z and 0-9, separated by single hyphens or underscores; got"):
        passed(name, "")
    with pytest.raises(ValueError, match=r"the cause of user\.a must begin with user\. and consist of a-z"):
        failed("a", "", cause=name)


@pytest.mark.parametrize("name", ["loss-falls", "loss_falls", "loss2"])
def test_hyphens_and_underscores_are_allowed(name: str) -> None:
    assert passed(name, "").name == f"user.{name}"
