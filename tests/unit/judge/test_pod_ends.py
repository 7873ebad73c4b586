"""The first end of a rank and its reason, such as a hidden exit code or a deletion."""

import json
import re

import bundles
import pytest
from acceptance_bundles import node_of, report
from bundles import at
from ended_pods import IN_CLIENT, failing, says, stamped

from harness.evidence.schema.acceptance import AcceptanceCheck, AcceptanceRecord


@pytest.mark.parametrize(("word", "masked"), [("FAIL", False), ("UNKNOWN", False), ("PASS", True)])
def test_a_reported_acceptance_failure_is_no_masked_exit_code(judged, word, masked):
    """Contract: the acceptance report is judged, and not torchrun's report of the failure. A report that
    passed does not explain an exit code."""
    job = bundles.healthy(2)
    says(job, 0, ["[RESULT] 1 checks"], code=1, shell=0)
    job.logs[job.pod_name(1)] = stamped(["[RESULT] 1 checks"])
    failed = AcceptanceCheck(id="ddp.hang", tag="DDP", verdict=word, text="it hangs", cause="collective.hung")
    more = {"kind": "ddp", "ranks": 2, "hosts": {"0": node_of(0), "1": node_of(1)}, "verdict": word}
    whole = report(node_of(0), [failed], **more)
    job.accepted.append(AcceptanceRecord(at=at(8, True), pod=job.pod_name(0), report=whole))
    launch = job.manifest.launch.model_copy(update={"acceptance": "ddp"})
    job.manifest = job.manifest.model_copy(update={"launch": launch})
    causes = {check.cause for check in judged(job).checks}
    assert ("rank.exit_code_masked" in causes) is masked


def test_an_exit_code_that_the_run_script_swallowed(judged):
    """Contract: torchrun's failure report at the end of a log proves a failure even if the pods succeeded."""
    job = bundles.healthy()
    says(
        job,
        0,
        ["[rank0]: RuntimeError: [./gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:5"],
        shell=0,
    )
    says(job, 1, ["about to leave at step 7 with exit code 3"], code=3, shell=0)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.exit_code_masked", [1])
    assert (
        "exited with code 0 even though torchrun reports that rank 1 failed with exit code 3"
        in verdict.explanation
    )


def test_a_report_that_something_follows_swallowed_nothing(judged):
    """Contract: a run script that retries after a failure is not accused of hiding an exit code."""
    job = bundles.healthy()
    says(job, 1, [], code=3, shell=0)
    job.logs[job.pod_name(1)] += stamped(["[rank 1] done: 12 points"])
    assert judged(job).verdict == "PASS"


def test_a_rank_that_left_early(judged):
    """Contract: if a rank exits with 0 before the end of its ground truth, the verdict names it, and not its
    peer."""
    job = failing()
    says(job, 0, ["[rank0]: RuntimeError: [./gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:5"])
    job.ended(1, 11, 0, message=json.dumps({"exit": 0}))
    job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    job.jobset(14, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.exited_early", [1])
    assert "Connection closed by peer" in verdict.explanation.split("After it")[1]


def test_rank_with_fewer_batches_is_named_beside_peer(judged):
    """Contract: rank 1 finished its own work (meta-pytorch/torchrec#189), so it has not failed. The verdict
    still mentions that it had ended, and after which step.
    """
    job = failing()
    job.truth[1] = bundles.healthy().truth[1]
    says(job, 0, ["[rank0]: RuntimeError: [./gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:5"])
    job.ended(1, 11, 0, message=json.dumps({"exit": 0}))
    job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    job.jobset(14, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [0])
    assert re.search(r"Rank 1 \(.*\) had ended with exit code 0 after step 5 by then", verdict.explanation)


def test_a_silent_peer_of_a_timeout_is_named(judged):
    """Contract: rank 1 left no stack (pytorch/gloo#511), so a hang is not proved, but the rank is named."""
    job = failing()
    error = "[rank0]: RuntimeError: [../gloo/buffer.cc:81] Timed out waiting 20000ms for recv operation"
    says(job, 0, ["[rank 0] step 7 loss 0.5", error])
    says(job, 1, ["[rank 1] step 6 loss 0.5"], code=-15)
    job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    job.ended(
        1, 14, 143, message="", metadata={"deletionTimestamp": at(43), "deletionGracePeriodSeconds": 30}
    )
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [0])
    assert "was still running and had reported no timeout" in verdict.explanation


