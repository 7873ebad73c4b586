"""A bundle is read as far as it goes; what cannot be read is said, not raised."""

import json

import bundles
import process_events
import pytest

from harness.core.errors import UsageError
from harness.evidence import Bundle
from harness.evidence.io import reader
from harness.evidence.schema.bundle import SCHEMA_VERSION
from harness.judge import judge
from harness.judge.case import Case


@pytest.fixture
def bundle(tmp_path):
    return bundles.healthy(nodes=2, per_node=2).write(tmp_path / "b")


def test_ranks_know_their_pods(bundle):
    """Contract: with p processes per node, node i holds the ranks from i·p."""
    assert {rank: pod.index for rank, pod in bundle.ranks().items()} == {0: 0, 1: 0, 2: 1, 3: 1}
    assert bundle.pods()[1].node == "e2e-worker2"
    assert bundle.pods()[1].hostname == "multinode-1a2b-workers-0-1"


def test_the_last_state_is_by_resource_version(tmp_path):
    """Contract: the order of the watch's deliveries does not matter, nor that one came twice."""
    job = bundles.healthy()
    job.objects = job.objects[::-1] + job.objects
    bundle = job.write(tmp_path / "b")
    assert {seen.object["status"]["phase"] for seen in bundle.last("pod").values()} == {"Succeeded"}
    assert len(bundle.pods()[0].history) == 4


def test_the_latest_attempt_counts(tmp_path):
    """Contract: after a restart of the JobSet a rank's pod is the one of the highest restart-attempt."""
    job = bundles.healthy()
    labels = {
        "jobset.sigs.k8s.io/jobset-name": bundles.JOBSET,
        "jobset.sigs.k8s.io/restart-attempt": "1",
        "batch.kubernetes.io/job-completion-index": "0",
    }
    again = {"uid": "again", "name": "again", "labels": labels, "creationTimestamp": bundles.at(0)}
    job.pod(0, 40, "Running", metadata=again)
    assert job.write(tmp_path / "b").pods()[0].name == "again"


def test_pods_and_exits_are_read_once(bundle):
    """Contract: every judge sees the same pods and exits, and what is damaged in them is named once."""
    (bundle.path / "exits.jsonl").write_bytes(b"{}\n")
    before = bundle.pod_attempts(), bundle.exits()
    for path in ("objects/pod.jsonl", "exits.jsonl"):
        (bundle.path / path).unlink()
    assert (bundle.pod_attempts(), bundle.exits()) == before
    assert before[0]
    assert bundle.damaged == ["exits.jsonl:1 is not a valid record"]


@pytest.mark.parametrize(
    "path", ["objects/pod.jsonl", "truth/0.jsonl", "tracker/points.jsonl", "tracker/runs.jsonl"]
)
def test_a_cut_last_line_is_damage(bundle, path):
    """Contract: the records before the cut are there, and the cut is listed with its line."""
    file = bundle.path / path
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    cut = Bundle.open(bundle.path)
    readers = {"objects": lambda: cut.history("pod"), "truth": lambda: list(cut.truth(0))}
    count = len({**readers, "tracker": lambda: [*cut.points(), *cut.runs()]}[path.split("/")[0]]())
    last = whole.count(b"\n")
    assert count >= last - 1
    assert any(line.startswith(f"{path}:{last} ") for line in cut.damaged)


def test_a_bundle_of_a_newer_schema_is_not_read(bundle):
    """Contract: the version is named, and a bundle whose meaning is not known is no PASS."""
    manifest = json.loads((bundle.path / "manifest.json").read_text())
    (bundle.path / "manifest.json").write_text(json.dumps({**manifest, "schema_version": SCHEMA_VERSION + 1}))
    newer = Bundle.open(bundle.path)
    assert newer.manifest is None
    assert newer.damaged == [
        f"manifest.json was written by a newer harness: its schema version is {SCHEMA_VERSION + 1}, "
        f"but this harness supports versions up to {SCHEMA_VERSION}"
    ]
    assert judge(newer).verdict == "UNKNOWN"


def test_garbage_is_damage(bundle):
    """Contract: bytes that are no record are listed and passed over."""
    (bundle.path / "objects/pod.jsonl").write_bytes(b'\x00\xff garbage\n{"type": "ADDED"}\n[]\n')
    (bundle.path / "manifest.json").write_bytes(b'{"nonce": ')
    again = Bundle.open(bundle.path)
    assert again.history("pod") == []
    assert again.manifest is None
    assert len(again.damaged) == 4


def test_a_missing_file_is_empty(tmp_path):
    """Contract: an empty folder is a bundle with nothing in it; no folder is a usage error."""
    bundle = Bundle.open(tmp_path)
    assert (bundle.manifest, bundle.summary, bundle.runs(), bundle.pods(), bundle.damaged) == (
        None,
        None,
        [],
        {},
        [],
    )
    with pytest.raises(UsageError, match="no evidence bundle"):
        Bundle.open(tmp_path / "none")


def test_tail_numbers_its_lines(bundle):
    """Contract: references into a log are line numbers of the file."""
    path = bundle.log("multinode-1a2b-workers-0-0-abcd0", bundles.CONTAINER)
    number, text = bundle.tail(path, 1)[0]
    assert (number, text.partition(" ")[2]) == (8, "all-reduce proven, finished")


def test_a_line_beyond_the_bound_is_damage(bundle, monkeypatch):
    """Contract: a line of any length takes little memory, and the lines after it are read."""
    monkeypatch.setattr(reader, "MAX_RECORD_BYTES", 1000)
    (bundle.path / "exits.jsonl").write_bytes(b"x" * 5000 + b"\n{}\n")
    assert [number for number, _ in bundle.lines("exits.jsonl")] == [2]
    assert bundle.damaged == ["exits.jsonl:1 the line has more than 1000 bytes"]


@pytest.mark.parametrize(
    ("given", "ranks", "pods"),
    [(True, 2, {0: 1, 1: 0}), (True, 4, {0: 0, 1: 0, 2: 1, 3: 1}), (False, 4, {0: 1, 1: 0})],
    ids=["the-job's-size", "another-size", "no-size-given"],
)
def test_ranks_are_those_that_the_judges_use(tmp_path, given, ranks, pods):
    """Contract: a recorded world counts where it has the job's size, or where the job's file gives none."""
    job = process_events.recorded(bundles.healthy(nodes=2))
    for index in (0, 1):
        process_events.PodEvents(job, index).torchrun(rank=1 - index)
    expected = job.manifest.expected.model_copy(update={"ranks": ranks, "ranks_given": given})
    job.manifest = job.manifest.model_copy(update={"expected": expected})
    bundle = job.write(tmp_path / "b")
    assert {rank: pod.index for rank, pod in bundle.ranks().items()} == pods
    case = Case(bundle, job.manifest, expected, job.manifest.launch)
    assert {rank: case.node_of(rank) for rank in pods} == pods


def test_a_recorded_world_costs_the_processes_that_are_there(tmp_path):
    """Contract: a process that claims a world of any size makes no list of that size."""
    job = process_events.recorded(bundles.healthy(nodes=2))
    process_events.PodEvents(job, 0).rank(20, 0, 2**62, ppid=1)
    assert sorted(job.write(tmp_path / "b").ranks()) == [0, 1]
