"""Faults of the catalogue, struck in jobs that the harness did not launch: attached, they get the same cause.

The expected cause is that of the fault's file in harness/faults/cases. Where a verdict needs what only the
launcher knows, it is UNKNOWN with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import pytest
from foreign_jobs import ForeignJobs, with_sidecar

from harness.core.deadlines import Deadline
from harness.core.kubernetes import Object
from harness.evidence.kubernetes.objects import JOBSET_NAME
from harness.evidence.schema.bundle import Verdict
from harness.faults.fault_file import Expect, catalogue
from harness.fixtures.plugin import progress

pytestmark = [pytest.mark.attach, pytest.mark.nightly, pytest.mark.timeout(600)]
PROBE = True
SEEN_SECONDS = 120.0
"""Maximum seconds until a fault of a waiting job is visible in its objects."""
BEFORE = "the reason is unknown, because the problem may have occurred before the harness attached"


@dataclass(frozen=True)
class Strike:
    """How a fault is struck in a foreign job, and what an attached harness does not know about it."""

    word: str
    """The job, as a user names it."""
    launch: Callable[[ForeignJobs], None]
    strike: Callable[[ForeignJobs], None] | None = None
    """Is called while the job is followed. None means that the job is launched with the fault."""
    waits: bool = False
    """Whether the job never ends, so that it is read again until the fault is visible."""
    unknown_after: str = ""
    """Why the verdict may be UNKNOWN if the harness attached afterwards."""
    gone: bool = False
    """Whether the job does not exist afterwards."""
    options: dict[str, Any] = field(default_factory=dict)
    consequences: tuple[str, ...] = ("run.evidence_missing",)
    """The possible causes where the fault itself can no longer be known."""


def container(**changes: Any) -> Callable[[Object], None]:
    """Return an edit that changes fields of the ranks' container."""
    return lambda spec: spec["containers"][0].update(changes)


def with_secret(spec: Object) -> None:
    reference = {"secretKeyRef": {"name": "hugging-face", "key": "token"}}
    spec["containers"][0]["env"].append({"name": "HF_TOKEN", "valueFrom": reference})


