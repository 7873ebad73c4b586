"""Scheduled pods whose containers do not start, with the Events from public bug reports."""

from __future__ import annotations

import time

import bundles
import pytest
from bundles import at
from cluster_events import add_event, never_started

NOT_MOUNTED = (
    "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[data]: timed out "
    "waiting for the condition"
)
NFS = (
    'MountVolume.SetUp failed for volume "data" : mount failed: exit status 32\nOutput: mount.nfs: Connection'
)
TWICE = 'Multi-Attach error for volume "pvc-2558" Volume is already used by pod(s) other-0'
NO_ADDRESS = (
    'failed to setup network for sandbox "93bd": plugin type="aws-cni" name="aws-cni" failed (add): add cmd: '
    "failed to assign an IP address to container"
)
CLAIM = (
    "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed for "
    "ResourceClaim job31-mig1g: error preparing devices for claim: Insufficient Resources"
)


@pytest.mark.parametrize(
    ("reason", "message", "times", "advice"),
    [
        # huggingface/dataset-viewer#270
        ("FailedMount", NFS, (6, 30), "2049"),
        # kubernetes/kubernetes#48968: the attach-detach controller reports this error once.
        ("FailedAttachVolume", TWICE, (6,), "ReadWriteMany"),
        ("FailedAttachVolume", "AttachVolume.Attach failed : Attach timeout", (6, 26), "storage driver"),
    ],
)
def test_the_reason_of_a_volume_that_is_not_mounted(judged, reason, message, times, advice) -> None:
    """Contract: the kubelet's later summary that some volume is not mounted does not hide why."""
    job = never_started()
    add_event(job, 1, reason, message, times)
    add_event(job, 1, "FailedMount", NOT_MOUNTED, (25, 36))
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "scheduling.volume_failed", [1])
    assert message in verdict.explanation
    assert NOT_MOUNTED not in verdict.explanation
    assert advice in verdict.next[-1]


def test_multi_attach_error_alone_keeps_pod_from_starting(judged) -> None:
    job = never_started()
    add_event(job, 1, "FailedAttachVolume", TWICE, (6,))
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.volume_failed", [1]), verdict.explanation


def test_a_summary_counts_if_no_event_has_the_reason(judged) -> None:
    """kubernetes-sigs/aws-fsx-csi-driver#244"""
    job = never_started()
    add_event(job, 1, "FailedMount", NOT_MOUNTED)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.volume_failed", [1]), verdict.explanation
    assert NOT_MOUNTED in verdict.explanation


@pytest.mark.parametrize(
    ("reason", "message", "cause", "advice"),
    [
        # aws/amazon-vpc-cni-k8s#281
        ("FailedCreatePodSandBox", NO_ADDRESS, "scheduling.sandbox_failed", "no free IP address"),
        (
            "FailedCreatePodSandBox",
            'failed to get sandbox runtime: no runtime for "nvidia" is configured',
            "scheduling.sandbox_failed",
            "runtimeClassName",
        ),
        # kubernetes-sigs/dra-driver-nvidia-gpu#35
        ("FailedPrepareDynamicResources", CLAIM, "scheduling.not_started", "resourceclaims"),
    ],
)
def test_the_advice_fits_the_message_of_the_kubelet(judged, reason, message, cause, advice) -> None:
    job = never_started()
    add_event(job, 1, reason, message)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, [1]), verdict.explanation
    assert message in verdict.explanation
    assert advice in verdict.next[-1]


@pytest.mark.parametrize(
    ("reason", "message", "later"),
    [
        ("FailedCreatePodSandBox", NO_ADDRESS, "Pulling"),
        # kubernetes/kubernetes#110158
        ("FailedMount", NOT_MOUNTED, "Pulling"),
        ("FailedMount", NOT_MOUNTED, "AddedInterface"),
        ("FailedAttachVolume", TWICE, "SuccessfulAttachVolume"),
        ("NetworkNotReady", "cni plugin not initialized", "Pulling"),
    ],
)
def test_warning_about_step_that_succeeded_later_is_outdated(judged, reason, message, later) -> None:
    """Contract: if an image is still being pulled, neither the node's network nor a volume is the cause."""
    job = never_started()
    add_event(job, 1, reason, message, (6, 14))
    add_event(job, 1, later, 'Pulling image "large:1"', (16,), type_="Normal")
    add_event(job, 0, later, 'Pulling image "large:1"', (7,), type_="Normal")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.not_started", [0, 1]), verdict.explanation
    assert 'Pulling image "large:1"' in verdict.explanation
    assert "raise --wait" in verdict.next[-1]


def test_step_that_fails_again_after_it_succeeded_is_reason(judged) -> None:
    job = never_started()
    add_event(job, 1, "FailedCreatePodSandBox", NO_ADDRESS, (6, 14, 20, 36))
    add_event(job, 1, "Pulling", 'Pulling image "large:1"', (16,), type_="Normal")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.sandbox_failed", [1]), verdict.explanation


