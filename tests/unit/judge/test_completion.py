"""Jobs that do not complete: each reason has its own cause, and the explanation names the ranks."""

import json

import bundles
import pytest
from bundles import at, cond, stuck, timed_out

from harness.evidence.schema.bundle import DiskUse, Manifest, Stage
from harness.judge import judge
from harness.judge.catalogue import CAUSES


def never_ran(job: bundles.Job) -> bundles.Job:
    """Return a healthy job without pods, data from ranks and later states of its objects."""
    for kind in ("pod", "jobset", "workload"):
        job.drop(kind, 0 if kind == "pod" else 1)
    job.truth, job.logs, job.runs, job.attachments, job.points = {}, {}, [], [], []
    return job


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 1), (2, 1), (2, 2), (3, 4)])
def test_a_healthy_job_passes_every_check(judged, nodes, per_node):
    """Contract: a completed job with all points in one run is a PASS, and each check has an explanation."""
    verdict = judged(bundles.healthy(nodes, per_node))
    assert verdict.verdict == "PASS", verdict
    assert (verdict.cause, verdict.ranks, verdict.consequences) == (None, [], [])
    assert all(check.result == "PASS" and check.explanation for check in verdict.checks)
    assert len({check.name for check in verdict.checks}) == len(verdict.checks) > 20


def test_a_crash_names_rank_node_code_and_last_line(judged):
    """Contract: the first rank that fails is the cause, and the deletion of other pods is a consequence."""
    job = bundles.healthy()
    bundles.crash(job, 1, code=3)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.crashed", [1])
    for part in (
        "Rank 1",
        "e2e-worker2",
        "exited with code 3",
        "torchrun then ended with 1",
        "RuntimeError: boom",
    ):
        assert part in verdict.explanation
    assert "rank 0" in verdict.explanation.split("After it")[1]
    assert any(line.endswith(".log:4") for line in verdict.evidence)
    assert verdict.consequences[0].startswith("run.not_completed: ")
    assert "--rank 1" in verdict.next[0]


def test_torchrun_names_the_local_rank(judged):
    """Contract: if a pod has several ranks, torchrun's report shows which of them failed first."""
    job = bundles.healthy(2, 4)
    bundles.crash(job, 1, code=7)
    report = [
        "Root Cause (first observed failure):",
        "  rank      : 6 (local_rank: 2)",
        "  exitcode  : 7 (pid: 9)",
    ]
    job.logs[job.pod_name(1)] += [f"{at(12, True)} {line}" for line in report]
    assert judged(job).ranks == [6]


def test_rank_that_lost_its_peer_is_not_cause(judged):
    """Contract: if two ranks end at almost the same time, the one that lost its peer is a consequence of the
    other."""
    job = bundles.healthy()
    bundles.crash(job, 1, when=13)
    job.drop_pod(0, after=10)
    job.logs[job.pod_name(0)].append(
        f"{at(11, True)} RuntimeError: Connection closed by peer [10.244.1.3]:1234"
    )
    job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    assert judged(job).ranks == [1]


@pytest.mark.parametrize(
    ("code", "reason", "cause", "words"),
    [
        (137, "OOMKilled", "rank.oom_killed", "out of memory"),
        (137, "Error", "rank.killed", "signal 9 (SIGKILL)"),
        (139, "Error", "rank.killed", "signal 11 (SIGSEGV)"),
        (1, "Error", "rank.crashed", "exited with code 1"),
    ],
)
def test_how_a_container_ended(judged, code, reason, cause, words):
    """Contract: an out-of-memory kill, a signal and an exit code have different causes."""
    job = bundles.healthy()
    bundles.crash(job, 0)
    job.drop_pod(0, after=10)
    job.logs[job.pod_name(0)] = job.logs[job.pod_name(0)][:3]
    job.ended(0, 12, code, reason=reason, message="")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (cause, [0])
    assert words in verdict.explanation