def with_volume(spec: Object) -> None:
    spec["volumes"] = [{"name": "settings", "configMap": {"name": "training-settings"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "settings", "mountPath": "/settings"}]


def with_init_container(spec: Object) -> None:
    command = ["python3", "-c", "raise SystemExit('no seat left for team vision')"]
    first = spec["containers"][0]
    policy = first["imagePullPolicy"]
    seats = {"name": "seats", "image": first["image"], "imagePullPolicy": policy, "command": command}
    spec["initContainers"] = [seats]


def struck(name: str, what: Callable[[ForeignJobs, str], None]) -> Callable[[ForeignJobs], None]:
    """Return a strike at the pod of rank 1 of the Job `name`, when it trains."""
    return lambda foreign: what(foreign, foreign.until_logged(f"app={name}", 1, "step 3"))


LONG = {"STEPS": "1000"}
DEADLINE = '{"spec": {"activeDeadlineSeconds": 1}}'
LIMITED = {
    "requests": {"cpu": "100m", "memory": "256Mi"},
    "limits": {"memory": "1Gi"},
}
STRIKES = {
    "image-missing": Strike(
        "jobset/image-missing",
        lambda foreign: foreign.jobset(
            "image-missing",
            container(image="pluto-multinode-test:of-yesterday", imagePullPolicy="Never"),
        ),
        waits=True,
    ),
    "image-config": Strike(
        "job/image-config", lambda foreign: foreign.job("image-config", with_secret), waits=True
    ),
    "scheduling-node-selector": Strike(
        "sts/node-selector",
        lambda foreign: foreign.statefulset(
            "node-selector", lambda spec: spec.update(nodeSelector={"gpu-type": "h100"})
        ),
        waits=True,
        unknown_after="so far, ",
    ),
    "rank-volume-absent": Strike(
        "sts/volume-absent",
        lambda foreign: foreign.statefulset("volume-absent", with_volume),
        waits=True,
    ),
    "controllers-local-queue-missing": Strike(
        "jobset/queue-missing",
        lambda foreign: foreign.jobset("queue-missing", queue="nobodys-queue"),
        waits=True,
        unknown_after="so far, ",
    ),
    "rank-init-container-fails": Strike(
        "job/init-fails", lambda foreign: foreign.job("init-fails", with_init_container)
    ),
    "rank-exit-code": Strike(
        "jobset/exit-code",
        lambda foreign: foreign.jobset("exit-code", EXITING_RANK="1"),
        # If the Job of rank 0 fails first, JobSet deletes the pod of rank 1 and with it the exit code.
        unknown_after="another failure, which was not recorded|exists now",
    ),
    "rank-out-of-memory": Strike(
        "job/greedy",
        lambda foreign: foreign.job("greedy", container(resources=LIMITED), GREEDY_RANK="1"),
    ),
    "rank-killed": Strike(
        "job/killed",
        lambda foreign: foreign.job("killed", **LONG),
        struck("killed", lambda foreign, pod: foreign.signal(pod, "KILL")),
        unknown_after=BEFORE,
    ),
    "rank-pod-deleted": Strike(
        "job/pod-deleted",
        lambda foreign: foreign.job("pod-deleted", **LONG),
        struck("pod-deleted", lambda foreign, pod: foreign.kubectl("delete", "pod", pod, "--wait=false")),
        unknown_after="exists now|was deleted while it ran|another failure, which was not recorded",
        # Both pods can be gone, or both were deleted within the same second and still exist.
        consequences=("run.evidence_missing", "rank.killed"),
    ),
    "rank-worker-frozen": Strike(
        "job/frozen",
        lambda foreign: (
            foreign.job("frozen", with_sidecar, **LONG),
            struck("frozen", lambda foreign, pod: foreign.signal(pod, "STOP"))(foreign),
        )[0],
        waits=True,
        options={"probe": True},
    ),
    "rank-job-edited": Strike(
        "jobset/edited",
        lambda foreign: foreign.jobset("edited", **LONG),
        lambda foreign: (
            foreign.until_logged(f"{JOBSET_NAME}=edited", 1, "step 3"),
            foreign.kubectl("patch", "job", "edited-w-0", "--type=merge", "-p", DEADLINE),
        )[1],
        unknown_after="is not known",
        consequences=("run.timed_out",),
    ),
    "controllers-job-deleted": Strike(
        "jobset/deleted",
        lambda foreign: foreign.jobset("deleted", **LONG),
        lambda foreign: (
            foreign.until_logged(f"{JOBSET_NAME}=deleted", 1, "step 3"),
            foreign.kubectl("delete", "jobset", "deleted", "--wait=false"),
        )[1],
        gone=True,
    ),
}


@pytest.mark.parametrize("name", STRIKES)
def test_a_foreign_job_gets_the_cause_of_the_catalogue(foreign: ForeignJobs, name: str) -> None:
    """Contract: the same cause and ranks as launched, or UNKNOWN with the reason, while it runs and after."""
    each, expect = STRIKES[name], catalogue()[name].expect
    assert expect is not None
    each.launch(foreign)
    try:
        if each.waits:
            is_as_expected(until_visible(foreign, each, expect), expect, each, each.unknown_after)
            return
        is_as_expected(followed(foreign, each), expect, each)
        if not each.gone:
            is_as_expected(foreign.attach(each.word).verdict, expect, each, each.unknown_after)
    finally:
        foreign.kubectl("delete", "job,jobset,statefulset", "--all", "--wait=false")


def until_visible(foreign: ForeignJobs, each: Strike, expect: Expect) -> Verdict:
    """Attach again and again, as a user would, until the fault is visible at each rank that it affects."""
    deadline = Deadline.after(SEEN_SECONDS)
    while True:
        verdict = foreign.attach(each.word, **each.options).verdict
        assert verdict.verdict != "PASS"
        seen = verdict.cause == expect.cause and expect.ranks in (None, verdict.ranks)
        if seen or deadline.passed:
            return verdict


def followed(foreign: ForeignJobs, each: Strike) -> Verdict:
    """Follow a job while the fault is struck, and return the verdict after its end."""
    errors = list[Exception]()

    def strike() -> None:
        try:
            if each.strike is not None:
                each.strike(foreign)
        except Exception as error:
            errors.append(error)

    striking, attaching = Thread(target=strike), False

    def on_progress(text: str) -> None:
        """Strike at the first text after the harness has found the job: it then shows the job's state."""
        nonlocal attaching
        progress(text)
        if attaching and striking.ident is None:
            striking.start()
        attaching |= text.startswith("attaching to")

    verdict = foreign.attach(each.word, progress=on_progress, follow=True, wait=30, **each.options).verdict
    striking.join()
    assert errors == []
    return verdict


def is_as_expected(verdict: Verdict, expect: Expect, each: Strike, unknown: str = "") -> None:
    """Assert that a verdict is that of the catalogue, or UNKNOWN for the reason `unknown` if there is one."""
    if unknown and verdict.verdict == "UNKNOWN":
        assert verdict.cause in (expect.cause, *each.consequences), verdict
        assert re.search(unknown, verdict.explanation, re.IGNORECASE), verdict.explanation
    else:
        assert (verdict.verdict, verdict.cause) == (expect.verdict, expect.cause), verdict
        if expect.ranks is not None:
            assert verdict.ranks == expect.ranks, verdict
