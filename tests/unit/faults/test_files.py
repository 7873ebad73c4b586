"""Fault files: strict, known causes, an undo for what outlives the launch; and the jobs that they make."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from harness.core.errors import UsageError
from harness.evidence.io.redaction import Redactor
from harness.evidence.io.writer import BundleWriter
from harness.evidence.schema.bundle import Verdict
from harness.faults import results_table, step_variables
from harness.faults.fault_file import Fault, Job, Step, When, catalogue, load
from harness.faults.fault_job import variant
from harness.faults.inject import begun
from harness.faults.results import judge_row
from harness.launch.konduktor.job_file import JobFile
from harness.launch.workloads.loader import of_manifest

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


def test_catalogue_file_names_begin_with_their_target():
    """Contract: at least 40 faults that are injected; file names begin with what they strike."""
    known = catalogue()
    assert not [name for name, each in known.items() if not name.startswith(f"{each.target}-")]


def test_faults_wait_only_for_stages_of_a_run():
    """Contract: no fault waits for a stage that the harness never writes."""
    source = "".join(path.read_text() for path in Path("harness").rglob("*.py"))
    stages = set(re.findall(r'\.stage\("([^"]+)"\)', source))
    awaited = {each.at.stage for each in catalogue().values() if isinstance(each.at, When) and each.at.stage}
    assert awaited
    assert awaited <= stages


def test_a_stage_has_begun_while_it_lasts_and_afterwards(tmp_path):
    """Contract: the manifest that is being written says so; without a bundle nothing has begun."""
    assert not begun(tmp_path / "latest", "launch")
    writer = BundleWriter.create(tmp_path, "n", Redactor([]))
    assert not begun(tmp_path / "latest", "launch")
    with writer.stage("launch"):
        assert begun(tmp_path / "latest", "launch")
    assert begun(tmp_path / "latest", "launch")
    assert not begun(tmp_path / "latest", "observe")
    writer.release()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "moon"}, "target"),
        ({"expect": {"verdict": "FAIL", "cause": "rank.sulks"}}, "rank.sulks is not a cause"),
        ({"expect": {"verdict": "FAIL"}}, "needs a cause"),
        ({"expect": None}, "one of expect and cannot"),
        ({"cannot": "no"}, "one of expect and cannot"),
        ({"at": {}}, "stage, log or both"),
        ({"inject": [{"docker": "ps", "sh": "true"}]}, "exactly one of"),
        ({"inject": [{}]}, "exactly one of"),
        ({"undo": [{"sleep": 3}]}, "only commands"),
        ({"scope": "cluster", "inject": [{"docker": "pause x"}]}, "needs an undo"),
        ({"inejct": []}, "inejct"),
    ],
)
def test_wrong_file_is_refused_with_its_name_and_field(tmp_path, changes, message):
    """Contract: UsageError names the file and what does not fit."""
    with pytest.raises(UsageError) as error:
        load(write(tmp_path, **changes))
    assert "some-fault.yaml" in str(error.value)
    assert message in str(error.value)


def test_a_job_differs_only_where_its_fault_says_so():
    """Contract: worker, text, shell lines and fields are changed; the rest is the main job."""
    change = Job(
        worker="faulty.py exit3 1", before="export A=1\n", set={"envs/E2E_STEPS": "5", "resources/cpus": 9}
    )
    job = yaml.safe_load(variant(JOB, change))
    assert job["run"].startswith("export A=1\n")
    assert "/workspace/faulty.py exit3 1" in job["run"]
    assert "multinode.py" not in job["run"]
    assert (job["envs"]["E2E_STEPS"], job["resources"]["cpus"]) == ("5", 9)
    assert job["resources"]["memory"] == JOB.document["resources"]["memory"]
    assert yaml.safe_load(variant(JOB, Job())) == JOB.document
    assert variant(JOB, Job(text=": no yaml")) == ": no yaml"
    with pytest.raises(UsageError, match="to replace: 'nothing'"):
        variant(JOB, Job(replace={"nothing": "x"}))


def test_a_manifest_differs_only_where_its_fault_says_so():
    """Contract: shell lines go before the pods' script, and a path begins with the kind of its object."""
    change = Job(
        manifest="netcheck.yaml",
        before="GATE=1\n",
        set={
            "Service/spec/selector": {"app": "nobody"},
            "Job/spec/template/spec/containers/0/image": "x:1",
            "ConfigMap": {"kind": "ConfigMap", "metadata": {"name": "more"}},
        },
    )
    service, job, more = yaml.safe_load_all(variant(JOB, change))
    assert (service["spec"].pop("selector"), more["metadata"]) == ({"app": "nobody"}, {"name": "more"})
    pod = job["spec"]["template"]["spec"]["containers"][0]
    assert pod.pop("image") == "x:1"
    assert pod["args"][0].startswith("GATE=1\n")
    plain_service, plain = yaml.safe_load_all(variant(JOB, Job(manifest="netcheck.yaml")))
    del plain_service["spec"]["selector"]
    del plain["spec"]["template"]["spec"]["containers"][0]["image"]
    pod["args"][0] = pod["args"][0].removeprefix("GATE=1\n")
    assert (service, job) == (plain_service, plain)


