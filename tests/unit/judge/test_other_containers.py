"""Other containers in a rank's pod that prevent a job from starting or ending are named in the verdict."""

import json

import bundles
import pytest
from bundles import CONTAINER, at, cond, stuck, timed_out

from harness.judge import judge

FAILED = {"terminated": {"exitCode": 3, "reason": "Error", "startedAt": at(5), "finishedAt": at(6)}}
RUNNING = {"running": {"startedAt": at(5)}}


def give(job, name, state, *, index=0, when=7.0, init=False, own="waiting", phase="Pending", **spec):
    """Add a state of one pod in which an additional container has this state."""
    own_state = {
        "waiting": {"waiting": {"reason": "PodInitializing"}},
        "running": RUNNING,
        "ended": {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": at(30)}},
    }[own]
    job.pod(index, when, phase, own_state)
    pod = job.objects[-1][1].object
    container = {"name": name, "image": "registry.example/tools:2", **spec}
    main = {"name": CONTAINER, "image": "multinode:0a1b"}
    status = {"name": name, "image": "registry.example/tools:2", "state": state, **spec.pop("status", {})}
    container.pop("status", None)
    pod["spec"]["containers"] = [main] if init else [main, container]
    if init:
        pod["spec"]["initContainers"] = [container]
        pod["status"]["initContainerStatuses"] = [status]
    else:
        pod["status"]["containerStatuses"].append(status)
    return pod


def template(job, *init):
    """Add a pod template to the JobSet with these init containers and the ranks' container."""
    spec = {"initContainers": [{"name": name} for name in init], "containers": [{"name": CONTAINER}]}
    for kind, seen in job.objects:
        if kind == "jobset":
            seen.object["spec"]["replicatedJobs"][0]["template"] = {"spec": {"template": {"spec": spec}}}


@pytest.fixture
def judged(tmp_path):
    def judged_(job, logs=()):
        bundle = job.write(tmp_path / "bundle")
        for index, name, lines in logs:
            path = tmp_path / "bundle" / "logs" / f"{job.pod_name(index)}-{name}.log"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{at(6, True)} {line}\n" for line in lines))
        return judge(bundle)

    return judged_


def starting(keep=2):
    """Return a job whose pods were created but whose ranks never started."""
    job = stuck(bundles.healthy(), keep)
    job.truth, job.logs, job.runs, job.attachments, job.points = {}, {}, [], [], []
    return job


def test_an_init_container_that_failed_is_named(judged):
    """Contract: the verdict names the container, its pod, image, exit code and last log line, and who added
    it."""
    job = starting()
    for index in (0, 1):
        give(job, "warm-cache", FAILED, index=index, init=True, phase="Failed")
    job.jobset(9, "Failed")
    template(job)
    verdict = judged(job, [(0, "warm-cache", ["warming", "cache server says 403"])])
    assert (verdict.verdict, verdict.cause, verdict.ranks) == (
        "FAIL",
        "rank.init_container_failed",
        [0, 1],
    )
    for part in ("init container warm-cache", job.pod_name(0), "exit code 3", "registry.example/tools:2"):
        assert part in verdict.explanation.lower()
    assert "cache server says 403" in verdict.explanation.lower()
    assert "admission" in verdict.explanation.lower()
    assert "rank 1" in verdict.explanation.lower()


def test_init_container_that_kubelet_starts_again_and_again(judged):
    """Contract: an init container that is waiting for its next retry has failed, and its last state shows
    how."""
    job = starting()
    back_off = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}}
    give(job, "licence", back_off, init=True, status={"lastState": FAILED, "restartCount": 4})
    timed_out(job)
    verdict = judged(job)
    assert verdict.cause == "rank.init_container_failed"
    assert "5 times" in verdict.explanation.lower()


def test_an_init_container_that_ran_out_of_memory(judged):
    """Contract: exit code 137 alone does not show that the memory limit is too low."""
    job = starting()
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": at(6)}}
    back_off = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}}
    give(job, "fetch", back_off, init=True, status={"lastState": killed, "restartCount": 3})
    timed_out(job)
    verdict = judged(job)
    assert verdict.cause == "rank.init_container_failed"
    assert "exit code 137 (out of memory), 4 times" in verdict.explanation
    assert "memory limit of container fetch" in verdict.next[-1]


def test_an_init_container_that_does_not_end_is_named(judged):
    """Contract: if an init container is still running at the deadline, the verdict names it and its running
    time."""
    job = starting()
    for index in (0, 1):
        give(job, "warm-cache", RUNNING, index=index, init=True, status={"started": True})
    timed_out(job)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.init_container_unended", [0, 1])
    assert "init container warm-cache" in verdict.explanation.lower()
    assert "35 s" in verdict.explanation.lower()  # The container ran from second 5 to the deadline at 40.


