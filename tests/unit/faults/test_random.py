"""Faults that nobody wrote down: what is drawn, and when the oracle calls a verdict wrong."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import faulty
import pytest
import witness
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.errors import UsageError
from harness.evidence.schema.bundle import Verdict
from harness.faults import commands, step_variables
from harness.faults.programs import journal
from harness.faults.random import oracle, oracle_table
from harness.faults.random.generator import RANKS, by_name, combined, drawn, grammar
from harness.faults.results import Row
from harness.settings import load

KNOWN = {
    **dict.fromkeys(("cluster", "control_plane", "kubectl", "files", "namespace", "jobset"), "x"),
    **dict.fromkeys(("pod0", "pod1", "node0", "node1", "kubeconfig", "context"), "x"),
    "pid": 1,
}
EVERY = [
    (what, verb, moment)
    for what, there in grammar().objects.items()
    for verb in there.verbs
    for moment in there.moments
]


@pytest.mark.parametrize(("what", "verb", "moment"), EVERY)
def test_every_combination_is_a_fault_whose_steps_are_shell(what, verb, moment):
    """Contract: no combination of the grammar has an unknown variable, and bash reads all of them."""
    fault = combined("f", what, verb, moment, "steady", 1, 0)
    for step in (*fault.inject, *fault.undo):
        subprocess.run(
            ["bash", "-n"], input=step_variables.render(step.sh or "", KNOWN, "f"), text=True, check=True
        )
    assert fault.expect is not None
    assert "RANK" not in fault.model_dump_json().replace("node_rank=$RANK", "").replace("$((RANK", "")


@given(st.integers(), st.integers(0))
def test_a_draw_can_be_repeated(seed, number):
    """Property: the same seed and number give the same fault, which fits its schema."""
    fault = drawn(seed, number)
    assert fault == drawn(seed, number)
    assert by_name(fault.name) == fault
    assert fault.scope == "launch" or fault.undo


def test_the_worker_writes_where_the_oracle_reads():
    """Contract: the konduktor config mounts the oracle's folder of the node where the worker writes."""
    spec = yaml.safe_load((step_variables.FILES / "witness.yaml").read_text())["kubernetes"]["pod_config"][
        "spec"
    ]
    (mount,), (volume,) = spec["containers"][0]["volumeMounts"], spec["volumes"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], witness.FOLDER)
    assert volume["hostPath"]["path"] == oracle.FILES


def test_a_draw_is_repeated_by_its_name():
    """Contract: `harness faults random-7-012` injects draw 12 of seed 7, and other names are none."""
    assert commands.chosen(["random-7-012"]) == [drawn(7, 12)]
    with pytest.raises(UsageError, match="no fault"):
        commands.chosen(["random-7"])


def test_a_draw_strikes_before_the_worker_has_failed():
    """Contract: a behaviour that ends at step 7 is struck before."""
    fault = combined("f", "the JobSet", "edit", "ending", "fails at step 7", 1, 0)
    assert fault.at.log == r"rank 1\] step 0 "


def test_the_draws_of_a_seed_cover_the_grammar():
    """Contract: within a few hundred draws every object, behaviour and rank comes."""
    descriptions = " ".join(drawn(7, number).about for number in range(600))
    for name in (*grammar().objects, *grammar().behaviours):
        assert name.replace("RANK", "0") in descriptions or name.replace("RANK", "1") in descriptions, name


def test_every_behaviour_is_one_of_the_worker():
    """Contract: what the grammar names, witness.py can do."""
    known = {"healthy", "unaided", *faulty.FAULTS}
    assert {behaviour.worker for behaviour in grammar().behaviours.values()} <= known


def test_a_grammar_with_an_unknown_moment_is_refused(tmp_path):
    """Contract: a mistake in the grammar is an error that names the file."""
    (tmp_path / "g.yaml").write_text("moments: {}\nbehaviours: {}\nobjects: {a: {target: rank}}")
    with pytest.raises(UsageError, match=r"g\.yaml is not a valid grammar"):
        grammar(tmp_path / "g.yaml")


