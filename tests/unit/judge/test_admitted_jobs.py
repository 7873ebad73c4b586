"""An attached job that the admission policy recorded. PASS requires logs, pods and points that prove every
rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from admitted_process import RUN, UID, Process
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.attach.rank_pods import describe
from harness.attach.recorded_objects import Recording
from harness.attach.resources import JOB
from harness.evidence import Bundle, BundleWriter, Redactor
from harness.evidence.schema.bundle import Verdict
from harness.evidence.schema.tracker import Point, TrackerRun, TrackerSummary
from harness.judge import judge
from harness.workers.recorder import digest_lines

NOW = "2026-11-28T10:00:01Z"
INDEX = "batch.kubernetes.io/job-completion-index"
Object = dict[str, Any]


def logged(rank: int, **summary: Any) -> list[str]:
    """Return the log of a rank that ran under torchrun and logged five points of its own metric."""
    process = Process(rank, f"attempt{rank}")
    for step in range(5):
        process.log(f"loss/{rank}", step, step / 7, 100 + step)
    process.end(**{"world": 2, "restart": 0, **summary})
    return process.written


def points(rank: int) -> list[Point]:
    row = {"run_id": int(RUN), "metric": f"loss/{rank}", "received_at": NOW}
    return [Point(step=step, value=step / 7, time_ms=100 + step, **row) for step in range(5)]


def pod(index: int) -> Object:
    env = [{"name": "HARNESS_NONCE", "value": UID}, {"name": "HARNESS_RECORDER_MODE", "value": "admitted"}]
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": NOW, "finishedAt": "2026-11-28T10:01:00Z"}
    status = {"name": "main", "image": "i", "restartCount": 0, "state": {"terminated": ended}}
    owner = {"kind": "Job", "name": "train", "uid": UID, "controller": True}
    command = ["bash", "-c", "torchrun --nproc-per-node=1 t.py"]
    return {
        "metadata": {
            "name": f"train-{index}",
            "uid": f"pod-{index}",
            "resourceVersion": "1",
            "creationTimestamp": NOW,
            "annotations": {INDEX: str(index)},
            "ownerReferences": [owner],
        },
        "spec": {
            "nodeName": f"node-{index}",
            "containers": [{"name": "main", "image": "i", "command": command, "env": env}],
        },
        "status": {
            "phase": "Succeeded",
            "containerStatuses": [status],
            "conditions": [{"type": "PodScheduled", "status": "True"}],
        },
    }


@dataclass
class Recorded:
    """The content of the job's bundle. Tests remove or change parts of it."""

    pods: list[Object] = field(default_factory=lambda: [pod(0), pod(1)])
    logs: dict[int, list[str]] = field(default_factory=lambda: {rank: logged(rank) for rank in (0, 1)})
    points: list[Point] = field(default_factory=lambda: [*points(0), *points(1)])
    runs: list[TrackerRun] = field(
        default_factory=lambda: [
            TrackerRun(
                run_id=int(RUN),
                external_id="x",
                project="p",
                status="COMPLETED",
                created_at="2026-11-28T10:00:05Z",
            )
        ]
    )
    gaps: list[str] = field(default_factory=list)
    error: str | None = None
    read: bool = True
    """Whether the tracker was read."""
    begins: str = NOW
    """The time of the first line in each log."""

    def judge(self, folder: Path) -> Verdict:
        template = {"spec": pod(0)["spec"]}
        job = {
            "metadata": {"name": "train", "uid": UID, "creationTimestamp": NOW, "resourceVersion": "1"},
            "spec": {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "template": template},
            "status": {"conditions": [{"type": "Complete", "status": "True"}]},
        }
        found = describe(JOB, "team", "train", job, self.pods)
        folder.mkdir(parents=True)
        writer = BundleWriter(folder, "nonce", Redactor())
        expected = found.expected.model_copy(update={"run_id": "x", "project": "p"})
        writer.update(launch=found.launch, expected=expected, launched_at=NOW, attached_at=NOW)
        recording = Recording(found, writer)
        with writer.stage("observe"):
            recording.add("job", job)
            for index in (0, 1):
                ready = {"conditions": [{"type": "Ready", "status": "True"}]}
                recording.add(
                    "node", {"metadata": {"name": f"node-{index}", "uid": f"n{index}"}, "status": ready}
                )
            for each in self.pods:
                recording.add("pod", each)
                name = each["metadata"]["name"]
                lines = self.logs.get(int(each["metadata"]["annotations"][INDEX]), [])
                if lines:
                    with writer.log_file(name, "main") as file:
                        file.write("".join(f"{self.begins} {line}\n" for line in lines))
        writer.update(watched=["pod", "job", "node"], log_gaps=self.gaps)
        if self.read:
            self._tracker(writer)
        writer.update(ended_at=NOW)
        writer.close()
        return judge(Bundle.open(folder))

    def _tracker(self, writer: BundleWriter) -> None:
        for run in self.runs:
            writer.tracker("runs", run)
        for point in self.points:
            writer.tracker("points", point)
        writer.tracker_summary(
            TrackerSummary(
                source="hosted",
                fetched_at=NOW,
                runs=len(self.runs),
                attachments=None,
                points=len(self.points),
                error=self.error,
            )
        )