def test_an_exit_code_that_the_shell_swallowed(judged):
    """Contract: if konduktor's message contains a nonzero exit code, the rank has crashed even if its
    container exited with 0."""
    job = bundles.healthy()
    job.drop_pod(1, after=10)
    job.ended(1, 30, 0, message=json.dumps({"exit": 4}))
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1])
    assert "termination message" in verdict.explanation


def test_an_unschedulable_rank_quotes_the_scheduler_message(judged):
    """Contract: the verdict quotes the scheduler's message and names the rank without a node."""
    job = stuck(bundles.healthy(), keep=1)
    why = cond("PodScheduled", "False", "Unschedulable", "0/3 nodes are available: 3 Insufficient cpu")
    job.pod(0, 6, "Running", {"running": {}})
    job.pod(1, 6, "Pending", node=False, conditions=[why])
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.unschedulable", [1])
    assert "3 Insufficient cpu" in verdict.explanation


def test_a_rank_without_a_pod(judged):
    """Contract: a rank that never had a pod is named, with the events that contain the reason."""
    job = stuck(bundles.healthy(), keep=3)
    job.drop_pod(1)
    about = {
        "type": "Warning",
        "involvedObject": {"kind": "Job", "name": "x"},
        "lastTimestamp": bundles.at(6),
    }
    event = {
        "metadata": {"name": "e", "uid": "e"},
        "reason": "FailedCreate",
        "message": "etcdserver: no leader",
    }
    job.see("event", 6, event | about)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.missing", [1])
    assert "no leader" in verdict.explanation


def test_ranks_on_one_node(judged):
    """Contract: if two nodes were requested but the ranks share one node, the verdict is FAIL with its own
    cause."""
    job = bundles.healthy()
    for kind, seen in job.objects:
        if kind == "pod" and "nodeName" in seen.object["spec"]:
            seen.object["spec"]["nodeName"] = "e2e-worker1"
    assert judged(job).cause == "scheduling.not_spread"


def test_rendezvous_names_who_never_came(judged):
    """Contract: the rank that did not join is named, and the rank that waited for it is the evidence."""
    job = stuck(bundles.healthy(), keep=3)
    job.truth = {}
    error = "DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined"
    job.logs[job.pod_name(0)] = [f"{at(60, True)} {error}"]
    job.logs[job.pod_name(1)] = [f"{at(6, True)} sleeping instead"]
    job.ended(0, 61, 1, message='{"exit": 1}')
    job.jobset(62, "Failed")
    gone = {"metadata": {"deletionTimestamp": at(62)}}
    job.pod(1, 62, "Running", {"running": {}}, **gone, type_="DELETED")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rendezvous.timeout", [1])
    assert "1/2 clients joined" in verdict.explanation


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("socket.gaierror: [Errno -2] Name or service not known", "rendezvous.dns"),
        (
            "DistNetworkError: The client socket has timed out after 60000ms while trying to connect",
            "rendezvous.unreachable",
        ),
        ("RuntimeError: Failed to create run: 503", "rank.tracker_unreachable"),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network"
            " address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address in use",
            "port.taken",
        ),
        ("OSError: [Errno 98] Address already in use", "port.taken"),
    ],
)
def test_what_the_last_lines_say(judged, line, cause):
    """Contract: the last error before a rank's first row distinguishes DNS, TCP and tracker problems."""
    job = bundles.healthy()
    bundles.crash(job, 1, code=1)
    job.truth = {}
    job.logs[job.pod_name(1)] = [
        f"{at(9, True)} [W1121 socket.cpp:1] (gai error: -2)",
        f"{at(11)} {line}",
    ]
    assert judged(job).cause == cause


_NO_FREQUENCY = """\
Traceback (most recent call last):
  File "/workspace/train.py", line 9, in <module>
    run = pluto.init(name="node1")
  File "/usr/lib/python3/dist-packages/pluto/sys.py", line 656, in get_info
    'min': min([i['min'] for i in self.cpu_freq]),
           ~~~^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: min() iterable argument is empty"""