def test_the_last_warning_explains_a_container_that_never_started(judged) -> None:
    """Contract: an unknown reason is quoted, and the rank of its pod is named."""
    job = never_started()
    message = "error determining status: rpc error: code = DeadlineExceeded"
    add_event(job, 0, "Pulled", "Container image is already present", (6,), type_="Normal")
    add_event(job, 1, "FailedSync", message, (8,))
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "scheduling.not_started", [1])
    assert f"FailedSync: {message}" in verdict.explanation


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("DNSConfigForming", "Nameserver limits were exceeded, some nameservers have been omitted"),
        ("FailedToRetrieveImagePullSecret", "Unable to retrieve some image pull secrets (x)"),
    ],
)
def test_harmless_warning_does_not_hide_kubelet_wait(judged, reason, message) -> None:
    """Contract: the kubelet reports some problems with each attempt although the pod can start."""
    job = never_started()
    for index in range(2):
        add_event(job, index, "Pulling", 'Pulling image "large:1"', (7,), type_="Normal")
    add_event(job, 1, reason, message, (6, 20, 36))
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.not_started", [0, 1]), verdict.explanation
    assert message not in verdict.explanation
    assert "raise --wait" in verdict.next[-1]


def test_the_other_reason_of_another_rank_is_mentioned(judged) -> None:
    job = never_started()
    add_event(job, 0, "FailedMount", NFS)
    add_event(job, 1, "FailedCreatePodSandBox", NO_ADDRESS)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.volume_failed", [0])
    assert f"Rank 1: FailedCreatePodSandBox: {NO_ADDRESS}" in verdict.explanation


@pytest.mark.parametrize("reason", ["Pulling", ""])
def test_rank_that_still_starts_is_not_sent_to_network(judged, reason) -> None:
    """Contract: if ranks timed out waiting for a rank whose container had not started, the verdict shows what
    the container was waiting for."""
    job = never_started()
    job.manifest = bundles.healthy().manifest
    job.drop_pod(0)
    job.pod(0, 5, "Running", {"running": {"startedAt": at(5)}})
    error = "DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined"
    job.logs[job.pod_name(0)] = [f"{at(36, True)} {error}"]
    if reason:
        add_event(job, 1, reason, 'Pulling image "large:1"', (7,), type_="Normal")
    job.ended(0, 37, 1, message='{"exit": 1}')
    job.jobset(38, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rendezvous.timeout", [1]), verdict.explanation
    assert "had not started" in verdict.explanation
    assert ("is Pulling: Pulling image" in verdict.explanation) == bool(reason)
    assert "starts late" in verdict.next[-1]


def test_the_events_of_a_large_job_are_read_once(judged) -> None:
    """Contract: the time of a verdict grows with the number of pods, not with its square."""
    seconds = {}
    for pods in (100, 400):
        job = never_started(pods)
        for index in range(pods):
            add_event(job, index, "FailedMount", NFS, tuple(range(6, 26, 2)))
        start = time.process_time()
        assert judged(job).cause == "scheduling.volume_failed"
        seconds[pods] = time.process_time() - start
    assert seconds[400] < 10 * seconds[100]  # With quadratic growth, it would take 16 times as long.


def test_events_of_namesake_pod_do_not_count(judged) -> None:
    job = never_started()
    add_event(job, ("Pod", job.pod_name(1), "uid-before"), "FailedMount", NFS)
    verdict = judged(job)
    assert verdict.cause == "scheduling.not_started", verdict.explanation
    assert "mount.nfs" not in verdict.explanation


@pytest.mark.parametrize(
    ("reason", "message", "advice"),
    [
        (
            "ErrImagePull",
            "toomanyrequests: You have reached your pull rate limit",
            "imagePullSecrets",
        ),
        ("ErrImagePull", "denied: Your authorization token has expired. Reauthenticate.", "have expired"),
        ("ImagePullBackOff", "write /var/lib/containerd/x: no space left on device", "crictl rmi --prune"),
        (
            "ErrImagePull",
            "x509: certificate has expired or is not yet valid",
            "node's clock",
        ),
        ("ErrImagePull", "x509: certificate signed by unknown authority", "CA certificate"),
        ("ErrImagePull", "http: server gave HTTP response to HTTPS client", "plain HTTP"),
        ("CreateContainerConfigError", "container has runAsNonRoot and image will run as root", "runAsUser"),
        ("CreateContainerError", "context deadline exceeded", "slow or hangs"),
        ("PostStartHookError", "Exec lifecycle hook ([ln -s /x /y]) exited with 1", "lifecycle.postStart"),
    ],
)
def test_the_advice_fits_the_message_about_a_container(judged, reason, message, advice) -> None:
    """Contract: no advice about the network or a missing object if the message shows another reason."""
    job = never_started()
    for index in range(2):
        job.pod(index, 7, "Pending", {"waiting": {"reason": reason, "message": message}})
    verdict = judged(job)
    assert verdict.ranks == [0, 1]
    assert message in verdict.explanation
    assert advice in verdict.next[-1]