def shown(verdict: Verdict) -> str:
    return " | ".join(
        f"{check.name}: {check.explanation}" for check in verdict.checks if check.result != "PASS"
    )


def test_two_ranks_whose_digests_fit_pass(tmp_path: Path) -> None:
    verdict = Recorded().judge(tmp_path / "bundle")
    assert verdict.verdict == "PASS", shown(verdict)
    assert "recorders-agree" not in {check.name for check in verdict.checks}


def without_torchrun(pod: Object, launcher: str, rank: int) -> None:
    """Replace torchrun with another launcher in one of the job's two pods."""
    container = pod["spec"]["containers"][0]
    container["command"] = [launcher, "train.py"]
    container["env"] += [{"name": "RANK", "value": str(rank)}, {"name": "WORLD_SIZE", "value": "2"}]


@pytest.mark.parametrize(("group", "result"), [(1, "PASS"), (0, "UNKNOWN")])
def test_ranks_without_torchrun_pass_with_logs_of_one_world(group: int, result: str, tmp_path: Path) -> None:
    """Contract: WORLD_SIZE alone does not show that the ranks connected to each other, but gloo's log lines
    do."""
    job = Recorded()
    for rank in (0, 1):
        without_torchrun(job.pods[rank], "python", rank)
        text = f"[Gloo] Rank {rank if group else 0} is connected to {group} peer ranks. "
        text += f"Expected number of connected peer ranks is : {group}"
        job.logs[rank] = [text, *logged(rank, restart=None)]
    verdict = job.judge(tmp_path / "bundle")
    assert verdict.verdict == result, shown(verdict)


@pytest.mark.parametrize(
    ("group", "result", "text"),
    [
        ({}, "PASS", ""),
        ({"backend": "fake"}, "UNKNOWN", "do not show whether they met"),
        ({"store": "FileStore"}, "UNKNOWN", "do not show whether they met"),
        ({"backend": "mpi", "store": "NoneType"}, "PASS", ""),
        ({"rank": 0}, "UNKNOWN", "2 ranks were rank 0 of a process group"),
        ({"size": 3}, "UNKNOWN", "3"),
    ],
)
@pytest.mark.parametrize("world", [2, None])
def test_ranks_without_torchrun_pass_with_one_process_group(
    group: dict[str, Any], result: str, text: str, world: int | None, tmp_path: Path
) -> None:
    """Contract: init_process_group returns only after all ranks have joined, so NCCL's logs are not
    needed."""
    job = Recorded()
    for rank in (0, 1):
        without_torchrun(job.pods[rank], "deepspeed", rank)
        usual = {"size": 2, "rank": rank, "backend": "nccl", "store": "TCPStore"}
        each = {**usual, **(group if rank or {"backend", "store"} & group.keys() else {})}
        job.logs[rank] = logged(rank, restart=None, world=world, group=each)
    verdict = job.judge(tmp_path / "bundle")
    assert verdict.verdict == result, shown(verdict)
    assert text.lower() in shown(verdict).lower()


def test_a_script_may_number_its_ranks_anew(tmp_path: Path) -> None:
    """Contract: a process group with all ranks is one world, even if the script numbers the ranks
    differently."""
    job = Recorded()
    for rank in (0, 1):
        job.logs[rank] = logged(
            rank, group={"backend": "gloo", "store": "TCPStore", "rank": 1 - rank, "size": 2}
        )
    verdict = job.judge(tmp_path / "bundle")
    assert verdict.verdict == "PASS", shown(verdict)


def test_ranks_that_train_alone_under_torchrun_do_not_pass(tmp_path: Path) -> None:
    """Contract: each rank trains alone if the script calls init_process_group with world_size=1."""
    job = Recorded()
    for rank in (0, 1):
        job.logs[rank] = logged(rank, group={"backend": "gloo", "store": "TCPStore", "rank": 0, "size": 1})
    verdict = job.judge(tmp_path / "bundle")
    assert verdict.verdict == "UNKNOWN", shown(verdict)
    assert "Rank 0 of 2 was in a process group of size 1" in shown(verdict)


def _env(job: Recorded) -> None:
    job.pods[1]["spec"]["containers"][0]["env"] = []


def _restarts(job: Recorded) -> None:
    job.pods[1]["status"]["containerStatuses"][0]["restartCount"] = 2


def _other_run(job: Recorded) -> None:
    runs = [{"run": "18", "uploads": True, "merged": [], "uncounted": 5, "metrics": [], "groups": []}]
    job.logs[1] = logged(1, runs=runs)


def _other_value(job: Recorded) -> None:
    job.points[7] = job.points[7].model_copy(update={"value": 5.0})