@pytest.mark.parametrize(
    ("traceback", "cause"),
    [
        (_NO_FREQUENCY, "rank.no_cpu_frequency"),
        (
            _NO_FREQUENCY.replace("iterable argument is empty", "arg is an empty sequence"),
            "rank.no_cpu_frequency",
        ),
        ("\n".join(f"[rank1]: {line}" for line in _NO_FREQUENCY.splitlines()), "rank.no_cpu_frequency"),
        (_NO_FREQUENCY.replace("pluto/sys.py", "mine/data.py"), "rank.crashed"),
        (_NO_FREQUENCY.replace("in get_info", "in monitor"), "rank.crashed"),
        (_NO_FREQUENCY.replace("    'min'", "  File \"/w/x.py\", line 3, in f\n    'min'"), "rank.crashed"),
    ],
)
def test_kernel_without_cpu_frequency_is_cause_only_in_client(judged, traceback, cause):
    """Contract: the same error in code other than the client is a crash of the rank."""
    job = bundles.healthy()
    bundles.crash(job, 1, code=1)
    job.truth = {}
    job.logs[job.pod_name(1)] = [f"{at(11)} {line}" for line in traceback.splitlines()]
    verdict = judged(job)
    assert verdict.cause == cause
    assert "ValueError: min()" in verdict.explanation


def test_a_hang_is_named_by_its_most_silent_rank(judged):
    """Contract: the ranks that are still running are named. They do not count as failed because the harness
    kills them."""
    job = stuck(bundles.healthy(), keep=3)
    timed_out(job, 40)
    job.logs[job.pod_name(1)] = [f"{at(9, True)} step 3"]
    for index in range(2):
        killed = {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": at(42), "message": ""}}
        job.pod(index, 42, "Failed", killed, metadata={"deletionTimestamp": at(41)}, type_="DELETED")
    job.jobset(43, type_="DELETED")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "run.timed_out", [0, 1])
    assert "Rank 1" in verdict.explanation
    assert "step 3" in verdict.explanation


def test_a_stage_that_failed_is_judged_like_any_other(judged):
    """Contract: a failed stage's cause becomes the verdict's cause. Without a cause, the verdict is
    UNKNOWN."""
    job = bundles.Job()
    failed = Stage(
        name="cluster", started_at="t", seconds=3, ok=False, error="no daemon", cause="docker.daemon_down"
    )
    job.manifest = Manifest(nonce="n", started_at="t", ended_at="t", stages=[failed])
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "docker.daemon_down")
    assert "no daemon" in verdict.explanation
    job.manifest = job.manifest.model_copy(update={"stages": [failed.model_copy(update={"cause": "odd"})]})
    assert judged(job).cause == "run.harness_error"


def test_a_launch_that_made_nothing(judged):
    """Contract: if the launcher exits with 0 but creates no object, the verdict is FAIL."""
    job = never_ran(bundles.healthy())
    launch = job.manifest.launch.model_copy(update={"uid": None, "object_name": None})
    job.manifest = job.manifest.model_copy(update={"launch": launch})
    assert judged(job).cause == "launch.jobset_not_found"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"interrupted": "SIGINT"}, "run.interrupted"),
        ({"ended_at": None, "in_stage": "observe"}, "run.harness_killed"),
    ],
)
def test_a_harness_that_stopped_early_knows_nothing(judged, change, cause):
    """Contract: if the harness stopped before the job's end and nothing failed, the verdict is UNKNOWN."""
    job = stuck(bundles.healthy(), keep=3)
    job.manifest = job.manifest.model_copy(update=change)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", cause)


def test_a_log_with_a_gap_is_no_pass(judged):
    """Contract: if a log is known to be incomplete, the verdict is UNKNOWN."""
    job = bundles.healthy()
    gap = f"{job.pod_name(1)}-{bundles.CONTAINER}: the log could not be read to the end"
    job.manifest = job.manifest.model_copy(update={"log_gaps": [gap]})
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("UNKNOWN", "run.log_incomplete", [1])