@pytest.mark.parametrize("peer", ["taken down", "lost it"])
def test_a_deleted_pod_whose_end_was_seen(judged, peer):
    """Contract: a deletion before any rank ended is the cause, and the end of a peer after it is a
    consequence."""
    job = failing()
    gone = {"metadata": {"deletionTimestamp": at(42), "deletionGracePeriodSeconds": 30}}
    job.pod(1, 12.1, "Running", {"running": {"startedAt": at(5)}}, **gone)
    job.ended(1, 13, 143, message="", **gone)
    if peer == "lost it":
        says(job, 0, ["[rank0]: RuntimeError: [./gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:5"])
        job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    else:
        job.pod(0, 13.6, "Running", {"running": {"startedAt": at(5)}}, **gone)
        job.ended(0, 14, 143, message="", **gone)
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.pod_deleted", [1])
    assert "was deleted while it ran, and ended by signal 15" in verdict.explanation


@pytest.mark.parametrize(("failed_at", "peer"), [(12, "stopped"), (30, "deleted while it ran")])
def test_pod_deleted_by_job_after_another_deletion(judged, failed_at, peer):
    """Contract: the first deletion is the cause, even if both occurred within the same second. The Job
    controller counts a pod that is being deleted as failed, and deletes the others before it writes its
    condition. A Job that fails much later did not delete them.
    """
    job = failing()
    gone = {"metadata": {"deletionTimestamp": at(14), "deletionGracePeriodSeconds": 2}}
    for index, seen in ((1, 12.2), (0, 12.9)):
        job.pod(index, seen, "Running", {"running": {"startedAt": at(5)}}, **gone)
    failed = bundles.cond("FailureTarget", "True", "BackoffLimitExceeded", "limit", failed_at)
    metadata = {"name": "main-workers-0", "namespace": bundles.NAMESPACE, "uid": "job-uid"}
    job.see("job", 13, {"kind": "Job", "metadata": metadata, "spec": {}, "status": {"conditions": [failed]}})
    for index in (0, 1):
        job.ended(index, 13, 143, message="", **gone)
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.pod_deleted", [1])
    assert f"After it: rank 0 (pod {job.pod_name(0)} on node e2e-worker1) was {peer}" in verdict.explanation


def test_a_rank_that_failed_before_its_pod_was_deleted(judged):
    """Contract: the rank's own exit code is the cause, even if its peer's end was recorded first."""
    job = failing()
    gone = {"metadata": {"deletionTimestamp": at(42), "deletionGracePeriodSeconds": 30}}
    says(job, 0, ["[rank0]: RuntimeError: [./gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:5"])
    says(job, 1, ["ValueError: boom"], code=3)
    job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    job.pod(1, 12.6, "Running", {"running": {"startedAt": at(5)}}, **gone)
    job.ended(1, 12, 143, message="", **gone)
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1])
    assert "ValueError: boom" in verdict.explanation


def test_client_log_lines_do_not_hide_an_exception(judged):
    """Contract: the client's last log lines do not hide an exception."""
    job = failing()
    says(
        job,
        1,
        [
            "[rank1]: ValueError: a fault at step 7",
            "pluto: 🚀 08:49:17 | Operation: View run",
            "x [pluto-sync] INFO: bye",
        ],
    )
    job.ended(1, 12, 1, message=json.dumps({"exit": 1}))
    job.jobset(14, "Failed")
    assert "last log line: [rank1]: ValueError: a fault at step 7" in judged(job).explanation