# -- the witness ---------------------------------------------------------------------------------------
def test_the_witness_writes_before_the_client_has_a_row(tmp_path, monkeypatch):
    """Contract: what the worker means to log is in its file even when logging fails."""
    monkeypatch.setattr(witness, "FOLDER", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("HARNESS_NONCE", "abc")

    def main(log):
        log(None, {"loss": 0.5, "other": float("nan")}, 3)

    def fails(*_):
        raise ValueError("logging fails")

    monkeypatch.setattr(witness, "_main", main)
    with pytest.raises(ValueError, match="logging fails"):
        witness.witnessed(fails)
    (file,) = (tmp_path / "abc").glob("1-*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows[0] == [1, "loss", 3, 0.5]
    assert rows[1][:3] == [1, "other", 3]


# -- the oracle ----------------------------------------------------------------------------------------
POINTS = st.sets(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.floats(0, 1)), min_size=1)


@given(POINTS, st.data())
def test_pass_is_wrong_when_any_point_is_not_there(points, data):
    """Property: the oracle says nothing of a whole tracker, and names the rank of any missing point."""
    assert oracle.lacks({0: points}, {*points, ("c", 1, 0.0)}) == ""
    lost = data.draw(st.sampled_from(sorted(points)))
    assert "1 of" in oracle.lacks({0: set(), 3: points}, points - {lost})
    assert "rank 3" in oracle.lacks({0: set(), 3: points}, points - {lost})


@pytest.mark.parametrize(
    ("cause", "ranks", "text", "named", "right"),
    [
        ("rank.killed", [1], "It was killed.", r"rank 1\b", True),
        ("rank.killed", [0, 1], "They were killed.", r"rank 1\b", False),
        ("cluster.node_lost", [], "Node w1-worker was lost.", "w1-worker", True),
        ("run.timed_out", [], "It did not end in time.", "kubelet", False),
    ],
)
def test_a_verdict_names_what_was_disturbed(cause, ranks, text, named, right):
    """Contract: by its cause, its only rank, or its text."""
    verdict = Verdict(verdict="FAIL", cause=cause, ranks=ranks, explanation=text)
    assert oracle.names(verdict, "", named) is right


def _row(name: str, oracle: str) -> Row:
    return Row(fault=name, target="rank", about="A.", expected="", got="", right=True, oracle=oracle)  # type: ignore[arg-type]


def test_one_wrong_pass_is_too_many():
    """Contract: 95 % of the other verdicts must name the disturbance, and no PASS may be wrong."""
    named = [_row(f"n{number}", "named") for number in range(19)]
    assert oracle_table.good([*named, _row("m", "not named"), _row("b", "borne"), _row("x", "not struck")])
    assert not oracle_table.good([*named[1:], _row("m", "not named")])
    assert not oracle_table.good([*named, _row("w", "wrong PASS")])
    assert not oracle_table.good([*named, _row("u", "unseen")])


def test_the_page_lists_every_miss():
    """Contract: docs/reference/random-faults.md counts, and names what was missed."""
    rows = [
        _row("random-1-000", "named"),
        _row("random-1-001", "wrong PASS"),
        _row("random-1-002", "not struck"),
    ]
    page = oracle_table.markdown(rows)
    assert "2 faults took effect" in page
    assert "- **random-1-001**" in page
    assert "1 more had no effect" in page


def test_json_is_one_document(capsys):
    """Contract: with --json, stdout holds the rows alone. Else the drawn faults are counted once."""
    rows = [_row("random-1-000", "named"), _row("random-1-001", "borne")]
    assert commands.report(rows, {}, load(), None, None, None, as_json=True) == 0
    assert [row["fault"] for row in json.loads(capsys.readouterr().out)] == ["random-1-000", "random-1-001"]
    assert commands.report(rows, {}, load(), None, None, None, as_json=False) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert output.count("2 faults took effect") == 1
    assert "rows are right" not in output


def test_every_drawn_rank_exists_in_the_job():
    """Contract: every rank that can be drawn is in the job that is launched."""
    job = (Path(__file__).parents[3] / "jobs" / "multinode.yaml").read_text()
    assert f"num_nodes: {len(RANKS)}" in job


@given(seed=st.integers(0, 1 << 20), number=st.integers(0, 400))
@settings(max_examples=20)
def test_a_generated_program_keeps_the_drawn_fault(seed: int, number: int) -> None:
    fault, plain = drawn(seed, number, generated=True), drawn(seed, number)
    assert by_name(fault.name) == fault
    assert (fault.target, fault.scope, fault.inject, fault.undo) == (
        plain.target,
        plain.scope,
        plain.inject,
        plain.undo,
    )
    assert fault.job.worker.startswith("program.py ey")


def test_the_oracle_reads_the_journal_of_a_program() -> None:
    """A value without a step, or that is None, is not looked for; a rank that did not end with 0 is told."""
    start = {"kind": "start", "role": "rank", "rank": "1", "world_size": "2", "host": "a", "pid": 7}
    leaves = [["m", "float", 1.5], ["n", "none", None], ["k", "nan", "nan"]]
    call = {"kind": "call", "leaves": leaves, "step": 3}
    lines = [json.dumps(line) for line in (start, call, {**call, "step": None}, ["0", "x", 1, 2.0])]
    (killed,) = journal.read([*lines, '{"kind": "call", "lea'])
    assert [str(one) for one in killed.points] == ["('m', 3, 1.5)", "('k', 3, nan)"]
    assert (killed.rank, killed.wrong_end) == (1, "did not end by itself")
    ends = [{"kind": "end", "how": "sys.exit 3", "code": 3}, {"kind": "end", "how": "return", "code": 0}]
    wrong_ends = [journal.read([*lines, json.dumps(end)])[0].wrong_end for end in ends]
    assert wrong_ends == ["ended with 3 (sys.exit 3)", ""]
