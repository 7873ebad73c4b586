"""What Kueue and the kubelet say has one meaning, for who waits and for who judges."""

import pytest

from harness.evidence.kubernetes.waiting_reasons import Meaning, eviction, not_started, refusal

DRIVER = Meaning("gpu.driver", "retried")
TOO_MUCH, OTHER = "insufficient quota for cpu", "insufficient quota for memory"
MAXIMUM = "request > maximum capacity (16 > 8)"
SECOND = "couldn't assign flavors to pod set launcher:"
DENIED = Meaning("image.pull_denied", "retried")
FULL = "couldn't assign flavors to pod set workers: insufficient unused quota for cpu in flavor b"


@pytest.mark.parametrize(
    ("message", "reason", "meaning"),
    [
        ("LocalQueue q doesn't exist", "", Meaning("queue.local_queue_missing", "final")),
        ("ClusterQueue q doesn't exist", "", Meaning("queue.cluster_queue_missing", "final")),
        ("ClusterQueue q is inactive", "", Meaning("queue.inactive", "final")),
        ("LocalQueue q is stopped", "", Meaning("queue.inactive", "open")),
        ("request (64) > maximum capacity (4)", "", Meaning("admission.quota_exceeded", "final")),
        (f"untolerated taint in flavor a; {FULL}", "", Meaning("admission.pending", "open")),
        # Several reasons: the flavor that is only full is decisive, unless something else never fits.
        (f"{FULL}, 8 more needed, flavor a doesn't match node affinity", "", Meaning("admission.pending")),
        (f"{TOO_MUCH} in flavor a, {MAXIMUM}, {FULL}, 8 more needed", "", Meaning("admission.pending")),
        (f"{TOO_MUCH} in flavor b, {MAXIMUM}, {FULL}", "", Meaning("admission.quota_exceeded", "open")),
        (f"{OTHER} in flavor a, {MAXIMUM}, {FULL}", "", Meaning("admission.quota_exceeded", "open")),
        (f"{FULL}; {SECOND} untolerated taint in flavor a", "", Meaning("admission.no_flavor", "open")),
        (f"untolerated taint in flavor b, {FULL}", "", Meaning("admission.no_flavor", "open")),
        (
            "waiting for all admitted workloads to be in PodsReady condition",
            "Waiting",
            Meaning("admission.pending"),
        ),
        (
            "Workload no longer fits after processing another workload",
            "Pending",
            Meaning("admission.pending"),
        ),
        (
            "Workload has overlapping preemption targets with another",
            "",
            Meaning("admission.pending"),
        ),
        # kueue #3543
        ("The workload has failed admission checks", "Pending", Meaning("admission.check_pending")),
        ("At least one admission check is false", "Pending", Meaning("admission.check_pending")),
        (FULL, "", Meaning("admission.pending", "open")),
        ("", "Suspended", Meaning("queue.inactive", "open")),
        ("AdmissionCheck c not found", "", Meaning("admission.not_seen", "final")),
        # kueue #5039; the messages are those of Kueue 0.19.
        (
            "couldn't assign flavors to pod set main: no topology domains at level: rack",
            "TopologyPlacementFailed",
            Meaning("admission.topology", "open"),
        ),
        ('topology "t" allows to fit only 1 out of 2 pod(s)', "", Meaning("admission.topology", "open")),
        ('topology "t" doesn\'t allow to fit any of 2 pod(s)', "", Meaning("admission.topology", "open")),
        (
            'Flavor "h100" does not support TopologyAwareScheduling',
            "Pending",
            Meaning("admission.no_flavor", "final"),
        ),
        # kueue #301
        (
            "workload namespace doesn't match ClusterQueue selector",
            "Misconfigured",
            Meaning("admission.refused", "final"),
        ),
        ("a sentence of a later Kueue", "Pending", Meaning("admission.refused", "open")),
        ("", "PendingEvaluation", Meaning("admission.not_seen", "open")),
        ("", "", Meaning("admission.not_seen", "open")),
    ],
)
def test_why_kueue_reserves_no_quota(message: str, reason: str, meaning: Meaning) -> None:
    """Contract: a refusal that waiting cannot change is final; one flavor that is only full keeps it open."""
    assert refusal(message, reason) == meaning


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("Preempted", "admission.preempted"),
        ("DeactivatedDueToRequeuingLimitExceeded", "admission.pods_ready_timeout"),
        ("NewInALaterKueue", "admission.evicted"),
        ("InactiveWorkload", "admission.deactivated"),
    ],
)
def test_why_kueue_evicted_a_job(reason: str, cause: str) -> None:
    """Contract: a part of the reason is enough, and the part that says most comes first."""
    assert eviction(reason) == cause


