"""`harness netcheck RUN` in jobs that the harness did not launch, with the bundle of `harness attach`."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from foreign_jobs import ForeignJobs, with_sidecar

from harness.cli.netcheck_running_job import run_netcheck
from harness.context import RunContext
from harness.core.errors import HarnessError, UsageError
from harness.evidence import Bundle
from harness.fixtures.plugin import progress
from harness.provision.cluster import Ready
from harness.settings import Settings
from harness.workers.netcheck import Diagnosis

pytestmark = [pytest.mark.attach, pytest.mark.netcheck, pytest.mark.nightly, pytest.mark.timeout(600)]
PROBE = True
LONG = {"STEPS": "3000"}


def checked(foreign: ForeignJobs, bundle: Path) -> Diagnosis:
    """Run netcheck in the pods of an attached job, and return the diagnosis of rank 0."""
    context = RunContext(settings=foreign.settings, progress=progress)
    return run_netcheck(Bundle.open(bundle), context, deadline=30).diagnosis(0)


def test_a_healthy_job_with_a_sidecar_before_its_ranks(foreign: ForeignJobs) -> None:
    """kubernetes/kubernetes#96986: an exec without a container ends in the sidecar. The pods that exist now
    are checked, although others were read.
    """
    foreign.statefulset("whole", with_sidecar, **LONG)
    foreign.until_logged("app=whole", 1, "step 1")
    bundle = foreign.attach("sts/whole").bundle
    first = checked(foreign, bundle)
    assert (first.verdict, first.cause) == ("ok", None), first
    foreign.kubectl("delete", "pod", "-l", "app=whole", "--wait=true")
    foreign.until_logged("app=whole", 1, "step 1")
    second = checked(foreign, bundle)
    assert (second.verdict, second.cause) == ("ok", None), second


def test_service_without_pods_and_deleted_job(foreign: ForeignJobs) -> None:
    """Contract: the Service is read when netcheck runs, and not when the harness attached."""
    foreign.job("cut", **LONG)
    foreign.until_logged("app=cut", 1, "step 1")
    bundle = foreign.attach("job/cut").bundle
    foreign.kubectl("patch", "service", "cut", "-p", '{"spec": {"selector": {"app": "nobody"}}}')
    found = checked(foreign, bundle)
    assert (found.verdict, found.cause) == ("failed", "service.selector"), found
    foreign.kubectl("delete", "job", "cut")
    with pytest.raises(UsageError, match="there is no Job cut"):
        checked(foreign, bundle)
    foreign.job("cut", **LONG)
    with pytest.raises(UsageError, match="was deleted, and another Job with the same name exists now"):
        checked(foreign, bundle)


def test_an_account_without_the_right_to_exec(
    cluster: Ready, harness_settings: Settings, tmp_path: Path
) -> None:
    """Contract: one sentence, exit code 2, and the command that prints the Role."""
    name = f"checked-{secrets.token_hex(3)}"
    own = ForeignJobs(cluster.kube, name, cluster.worker.tag, tmp_path, harness_settings)
    try:
        own.job("read-only", **LONG)
        own.until_logged("app=read-only", 1, "step 1")
        bundle = own.attach("job/read-only").bundle
        with pytest.raises(HarnessError, match="netcheck could not run in any pod") as error:
            checked(own, bundle)
        assert error.value.exit_code == 2
        assert "--print-rbac --probe" in (error.value.hint or "")
    finally:
        own.remove()
