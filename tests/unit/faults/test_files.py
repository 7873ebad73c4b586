"""Fault files: strict, known causes, an undo for what outlives the launch; and the jobs that they make."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.core.errors import UsageError
from harness.evidence.schema import Verdict
from harness.faults import places, table
from harness.faults.fault import Fault, Job, Step, catalogue, load
from harness.faults.inject import variant
from harness.faults.rows import judge_row
from harness.launch.konduktor.job_file import JobFile

JOB = JobFile.load(Path("jobs/multinode.yaml"))
FAULT = {
    "about": "A.",
    "target": "rank",
    "expect": {"verdict": "FAIL", "cause": "rank.crashed", "ranks": [1]},
}


def write(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "some-fault.yaml"
    path.write_text(yaml.safe_dump({**FAULT, **changes}))
    return path


def fault(**changes: object) -> Fault:
    return Fault(**{"name": "some-fault", **FAULT, **changes})


def test_the_catalogue_can_be_read_and_is_what_the_issue_asks_for():
    """Contract: at least 40 faults that are injected; file names begin with what they strike."""
    known = catalogue()
    assert not [name for name, each in known.items() if not name.startswith(f"{each.target}-")]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": "moon"}, "target"),
        ({"expect": {"verdict": "FAIL", "cause": "rank.sulks"}}, "rank.sulks is no cause"),
        ({"expect": {"verdict": "FAIL"}}, "needs a cause"),
        ({"expect": None}, "one of expect and cannot"),
        ({"cannot": "no"}, "one of expect and cannot"),
        ({"at": {"log": "x", "progress": "y"}}, "one of progress and log"),
        ({"inject": [{"docker": "ps", "sh": "true"}]}, "exactly one of"),
        ({"inject": [{}]}, "exactly one of"),
        ({"undo": [{"sleep": 3}]}, "commands only"),
        ({"scope": "cluster", "inject": [{"docker": "pause x"}]}, "needs an undo"),
        ({"inejct": []}, "inejct"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_field(tmp_path, changes, said):
    """Contract: UsageError names the file and what does not fit."""
    with pytest.raises(UsageError) as error:
        load(write(tmp_path, **changes))
    assert "some-fault.yaml" in str(error.value)
    assert said in str(error.value)


def test_a_job_differs_only_where_its_fault_says_so():
    """Contract: worker, text, shell lines and fields are changed; the rest is the main job."""
    change = Job(
        worker="faulty.py exit3 1", before="export A=1\n", set={"envs/E2E_STEPS": "5", "resources/cpus": 9}
    )
    made = yaml.safe_load(variant(JOB, change))
    assert made["run"].startswith("export A=1\n")
    assert "/workspace/faulty.py exit3 1" in made["run"]
    assert "multinode.py" not in made["run"]
    assert (made["envs"]["E2E_STEPS"], made["resources"]["cpus"]) == ("5", 9)
    assert made["resources"]["memory"] == JOB.document["resources"]["memory"]
    assert yaml.safe_load(variant(JOB, Job())) == JOB.document
    assert variant(JOB, Job(text=": no yaml")) == ": no yaml"
    with pytest.raises(UsageError, match="no 'nothing'"):
        variant(JOB, Job(replace={"nothing": "x"}))


def test_steps_are_templates_and_an_unknown_place_is_an_error():
    """Contract: arguments are split after rendering; what is not known is named."""
    known = {"kubeconfig": "/k", "context": "c", "pod1": "w-1", "namespace": "n"}
    made = places.command(Step(kubectl="delete pod -n {{ namespace }} {{ pod1 }}"), known, "f")
    assert made.argv == ["kubectl", "--kubeconfig", "/k", "--context", "c", "delete", "pod", "-n", "n", "w-1"]
    assert places.command(Step(sh="a | b", stdin="x {{ pod1 }}"), known, "f").stdin == "x w-1"
    with pytest.raises(UsageError, match="pod7"):
        places.command(Step(docker="pause {{ pod7 }}"), known, "f")


def verdict(**changes: object) -> Verdict:
    return Verdict(
        **{"verdict": "FAIL", "cause": "rank.crashed", "ranks": [1], "explanation": "it left", **changes}
    )


@pytest.mark.parametrize(
    ("got", "wrong"),
    [
        (verdict(), ""),
        (verdict(cause="rank.killed"), "verdict or cause"),
        (verdict(verdict="UNKNOWN"), "verdict or cause"),
        (verdict(ranks=[0, 1]), "ranks [0, 1]"),
        (None, "verdict or cause"),
    ],
)
def test_a_row_is_right_only_if_verdict_cause_and_ranks_are(got, wrong):
    """Contract: each part is compared, and what differs is named."""
    row = judge_row(fault(), got, 1, "")
    assert (row.right, row.wrong) == (not wrong, wrong)


def test_a_refusal_is_judged_by_its_exit_code_and_what_it_says():
    """Contract: progress lines do not count as what it said."""
    refused = fault(expect={"exit": 64, "message_pattern": "num_nodes"})
    assert judge_row(refused, None, 64, "harness: num_nodes must be at least 1\n").right
    assert not judge_row(refused, None, 2, "harness: num_nodes must be at least 1\n").right
    assert not judge_row(refused, None, 64, "[  1.0s] num_nodes\nharness: no\n").right


def test_the_table_shows_what_is_wrong_and_what_cannot_be_done():
    """Contract: one line per row, also when an explanation has line breaks or bars."""
    rows = [
        judge_row(fault(), verdict(), 1, "").model_copy(update={"visible_seconds": 2.5}),
        judge_row(fault(name="b|c"), verdict(ranks=[]), 1, ""),
    ]
    cannot = fault(name="no-disk", expect=None, cannot="There is no disk.")
    text = table.markdown(rows, [cannot, fault(name="later")], {"kueue": "1"})
    assert "1 of 2 rows are right" in text
    assert "median 2.5 s" in text
    assert "✗ ranks []" in text
    assert "b\\|c" in text
    assert "There is no disk." in text
    assert "**later**" in text.partition("## Not in this run")[2]