def _two_of_one_rank(job: Recorded) -> None:
    job.logs[1] = logged(0)


MISSING: dict[str, tuple[Callable[[Recorded], object], str, str]] = {
    "the pod of a rank": (lambda job: job.pods.pop(), "UNKNOWN", "its pod does not exist now"),
    "the recorder of a rank": (_env, "UNKNOWN", "rank 1: no recorder was injected into its container"),
    "the log of a rank": (lambda job: job.logs.pop(1), "UNKNOWN", "rank 1: its log was not read"),
    "the lines of a rank": (
        lambda job: job.logs.update({1: ["step 1"]}),
        "UNKNOWN",
        "was injected into its container, but wrote nothing",
    ),
    "the end of a rank's log": (
        lambda job: job.logs.update({1: job.logs[1][:1]}),
        "UNKNOWN",
        "rank 1: train-1: it ended without a summary. Its last line is from",
    ),
    "the world of a rank": (
        lambda job: job.logs.update({1: logged(1, world=1)}),
        "UNKNOWN",
        "the recorders show a WORLD_SIZE of 1, 2, but 2 is expected",
    ),
    "torchrun": (
        lambda job: job.logs.update({1: logged(1, restart=None)}),
        "UNKNOWN",
        "no torchrun started the ranks",
    ),
    "an execution of the container": (_restarts, "UNKNOWN", "its container was restarted 2 times"),
    "a second rank": (
        _two_of_one_rank,
        "UNKNOWN",
        "rank 1: no recorder in its pod wrote a line for this rank",
    ),
    "a point": (lambda job: job.points.pop(), "FAIL", "rank 1: loss/1: 1 of 5 points, in steps 0–999"),
    "a value": (_other_value, "FAIL", "loss/1: 5 points, as many as were logged, but not the same ones"),
    "the run of a rank": (_other_run, "FAIL", "rank 1 logged 5 points to run 18"),
    "the run": (lambda job: job.runs.clear(), "FAIL", "the tracker has no run with id x in project p"),
    "the tracker": (
        lambda job: setattr(job, "error", "the key is wrong"),
        "UNKNOWN",
        "the tracker could not be read: the key is wrong",
    ),
    "the reading": (
        lambda job: setattr(job, "read", False),
        "UNKNOWN",
        "the points in the tracker were not read",
    ),
    "the reading of a log": (
        lambda job: (job.logs.pop(1), job.gaps.append("train-1-main: forbidden")),
        "UNKNOWN",
        "its log could not be read: forbidden",
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_job_without_one_part_of_proof_does_not_pass(name: str, tmp_path: Path) -> None:
    job = Recorded()
    remove, word, text = MISSING[name]
    remove(job)
    verdict = job.judge(tmp_path / "bundle")
    assert verdict.verdict == word, shown(verdict)
    assert text.lower() in shown(verdict).lower()
    assert [check for check in verdict.checks if check.cause == "run.judge_error"] == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)
@given(st.data())
def test_no_lost_line_and_no_lost_point_passes(tmp_path_factory: Any, data: st.DataObject) -> None:
    """If any log lines or points are removed, the verdict is no longer PASS."""
    job = Recorded()
    lines = data.draw(st.sets(st.sampled_from([(r, n) for r in (0, 1) for n in range(len(job.logs[r]))])))
    lost = data.draw(st.sets(st.integers(0, len(job.points) - 1), min_size=0 if lines else 1, max_size=4))
    job.logs = {r: [line for n, line in enumerate(job.logs[r]) if (r, n) not in lines] for r in (0, 1)}
    job.points = [point for at, point in enumerate(job.points) if at not in lost]
    verdict = job.judge(tmp_path_factory.mktemp("lost") / "bundle")
    assert verdict.verdict != "PASS", (lines, lost)


def test_log_that_begins_late_does_not_prove_restarted_rank(tmp_path: Path) -> None:
    job = Recorded(begins="2026-11-28T10:02:00Z")
    assert job.judge(tmp_path / "first").checks  # torchrun started the ranks once, so nothing is missing.
    job.logs[1] = logged(1, restart=1)
    verdict = job.judge(tmp_path / "second")
    assert verdict.verdict == "UNKNOWN"
    assert "the beginning of its log was rotated away" in shown(verdict)


@pytest.mark.parametrize("end", ["0token=", "secret=", "password=", "ApiKey=", "TOKEN=="])
def test_summary_resembling_secret_name_is_not_masked(end: str) -> None:
    """A masked signature would make the rank UNKNOWN."""
    nonce, name = "3f0c9a52", f"3 abcdefgh 0 1/1 AAAA{end}"
    signature = digest_lines.encode_summary(nonce, 3, "abcdefgh", 0, {})[0].rpartition(" ")[2]
    line = f"2026-11-28T10:00:01.5Z {digest_lines.SUMMARY_MARK}{name} {signature}\n"
    assert Redactor(["a-secret-of-the-user"]).text(line) == line