def test_a_pod_that_somebody_deleted(judged):
    """Contract: a deletion before any failure is the cause."""
    job = stuck(bundles.healthy(), keep=3)
    for index, when in ((1, 12), (0, 14)):
        gone = {"metadata": {"deletionTimestamp": at(when)}}
        job.pod(index, when, "Running", {"running": {}}, **gone, type_="DELETED")
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.pod_deleted", [1])


def test_every_cause_named_is_in_the_list(judged):
    """Contract: the verdict and all checks use registered causes."""
    job = bundles.healthy()
    bundles.crash(job, 1)
    verdict = judged(job)
    assert {verdict.cause, *(check.cause for check in verdict.checks)} - {None} <= set(CAUSES)


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM", "a bug", None])
@pytest.mark.parametrize("when", [0.5, 1.2, 1.7, 3.2, 4.05, 4.7, 5.05, 8.5, 12, 31])
def test_a_healthy_job_that_is_interrupted_never_fails(judged, signal, when):
    """Contract: if the harness is stopped or killed, no check fails because of evidence that does not exist
    yet."""
    job = bundles.healthy()
    job.objects = [pair for pair in job.objects if pair[1].received_at <= at(when, True)]
    job.truth = {rank: lines[: int(when) // 2] for rank, lines in job.truth.items()}
    job.points = job.points[: int(when) // 4]
    job.attachments = job.attachments[: int(when > 8) + int(when > 10)]
    job.runs = [job.runs[0].model_copy(update={"status": "RUNNING"})] if when > 8 else []
    stages = [*job.manifest.stages[:-1], Stage(name="observe", started_at=at(0.2, True), seconds=when - 0.2)]
    if signal:
        stages[-1] = stages[-1].model_copy(update={"ok": False, "error": signal})
    interrupted = signal if signal != "a bug" else None
    change = {"stages": stages, "interrupted": interrupted, "in_stage": None if signal else "observe"}
    job.manifest = job.manifest.model_copy(update={**change, **({} if signal else {"ended_at": None})})
    verdict = judged(job)
    assert verdict.verdict == "UNKNOWN", verdict.explanation
    causes = {None: "run.harness_killed", "a bug": "run.harness_error"}
    assert verdict.cause == causes.get(signal, "run.interrupted")
    assert "stage observe" in verdict.explanation


def test_a_full_disk_names_who_holds_it(tmp_path):
    """Contract: the explanation lists the largest consumers of disk space, and `next` contains the commands
    that free it."""
    job = bundles.healthy()
    error = "manifest.json could not be written: No space left on device"
    full = Stage(
        name="collect",
        started_at=at(3, True),
        seconds=1,
        ok=False,
        error=error,
        cause="run.evidence_disk_full",
    )
    disk = DiskUse(
        what="pod e2e-1/worker-0 of cluster c, which has ended",
        bytes=60 * 2**30,
        command="kubectl delete pod",
    )
    job.manifest = job.manifest.model_copy(update={"stages": [*job.manifest.stages, full], "disk": [disk]})
    verdict = judge(job.write(tmp_path / "bundle"))
    assert verdict.cause == "run.evidence_disk_full"
    assert "pod e2e-1/worker-0 of cluster c, which has ended, holds 60.0 GiB" in verdict.explanation
    assert "kubectl delete pod" in verdict.next


@pytest.mark.parametrize(("mark", "whole"), [(True, True), (False, False)])
def test_a_log_that_stops_early(judged, mark, whole):
    """Contract: a log without the line that contains the exit code is incomplete, even if no gap was
    reported."""
    job = bundles.healthy()
    job.manifest = job.manifest.model_copy(update={"watched": ["pod"]})
    for index in range(2):
        lines = [f"{bundles.at(6, True)} ===== KONDUKTOR: Running task =====", *job.logs[job.pod_name(index)]]
        end = f"{bundles.at(30, True)} ===== KONDUKTOR: Running task finished with exit code: 0 ==="
        job.logs[job.pod_name(index)] = [*lines, *([end] if mark or index == 0 else [])]
    verdict = judged(job)
    logs = next(check for check in verdict.checks if check.name == "logs")
    assert (logs.result == "PASS") is whole
    if not whole:
        assert (verdict.verdict, verdict.cause, verdict.ranks) == ("UNKNOWN", "run.log_incomplete", [1])
        assert "without a line for the exit code" in verdict.explanation


@pytest.mark.parametrize(
    ("other", "message"), [("e2e-worker2", "with mn-"), ("e2e-worker1", "the ports of node")]
)
def test_a_host_network_port_conflict_names_pod_or_node(judged, other, message):
    job = bundles.healthy()
    bundles.crash(job, 1, code=1)
    job.truth = {}
    job.logs[job.pod_name(1)] = [f"{at(11)} OSError: [Errno 98] Address already in use"]
    for kind, state in job.objects:
        if kind == "pod":
            spec = state.object["spec"]
            spec["hostNetwork"] = True
            if spec.get("nodeName") == "e2e-worker1":
                spec["nodeName"] = other
    verdict = judged(job)
    assert verdict.cause == "port.taken"
    assert message.replace("with mn-", f"with {job.pod_name(0)}") in verdict.explanation


@pytest.mark.parametrize("why", ["i/o timeout", "connect: connection refused", "connect: no route to host"])
def test_an_unreachable_kubelet_explains_an_unread_log(judged, why: str) -> None:
    """Contract: a log that could not be read proves nothing about its rank."""
    job = bundles.healthy()
    error = f"HTTP 500: Get https://10.0.0.2:10250/containerLogs/x: dial tcp 10.0.0.2:10250: {why}"
    gap = f"{job.pod_name(1)}-{bundles.CONTAINER}: {error}"
    job.manifest = job.manifest.model_copy(update={"log_gaps": [gap]})
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("UNKNOWN", "cluster.kubelet_unreachable", [1])
    assert f"(dial tcp 10.0.0.2:10250: {why})" in verdict.explanation
    assert not verdict.consequences


def test_harness_stopped_while_pods_ran_misses_nothing(judged):
    """Contract: if the pods are running when the harness stops, the verdict does not report a missing node.
    One of these pods got its node only at the last moment."""
    job = bundles.healthy()
    job.drop("workload", 2)
    job.drop("jobset", 2)
    for index in range(job.nodes):
        job.drop_pod(index)
        job.truth[index] = []
    message = "0/3 nodes are available: 1 Insufficient cpu."
    waits = bundles.cond("PodScheduled", "False", "Unschedulable", message)
    job.pod(1, 9, "Pending", None, conditions=[waits])
    for index in range(job.nodes):
        job.pod(index, 10, "Running", {"running": {"startedAt": at(10)}})
    job.runs, job.points = [], []
    verdict = judged(job)
    assert verdict.verdict == "UNKNOWN", verdict.explanation
    completed = next(check for check in verdict.checks if check.name == "completed")
    assert "all its pods were running" in completed.explanation
    assert message in completed.explanation


def test_job_that_completes_before_a_rank_is_no_pass(judged):
    """Contract: kubeflow/trainer#1982. A success policy that names only the leader ends the job early."""
    job = bundles.healthy()
    job.drop_pod(1, after=20)
    verdict = judged(job)
    assert (verdict.verdict, verdict.ranks) == ("UNKNOWN", [1])
    assert verdict.explanation.startswith("The JobSet completed, but rank 1 still ran")


def test_failed_worker_of_a_completed_job_is_named(judged):
    """Contract: kinetic#239 and mxnet-operator#38. The controller looks only at the leader."""
    job = bundles.healthy()
    job.drop_pod(1, after=20)
    job.ended(1, 26, 1, message='{"exit": 1}')
    assert (judged(job).cause, judged(job).ranks) == ("rank.crashed", [1])