FULL = "OSError: [Errno 28] No space left on device: '/out/train/.epoch-1'"
TORCH = "RuntimeError: [enforce fail at inline_container.cc:8] . PytorchStreamWriter failed writing file a/7"
CLOSING = "RuntimeError: [enforce fail at inline_container.cc:626] . unexpected pos 5943232 vs 5943124"
LOST = "RuntimeError: [./gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:5"


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([f"[rank1]: {FULL}"], "rank.write_failed"),
        ([TORCH], "rank.write_failed"),
        ([TORCH, "", CLOSING], "rank.write_failed"),
        (["OSError: [Errno 5] Input/output error: '/out/x'"], "rank.write_failed"),
        (["OSError: [Errno 122] Disk quota exceeded"], "rank.write_failed"),
        ([FULL, f"[rank1]: {LOST}"], "rank.write_failed"),
        ([FULL, "ValueError: boom"], "rank.crashed"),
        ([f"could not write a cache: {FULL}", "ValueError: boom"], "rank.crashed"),
        ([f"could not write a cache: {FULL}", "on it goes"], "rank.crashed"),
        (["cp: error writing '/out/x': No space left on device"], "rank.write_failed"),
    ],
)
def test_a_failed_write_is_named_only_if_fatal(judged, lines, cause):
    """Contract: a failed write is the cause even after many steps, but only if it ended the rank."""
    job = failing()
    says(job, 1, lines)
    job.ended(1, 12, 1, message=json.dumps({"exit": 1}))
    job.jobset(14, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (cause, [1])


def evicted(job, when, why):
    """Let rank 1's kubelet evict its pod, and return the pod's last state, which contains the reason."""
    job.drop_pod(1, after=10)
    job.ended(1, when, 143, message="")
    _, last = [pair for pair in job.objects if pair[0] == "pod"][-1]
    last.object["status"].update(reason="Evicted", message=why)
    return last


def test_pod_that_its_kubelet_evicted_was_not_just_killed(judged):
    """Contract: the kubelet ends the containers of a pod that exceeds its storage limit, and writes the
    reason to the pod's status."""
    job = bundles.healthy()
    bundles.crash(job, 1, 143)
    why = "Pod ephemeral local storage usage exceeds the total limit of containers 100Mi. "
    evicted(job, 12, why)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.evicted", [1])
    assert why.strip() in verdict.explanation
    assert ". ." not in verdict.explanation


def test_container_that_its_kubelet_lost_with_evicted_pod(judged):
    """Contract: the container ran and was not restarted, and the eviction precedes the end of its peer."""
    job = bundles.healthy()
    bundles.crash(job, 0, 143)
    last = evicted(job, 9, "It wrote 30Mi. ")
    lost = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}
    for status in last.object["status"]["containerStatuses"]:
        status |= {"state": lost, "lastState": lost, "restartCount": 1}
        status.pop("containerID", None)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.evicted", [1])
    assert next(check for check in verdict.checks if check.name == "restarts").result == "PASS"


