"""Generated training programs: their grammar, what their worker writes, and the oracle of their verdicts."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import types
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import HarnessError
from harness.evidence.schema.bundle import Check, Verdict
from harness.faults.programs import containers
from harness.faults.programs import session as program_run
from harness.faults.programs.containers import Container
from harness.faults.programs.generator import grammar, program
from harness.faults.programs.ledger import Ledger, Outcome
from harness.faults.programs.oracle import Account, Journal
from harness.faults.results import Row
from harness.workers import program as worker

SEEDS = st.integers(min_value=0, max_value=1 << 30)


@given(SEEDS, st.integers(min_value=0, max_value=5000))
def test_a_program_is_repeated_by_seed_and_number(seed: int, number: int) -> None:
    assert program(seed, number) == program(seed, number)


@given(SEEDS)
@settings(max_examples=25)
def test_a_script_is_shell_and_carries_the_program(seed: int) -> None:
    drawn = program(seed, 0)
    checked = subprocess.run(["bash", "-n", "-c", drawn.script], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    packed = next(
        word for word in drawn.script.replace("'", " ").replace(")", " ").split() if word.startswith("eyJ")
    )
    assert json.loads(base64.b64decode(packed)) == drawn.worker.model_dump()


def test_the_programs_of_a_seed_cover_the_grammar() -> None:
    drawn = [program(1, number) for number in range(3000)]
    assert {one.launch for one in drawn} == set(grammar().launches)
    assert {one.wrap for one in drawn} == set(grammar().wraps)
    assert {one.worker.child for one in drawn} == set(grammar().children)
    assert {one.worker.end for one in drawn} == set(grammar().ends)
    kinds = {entry[1] for one in drawn for call in one.worker.calls for entry in call.data}
    assert kinds == {*grammar().values, *grammar().tensors}


@given(SEEDS)
@settings(max_examples=25)
def test_the_job_has_the_ranks_that_the_program_starts(seed: int) -> None:
    drawn = program(seed, 1)
    work = containers.workload(drawn.script, drawn.launched.nodes, "image")
    assert work.per_node * drawn.launched.nodes == drawn.ranks


@pytest.mark.parametrize("kind", [kind for kind in grammar().values if kind not in ("nested", "items")])
def test_the_journal_has_each_number_of_a_value(kind: str) -> None:
    value, numbers = worker.value_of(kind, 1.25)
    elements = list(value) if isinstance(value, list | tuple | set) else [value]
    if kind.startswith("array"):
        elements = list(value.reshape(-1))
    assert len(numbers) == len(elements)
    for one, number in zip(elements, numbers, strict=True):
        if number is not None and number == number:
            assert complex(one) == number


def test_the_journal_records_a_call_before_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    drawn = next(one for one in (program(3, n) for n in range(100)) if one.worker.threads == 0)
    worker_program = worker.Program(drawn.worker.model_dump(), "rank", str(tmp_path))
    (file,) = tmp_path.glob("*.jsonl")
    seen: list[str] = []

    def log(*_: Any, **__: Any) -> None:
        seen.append(file.read_text().splitlines()[-1])

    worker_program.run = types.SimpleNamespace(log=log)
    worker_program.calls(worker_program.spec["calls"], "rank")
    assert [json.loads(line)["kind"] for line in seen] == ["call"] * len(drawn.worker.calls)


# -- the oracle ------------------------------------------------------------------------------------------
HEALTHY = next(
    one
    for one in (program(5, number) for number in range(500))
    if one.launch == "alone" and one.worker.end == "return" and not one.worker.child + one.worker.second
)
POINT = ("m0/rank0", 0, 1.0)


def accounted(
    leaf: tuple[str, str, Any] = ("m0/rank0", "float", 1.0),
    code: int | None = 0,
    pod: int = 0,
    tracked: bool = True,
    recorded: bool = True,
    role: str = "rank",
    how: str = "return",
) -> Account:
    call = {"leaves": [list(leaf)], "step": 0, "step_kind": "int", "container": "dict"}
    journal = Journal("rank", 0, 1, "trainer-0", 8, [], None if code is None else {"how": how, "code": code})
    other = journal if role == "rank" else Journal(role, 0, 1, "trainer-0", 9, [], {"how": "x", "code": 0})
    other.calls.append(call)
    points = {POINT}
    return Account(
        HEALTHY,
        [journal, *([other] if other is not journal else [])],
        [Container(0, "c", exit_code=pod)],
        points if tracked else set(),
        points if recorded else set(),
    )


def verdict(word: str, cause: str | None = None, judged: str | None = None) -> Verdict:
    checks = [Check(name="values", result="UNKNOWN", cause=judged)] if judged else []
    return Verdict.model_validate({"verdict": word, "cause": cause, "explanation": "", "checks": checks})


@pytest.mark.parametrize(
    "what",
    [
        accounted(tracked=False),
        accounted(recorded=False),
        accounted(("m0/rank0", "bool", 0.0)),
        accounted(("m0/rank0", "in nested", 2.0)),
        accounted(code=None),
        accounted(code=3),
        accounted(pod=1),
        accounted(role="child", recorded=False),
    ],
)
def test_pass_is_wrong_when_account_does_not_close(what: Account) -> None:
    assert what.judge(verdict("PASS")).word == "wrong PASS"


def test_only_a_pass_of_a_healthy_program_is_right() -> None:
    assert accounted().judge(verdict("PASS")).word == "right"
    assert accounted(("m0/rank0", "none", None)).judge(verdict("PASS")).word == "right"
    assert accounted().judge(verdict("FAIL", "rank.crashed")).word == "wrong FAIL"
    assert accounted().judge(verdict("UNKNOWN", "run.evidence_missing")).word == "wrong FAIL"


def test_os_exit_may_pass_or_be_an_early_exit() -> None:
    left = accounted(how="os._exit 0")
    assert left.judge(verdict("PASS")).word == "right"
    assert left.judge(verdict("FAIL", "rank.exited_early")).word == "right"
    assert left.judge(verdict("UNKNOWN", "unification.truth_incomplete")).word == "vague"


def test_a_shared_metric_collides_without_explicit_steps() -> None:
    calls = [
        {"leaves": [["m0", "float", 1.0 + rank]], "step": None, "step_kind": "none", "container": "dict"}
        for rank in range(2)
    ]
    end = {"how": "return", "code": 0}
    ranks = [Journal("rank", rank, 1, f"trainer-{rank}", 8, [calls[rank]], end) for rank in range(2)]
    points = {("m0", 1, 1.0), ("m0", 1, 2.0)}
    both = Account(HEALTHY, ranks, [Container(0, "c", exit_code=0)], points, points)
    assert both.judge(verdict("FAIL", "unification.metric_collision")).word == "right"
    assert both.judge(verdict("PASS")).word == "wrong PASS"


def test_a_fail_needs_a_cause_of_the_right_family() -> None:
    assert accounted(code=3).judge(verdict("FAIL", "rank.crashed")).word == "right"
    assert accounted(code=3).judge(verdict("FAIL", "unification.foreign_points")).word == "wrong cause"
    assert accounted(code=3).judge(verdict("UNKNOWN", "unification.truth_incomplete")).word == "vague"


def test_an_error_of_a_judge_is_never_right() -> None:
    assert accounted().judge(verdict("UNKNOWN", "run.judge_error", "run.judge_error")).word == "judge error"


def test_a_pod_that_does_not_end_is_named() -> None:
    late = accounted(code=None, pod=143)
    late = Account(
        HEALTHY, late.journals, [Container(0, "c", exit_code=143, timed_out=True)], {POINT}, {POINT}
    )
    assert late.judge(verdict("FAIL", "run.timed_out")).word == "right"
    assert late.judge(verdict("PASS")).word == "wrong PASS"


def test_pods_that_train_alone_are_no_pass() -> None:
    drawn = next(one for one in (program(5, n) for n in range(500)) if one.launch == "each alone")
    ends = [Journal("rank", 0, 1, f"trainer-{n}", 8, [], {"how": "return", "code": 0}) for n in range(2)]
    what = Account(drawn, ends, [Container(n, "c", exit_code=0) for n in range(2)], set(), set())
    assert what.judge(verdict("PASS")).word == "wrong PASS"
    assert what.judge(verdict("FAIL", "rendezvous.world_size")).word == "right"


# -- the ledger ------------------------------------------------------------------------------------------
def outcome(number: int, word: str) -> Outcome:
    return Outcome(seed=7, number=number, word=word, about="a", got="PASS", right="FAIL", bundle="/b")


def test_the_ledger_counts_outcomes_and_drops_fixed_misses(tmp_path: Path) -> None:
    path, ledger = tmp_path / "ledger.json", Ledger()
    for number, word in enumerate(["right", "wrong PASS", "right", "vague"]):
        ledger.add(outcome(number, word))
    ledger.write(path)
    read = Ledger.read(path)
    assert read.seeds[7].programs == 4
    assert [miss.number for miss in read.seeds[7].misses] == [1, 3]
    assert read.summary == "4 programs of 1 seeds: 2 right, 1 vague, 1 wrong PASS"
    read.again(outcome(1, "right"))
    read.again(outcome(3, "wrong PASS"))
    assert read.summary == "4 programs of 1 seeds: 3 right, 1 wrong PASS"
    assert [miss.word for miss in read.seeds[7].misses] == ["wrong PASS"]
    assert "/b" not in path.read_text(), "a path of this machine"


def test_a_draw_is_in_the_ledger_once(tmp_path: Path) -> None:
    path, ledger = tmp_path / "ledger.json", Ledger()
    more = {"target": "rank", "about": "", "expected": "", "got": "", "right": True}
    for word in ("borne", "named"):
        draws = [
            Row(fault="random-4-001-program", oracle=word, **more),
            Row(fault="random-4-002", oracle=word, **more),
        ]
        ledger.add_draws([*draws, Row(fault="rank-killed", **more)])
    ledger.write(path)
    assert Ledger.read(path).draws == {"random-4-001-program": "named"}
    assert "1 draws: 1 named" in ledger.summary


def test_the_worker_needs_a_program() -> None:
    done = subprocess.run(
        [sys.executable, str(Path(worker.__file__))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "python3 program.py PROGRAM" in done.stderr


def test_the_session_tracker_ends_with_its_harness(tmp_path: Path) -> None:
    """Contract: a harness that is killed leaves no tracker: its end of the pipe closes."""
    log = tmp_path / "log"
    command = [*program_run.SERVER, "--host", "127.0.0.1", "--port", "0", "--db", str(tmp_path / "db")]
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=out, env={"TRACKER_API_KEY": "k"}
        ) as server,
    ):
        try:
            assert program_run.address(server, log).startswith("http://127.0.0.1:")
            assert server.stdin is not None
            server.stdin.close()
            assert server.wait(60) == 2
        finally:
            server.kill()


@pytest.mark.parametrize("failures", [1, 2])
def test_a_second_program_error_ends_the_session(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    """Contract: no program starts after the error, though there is time left for many."""
    errors = [HarnessError("docker run: no answer in 120 s")] * failures

    def run(_: Any, drawn: int) -> Outcome:
        if drawn == 3 and errors:
            raise errors.pop()
        return Outcome(seed=1, number=drawn, word="right", about="", got="PASS", right="", seconds=0.0)

    monkeypatch.setattr(program_run, "run", run)
    session = program_run.session(cast(Any, None), cast(Any, count()), seconds=1e9, parallel=2)
    if failures == 1:
        assert [next(session).number for _ in range(50)] == list(range(50))
        session.close()
    else:
        with pytest.raises(HarnessError, match="no answer"):
            list(session)