@pytest.mark.parametrize(
    ("reason", "message", "meaning"),
    [
        ("ErrImagePull", "connection reset by peer", Meaning("image.pull_failed", "retried")),
        # tilt #5893, pachyderm #4815: the next attempt succeeds, so a healthy job must not end.
        ("ErrImagePull", "pull QPS exceeded", Meaning("image.pull_failed", "open")),
        # skypilot #2246
        ("ErrImagePull", "dial tcp: lookup r.example: i/o timeout", Meaning("image.pull_failed", "retried")),
        # containerd #4604
        (
            "CreateContainerError",
            'failed to reserve container name "a": name "a" is reserved for "b"',
            Meaning("image.config", "open"),
        ),
        ("CreateContainerError", "context deadline exceeded", Meaning("image.config", "open")),
        ("CreateContainerConfigError", "failed to sync secret cache: x", Meaning("image.config", "open")),
        (
            "RunContainerError",
            "container init was OOM-killed (memory limit too low?): unknown",
            Meaning("rank.oom_killed", "open"),
        ),
        (
            "RunContainerError",
            'error mounting "/a" to rootfs at "/b": not a directory',
            Meaning("scheduling.volume_failed", "open"),
        ),
        ("SignatureValidationFailed", "no signature", Meaning("image.pull_denied", "retried")),
        ("ErrImagePull", "dial tcp: lookup r.example: no such host", Meaning("image.pull_failed", "final")),
        ("ImagePullBackOff", "manifest unknown", Meaning("image.not_found", "final")),
        ("ErrImagePull", "pull access denied, does not exist", Meaning("image.pull_denied", "final")),
        ("ErrImagePull", "401 Unauthorized", Meaning("image.pull_denied", "retried")),
        # Amazon ECR, GitHub's and Google's registries, and CRI-O word a denial differently.
        ("ErrImagePull", "denied: your authorization token has expired", DENIED),
        ("ErrImagePull", 'failed to resolve reference "ghcr.io/x/y:1": denied: denied', DENIED),
        ("ErrImagePull", "denied: requested access to the resource is denied", DENIED),
        (
            "ErrImagePull",
            'permission "download" denied on resource "p" (or it may not exist)',
            DENIED,
        ),
        (
            "ErrImagePull",
            'failed to extract layer: mkdir "/a": permission denied: unknown',
            Meaning("image.pull_failed", "retried"),
        ),
        (
            "RunContainerError",
            "error setting cgroup config for procHooks process: unable to freeze",
            Meaning("scheduling.not_started", "open"),
        ),
        (
            "CreateContainerError",
            'failed to get sandbox runtime: no runtime for "nvidia" is configured',
            Meaning("scheduling.not_started", "final"),
        ),
        (
            "CreateContainerError",
            'failed to generate spec: failed to stat "/mnt/data": no such file or directory',
            Meaning("scheduling.volume_failed", "final"),
        ),
        (
            "CreateContainerConfigError",
            'failed to prepare subPath for volumeMount "data" of container "c"',
            Meaning("scheduling.volume_failed", "final"),
        ),
        ("PostStartHookError", "command exited with 1", Meaning("image.config", "retried")),
        ("ErrImagePull", "no match for platform in manifest: not found", None),
        ("CreateContainerConfigError", 'secret "s" not found', Meaning("image.config", "final")),
        ("StartError", "exec: bash: executable file not found", Meaning("image.entrypoint", "open")),
        ("ErrImagePull", "nvidia-ctk: not found", Meaning("image.not_found", "final")),
        # NVIDIA/dcgm-exporter #319
        ("RunContainerError", "nvidia-container-cli: detection error: nvml error", DRIVER),
        (
            "RunContainerError",
            "nvidia-container-cli: requirement error: cuda>=12.6, update your driver",
            DRIVER,
        ),
        ("CreateContainerError", "failed to inject CDI devices: unresolvable nvidia.com/gpu=0", DRIVER),
        # k8s-device-plugin #98: a GPU that was replaced or lost while the device plugin ran.
        (
            "RunContainerError",
            "OCI hook #0: nvidia-container-cli: device error: unknown device id: GPU-9a3f: unknown",
            Meaning("gpu.lost", "retried"),
        ),
    ],
)
def test_why_a_container_did_not_start(reason: str, message: str, meaning: Meaning | None) -> None:
    """Contract: the kubelet's reason names the cause; of a pull the message says more."""
    assert not_started(reason, message) == (meaning or Meaning("image.wrong_architecture", "final"))


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", "Error", ""])
def test_a_reason_that_is_no_failure_to_start(reason: str) -> None:
    """Contract: what passes by itself, or is a rank's own end, has no meaning here."""
    assert not_started(reason, "not found") is None


@pytest.mark.parametrize(
    ("reason", "message", "cause"),
    [
        ("CreateContainerConfigError", 'configmap "cgroup-settings" not found', "image.config"),
        ("CreateContainerConfigError", 'secret "subpath" not found', "image.config"),
        (
            "StartError",
            'exec: "/opt/cgroup/run": stat /opt/cgroup/run: no such file or directory: unknown',
            "image.entrypoint",
        ),
        (
            "StartError",
            "unable to apply cgroup configuration: write /sys/fs/cgroup/cpu.max: invalid argument",
            "scheduling.not_started",
        ),
        (
            "CreateContainerConfigError",
            'failed to prepare subPath for volumeMount "data" of container "main"',
            "scheduling.volume_failed",
        ),
    ],
)
def test_names_that_users_choose_do_not_determine_the_cause(reason, message, cause):
    """Contract: an object with such a name is not mistaken for a fault of the node or of a volume."""
    meaning = not_started(reason, message)
    assert meaning is not None
    assert meaning.cause == cause