def leave(job, index, when):
    """Delete a pod, whose containers are killed 30 s later."""
    pod = next(seen.object for kind, seen in reversed(job.objects) if kind == "pod")
    metadata = {**pod["metadata"], "deletionTimestamp": at(when + 30), "deletionGracePeriodSeconds": 30}
    job.see("pod", when, {**pod, "metadata": metadata})
    killed = {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": at(when + 30)}}
    status = [{**one, "state": killed} for one in pod["status"]["initContainerStatuses"]]
    ended = {**pod["status"], "phase": "Failed", "initContainerStatuses": status}
    job.see("pod", when + 30, {**pod, "metadata": metadata, "status": ended})


def test_an_evicted_init_container_is_unended_not_failed(judged):
    """Contract: the container was killed with its pod and did not fail on its own."""
    job = starting()
    for index in (0, 1):
        give(job, "warm-cache", RUNNING, index=index, init=True)
        leave(job, index, 25 + index / 10)
    evicted = cond("Evicted", "True", "MaximumExecutionTimeExceeded", "exceeding", 24)
    job.workload(24, [evicted])
    job.manifest.stages[-1] = job.manifest.stages[-1].model_copy(update={"seconds": 60})
    verdict = judged(job)
    assert verdict.cause == "rank.init_container_unended"
    assert "20 s" in verdict.explanation


def test_a_pod_that_somebody_deleted_in_its_init_container(judged):
    """Contract: the deletion is the cause, and not the container that was ended by it."""
    job = starting()
    give(job, "warm-cache", RUNNING, init=True)
    leave(job, 0, 25)
    timed_out(job, 70)
    verdict = judged(job)
    assert not (verdict.cause or "").startswith("rank.init")


def test_the_image_of_an_init_container(judged):
    """Contract: if an image does not exist, the cause is image.not_found, and the container that requests it
    is named."""
    job = starting()
    pull = {"waiting": {"reason": "ErrImagePull", "message": "registry.example/tools:2: not found"}}
    give(job, "warm-cache", pull, init=True)
    timed_out(job)
    verdict = judged(job)
    assert verdict.cause == "image.not_found"
    assert "init container warm-cache" in verdict.explanation.lower()


def test_image_of_helper_beside_rank_that_runs(judged):
    """Contract: a helper container whose image cannot be pulled is named even if its rank is running."""
    job = stuck(bundles.healthy(), 3)
    pull = {"waiting": {"reason": "ImagePullBackOff", "message": 'image "x" not found'}}
    give(job, "proxy", pull, own="running", when=8)
    timed_out(job)
    verdict = judged(job)
    assert verdict.cause == "image.not_found"
    assert "container proxy" in verdict.explanation.lower()


def test_a_helper_that_never_ends_blocks_the_job(judged):
    """Contract: every rank ended with 0, and the container that still runs is the cause, not a controller."""
    job = bundles.healthy()
    job.drop("jobset", 2)
    job.drop("workload", 2)
    for index in (0, 1):
        job.drop_pod(index, after=30)
        pod = give(job, "proxy", RUNNING, index=index, own="ended", phase="Running", when=31)
        own = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        own["message"] = job.message(index)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.helper_unended", [0, 1])
    assert "container proxy" in verdict.explanation.lower()
    assert not any("reconciling" in text for text in verdict.consequences)


def test_a_helper_that_failed_is_why_the_job_failed(judged):
    """Contract: if all ranks exited with 0 and a sidecar exited with 7, the sidecar is the reason why the
    JobSet failed."""
    job = bundles.healthy()
    job.drop("jobset", 2)
    job.drop_pod(1, after=30)
    seven = {"terminated": {"exitCode": 7, "reason": "Error", "finishedAt": at(12)}}
    pod = give(job, "mesh", seven, index=1, own="ended", phase="Failed", when=31)
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = job.message(1)
    job.jobset(33, "Failed")
    verdict = judged(job, [(1, "mesh", ["bind: address in use"])])
    assert (verdict.cause, verdict.ranks) == ("rank.helper_failed", [1])
    for part in ("container mesh", "exit code 7", "bind: address in use", job.pod_name(1)):
        assert part in verdict.explanation.lower()


def test_a_helper_exit_before_the_crash_is_mentioned(judged):
    """Contract: if a proxy ended before its rank crashed, the verdict mentions it in addition to the
    crash."""
    job = bundles.healthy()
    bundles.crash(job, 1)
    state = json.loads(json.dumps(job.objects[-1][1].object))  # The JobSet must remain the last object.
    job.drop_pod(1, after=12)
    seven = {"terminated": {"exitCode": 7, "reason": "Error", "finishedAt": at(9)}}
    pod = give(job, "proxy", seven, index=1, own="ended", phase="Failed", when=12.5)
    own = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    own |= {"exitCode": 1, "reason": "Error", "finishedAt": at(12), "message": '{"exit": 1}'}
    job.see("jobset", 14, state)
    verdict = judged(job)
    assert verdict.cause == "rank.crashed"
    explanation = verdict.explanation.lower()
    assert "container proxy in the same pod had ended" in explanation
    assert "s earlier with exit code 7" in explanation


def test_a_container_of_the_job_template_is_not_injected(judged):
    """Contract: a container in the launched object's own template was not added by another client."""
    job = starting()
    give(job, "warm-cache", FAILED, init=True, phase="Failed")
    job.jobset(9, "Failed")
    template(job, "warm-cache")
    verdict = judged(job)
    assert verdict.cause == "rank.init_container_failed"
    assert "admission" not in verdict.explanation.lower()
    assert f"the template of jobset {bundles.JOBSET}" in verdict.explanation.lower()


def test_a_native_sidecar_that_serves_is_no_fault(judged):
    """Contract: an init container that restarts always may run until the pod's end."""
    job = bundles.healthy()
    for index in (0, 1):
        job.drop_pod(index, after=30)
        pod = give(
            job,
            "proxy",
            {"terminated": {"exitCode": 143, "reason": "Error", "finishedAt": at(30)}},
            index=index,
            init=True,
            own="ended",
            phase="Succeeded",
            when=31,
            restartPolicy="Always",
        )
        own = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        own["message"] = job.message(index)
    verdict = judged(job)
    assert verdict.verdict == "PASS", verdict
