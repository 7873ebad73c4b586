"""Containers and pods that cannot start: each reason that Kubernetes reports has its own cause."""

import json

import bundles
import pytest
from bundles import at, stuck


@pytest.mark.parametrize(
    ("reason", "message", "cause"),
    [
        ("ImagePullBackOff", 'Back-off pulling image "nope:1"', "image.pull_failed"),
        ("ErrImagePull", 'rpc error: failed to resolve "nope:1": not found', "image.not_found"),
        (
            "ErrImagePull",
            "pull access denied, repository does not exist or may require authorization",
            "image.pull_denied",
        ),
        ("ImagePullBackOff", "unexpected status from HEAD request: 401 Unauthorized", "image.pull_denied"),
        ("ErrImageNeverPull", "Container image is not present with pull policy of Never", "image.not_found"),
        ("InvalidImageName", "couldn't parse image name", "image.not_found"),
        ("CreateContainerConfigError", 'secret "x" not found', "image.config"),
        ("RunContainerError", 'exec: "bash": executable file not found', "image.entrypoint"),
    ],
)
def test_each_container_waiting_reason_has_its_cause(judged, reason, message, cause):
    """Contract: each waiting reason of a container has its own cause, and points are not judged."""
    job = stuck(bundles.healthy())
    job.truth, job.logs, job.runs, job.attachments, job.points = {}, {}, [], [], []
    for index in range(2):
        job.pod(index, 9, "Pending", {"waiting": {"reason": reason, "message": message}})
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", cause)
    assert message in verdict.explanation
    assert verdict.consequences == []


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ('exec: "bash": executable file not found in $PATH', "image.entrypoint"),
        ("exec /bin/bash: exec format error", "image.wrong_architecture"),
    ],
)
def test_a_command_that_cannot_be_started(judged, message, cause):
    """Contract: StartError is the image's fault, not the rank's, and both ranks are named."""
    job = stuck(bundles.healthy())
    for index in range(2):
        job.ended(index, 9, 128, reason="StartError", message=message)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (cause, [0, 1])


@pytest.mark.parametrize(
    ("line", "code", "cause"),
    [
        ("bash: line 9: torchrun: command not found", 127, "image.no_torch"),
        ("ModuleNotFoundError: No module named 'torch'", 1, "image.no_torch"),
        ("exec /usr/bin/bash: exec format error", 255, "image.wrong_architecture"),
        ("mkdir: cannot create directory ‘//.konduktor’: Permission denied", 1, "image.not_root"),
        ("ModuleNotFoundError: No module named 'torchvision'", 1, "rank.crashed"),
    ],
)
def test_an_image_that_lacks_what_the_job_needs(judged, line, code, cause):
    """Contract: the image is the cause of an exit code if the rank's last log lines show this."""
    job = bundles.healthy()
    bundles.crash(job, 0)
    job.drop_pod(0, after=10)
    job.truth = {}
    job.logs[job.pod_name(0)] = [f"{at(11, True)} {line}"]
    job.ended(0, 12, code, message=json.dumps({"exit": code}))
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (cause, [0])
    assert line in verdict.explanation


def test_every_rank_of_an_image_that_lacks_something(judged):
    """Contract: every rank uses the image, so ranks that ended in the same way are named together."""
    job = bundles.healthy()
    bundles.crash(job, 0)
    job.truth = {}
    for index in range(2):
        job.drop_pod(index, after=10)
        job.logs[job.pod_name(index)] = [f"{at(11, True)} bash: line 9: torchrun: command not found"]
        job.ended(index, 12, 127, message=json.dumps({"exit": 127}))
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("image.no_torch", [0, 1])


def test_a_pull_policy_that_ignores_the_node_s_image(judged):
    """Contract: if the node has the image, the verdict explains why the image is not used."""
    job = stuck(bundles.healthy())
    for index in range(2):
        job.pod(index, 9, "Pending", {"waiting": {"reason": "ErrImagePull", "message": "connection refused"}})
    for kind, seen in job.objects:
        if kind == "pod":
            seen.object["spec"]["containers"] = [{"name": bundles.CONTAINER, "imagePullPolicy": "Always"}]
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("image.pull_failed", [0, 1])
    assert "pull policy is Always" in verdict.explanation


def kept_from_starting(job, reason, message, *times):
    """Keep the pod of rank 1 from starting. Its kubelet reports the reason in an Event at each of `times`, in
    seconds."""
    job.drop_pod(1)
    job.pod(1, 6, "Pending", {"waiting": {"reason": "ContainerCreating"}})
    uid = next(s.object["metadata"]["uid"] for k, s in reversed(job.objects) if k == "pod")
    event = {"reason": reason, "type": "Warning", "message": message}
    about = {"involvedObject": {"kind": "Pod", "name": job.pod_name(1), "uid": uid}}
    for when in times:
        job.see("event", when, {"metadata": {"name": "e", "uid": "e"}} | event | about)


@pytest.mark.parametrize(
    ("reason", "message", "cause"),
    [
        ("FailedCreatePodSandBox", 'failed to find plugin "ptp"', "scheduling.sandbox_failed"),
        ("NetworkNotReady", "cni plugin not initialized", "scheduling.sandbox_failed"),
        ("FailedMount", 'configmap "settings" not found', "scheduling.volume_failed"),
        ("FailedAttachVolume", "Multi-Attach error for volume", "scheduling.volume_failed"),
    ],
)
def test_what_keeps_a_pod_from_starting_is_told(judged, reason, message, cause):
    """Contract: the kubelet's message determines the cause, and the verdict quotes it."""
    job = stuck(bundles.healthy(), keep=3)
    kept_from_starting(job, reason, message, 7, 9, 15)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, [1])
    assert message in verdict.explanation


def test_warning_of_moment_keeps_no_pod_from_starting(judged):
    """Contract: the kubelet retries, so a warning that it did not repeat for long proves nothing."""
    job = stuck(bundles.healthy(), keep=3)
    kept_from_starting(job, "FailedMount", "timed out waiting for the cache", 7, 8)
    assert judged(job).cause != "scheduling.volume_failed"