def test_a_rank_that_is_cut_off_from_the_tracker(judged):
    """Contract: a rank whose stack is in a request of Pluto's client is waiting for the tracker."""
    job = failing()
    says(job, 1, IN_CLIENT)
    says(job, 0, ["RuntimeError: Connection closed by peer"])
    job.ended(1, 12, 1)
    job.ended(0, 12, 1)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.tracker_unreachable", [1])
    assert (
        "waited for the tracker in a request of Pluto's client, in create_connection (socket.py line 849)"
        in verdict.explanation
    )
    assert "attempt 3/5: connection error" in verdict.explanation


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            [
                "torch.distributed.DistBackendError: NCCL error in: x.cpp:1331, unhandled system error",
                "ncclSystemError: System call (e.g. socket, malloc) or external library call failed.",
                "Last error:",
                "socketStartConnect: Connect to 127.0.0.1<45069> failed : Software caused connection abort",
            ],
            id="awslabs/awsome-distributed-ai#192",
        ),
        pytest.param(
            [
                "torch.distributed.DistBackendError: NCCL error in: x.cpp:1970, unhandled system error",
                "Last error:",
                "socketStartConnect: Connect to fe80::966d:ae03:a2:8cf0%ib1<17943> failed : No route",
            ],
            id="NVIDIA/nccl#975",
        ),
        pytest.param(
            [
                "RuntimeError: Gloo connectFullMesh failed with [/x/gloo/tcp/pair.cc:152] timed out "
                "connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:41187 (rank=1, size=2)"
            ],
            id="aws-samples/aws-do-eks#69",
        ),
    ],
)
def test_address_that_only_its_own_host_reaches_is_named(judged, lines):
    """Contract: the ranks listened on a loopback or link-local address, and sent it to each other."""
    job = failing()
    for rank in range(2):
        job.truth[rank] = []
        says(job, rank, lines)
        job.ended(rank, 12, 1)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "address.advertised", [0, 1])
    assert lines[-1][-60:] in verdict.explanation
    assert any("NCCL_SOCKET_IFNAME" in step for step in verdict.next)


@pytest.mark.parametrize(
    ("after", "cause"), [("frame #{n}: c10d::x", "rendezvous.unreachable"), ("step {n}", "rank.crashed")]
)
def test_error_of_start_counts_across_long_stack_only(judged, after, cause):
    """Contract: an attached job has no ground truth that shows whether the training began."""
    job = failing()
    for rank in range(2):
        job.truth[rank] = []
        first = "RuntimeError: connect() timed out. Original timeout was 60000 ms."
        says(job, rank, [first, *(after.format(n=n) for n in range(400)), "ValueError: no data"])
        job.ended(rank, 12, 1)
    assert judged(job).cause == cause


def test_loopback_is_right_within_one_pod(judged):
    """Contract: on one node, the ranks can reach each other through loopback until one of them ends."""
    job = bundles.healthy(nodes=1, per_node=2)
    job.drop("workload", 2)
    job.drop("jobset", 2)
    job.drop_pod(0, after=10)
    job.truth = {rank: [] for rank in range(2)}
    error = "socketStartConnect: Connect to 127.0.0.1<45069> failed : Connection refused"
    says(job, 0, ["torch.distributed.DistBackendError: NCCL error in: x.cpp:1331", "Last error:", error])
    job.ended(0, 12, 1)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "rank.crashed")
    assert error in verdict.explanation


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: [enforce fail at ./gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find "
        "address for: ^lo",
        "[DDP] rank 0: GLOO_SOCKET_IFNAME=ens5: the pod has no interface 'ens5'. The pod has eth0, lo",
        "torch.distributed.DistBackendError: NCCL error, unhandled system error: Last error:",
    ],
)
def test_interface_that_variable_names_and_pod_lacks(judged, line):
    """Contract: gloo accepts only interface names, so NCCL's exclusion patterns do not apply to it."""
    job = failing()
    lines = [line, "Bootstrap : no socket interface found"] if "NCCL" in line else [line]
    for rank in range(2):
        job.truth[rank] = []
        says(job, rank, lines)
        job.ended(rank, 12, 1)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "variables.interface", [0, 1])
    assert lines[-1][-40:] in verdict.explanation
    assert any("only NCCL accepts ^NAME" in step for step in verdict.next)


def test_log_that_was_not_collected_is_not_called_empty(judged):
    job = failing()
    says(job, 0, ["bash: line 1: python: command not found"], code=127)
    del job.logs[job.pod_name(1)]
    job.ended(0, 12, 127, message=json.dumps({"exit": 127}))
    job.ended(1, 12, 127, message=json.dumps({"exit": 127}))
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert "Its log was not collected" in verdict.explanation
    assert "log is empty" not in verdict.explanation