def test_user_manifest_gets_container_and_no_script():
    """Contract: the index after a list's last appends. A TorchrunJob has a command and no script."""
    change = Job(
        manifest="manifests/indexed-job.yaml", set={"Job/spec/template/spec/containers/1": {"name": "proxy"}}
    )
    _, job = yaml.safe_load_all(variant(JOB, change))
    assert [each["name"] for each in job["spec"]["template"]["spec"]["containers"]] == ["worker", "proxy"]
    change = Job(manifest="manifests/torchrun-job.yaml", set={"TorchrunJob/spec/command": "true"})
    assert [each["kind"] for each in yaml.safe_load_all(variant(JOB, change))] == [
        "TorchrunQueue",
        "TorchrunJob",
    ]
    with pytest.raises(UsageError, match="no run script; change"):
        variant(JOB, Job(manifest="manifests/torchrun-job.yaml", before="GATE=1\n"))


def test_every_manifest_of_a_fault_can_be_launched():
    """Contract: what a fault makes of a manifest is still a workload, unless it must be refused."""
    refused = {each.name for each in catalogue().values() if each.expect and each.expect.exit is not None}
    made = [each for each in catalogue().values() if each.job.manifest and each.name not in refused]
    assert made
    for each in made:
        of_manifest(list(yaml.safe_load_all(variant(JOB, each.job))), each.name)


def test_steps_are_templates_and_unknown_place_is_error():
    """Contract: arguments are split after rendering; what is not known is named."""
    known = {"kubeconfig": "/k", "context": "c", "pod1": "w-1", "namespace": "n"}
    step = step_variables.command(Step(kubectl="delete pod -n {{ namespace }} {{ pod1 }}"), known, "f")
    assert step.argv == ["kubectl", "--kubeconfig", "/k", "--context", "c", "delete", "pod", "-n", "n", "w-1"]
    assert step_variables.command(Step(sh="a | b", stdin="x {{ pod1 }}"), known, "f").stdin == "x w-1"
    with pytest.raises(UsageError, match="pod7"):
        step_variables.command(Step(docker="pause {{ pod7 }}"), known, "f")


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
def test_a_row_needs_the_right_verdict_cause_and_ranks(got, wrong):
    """Contract: each part is compared, and what differs is named."""
    row = judge_row(fault(), got, 1, "")
    assert (row.right, row.wrong) == (not wrong, wrong)


def test_a_refusal_is_judged_by_exit_code_and_message():
    """Contract: progress lines do not count as what it said."""
    refused = fault(expect={"exit": 64, "message_pattern": "num_nodes"})
    assert judge_row(refused, None, 64, "harness: num_nodes must be at least 1\n").right
    assert not judge_row(refused, None, 2, "harness: num_nodes must be at least 1\n").right
    assert not judge_row(refused, None, 64, "[  1.0s] num_nodes\nharness: no\n").right


def test_the_table_lists_wrong_and_impossible_faults():
    """Contract: one line per row, also when an explanation has line breaks or bars."""
    rows = [
        judge_row(fault(), verdict(), 1, "").model_copy(update={"visible_seconds": 2.5}),
        judge_row(fault(name="b|c"), verdict(ranks=[]), 1, ""),
    ]
    cannot = fault(name="no-disk", expect=None, cannot="There is no disk.")
    text = results_table.markdown(rows, [cannot, fault(name="later")], {"kueue": "1"})
    assert "1 of 2 rows are right" in text
    assert "median 2.5 s" in text
    assert "✗ ranks []" in text
    assert "b\\|c" in text
    assert "There is no disk." in text
    assert "**later**" in text.partition("## Not in this run")[2]
