"""`harness attach` with an API server that rejects requests: which requests are retried, and for how long."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import attached_jobs as jobs
import pytest
from attached_jobs import serve, short
from bundle_api import BundleApi

from harness.attach import api_reader, follow
from harness.core.errors import HarnessError
from harness.report.finalize import Outcome

Attach = Callable[..., Outcome]
COMPLETE = ("UNKNOWN", "unification.not_recorded", [])
JOB, PODS = "/apis/batch/v1/namespaces/team/jobs/train", "/api/v1/namespaces/team/pods"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_reader, "RETRY_SECONDS", 2.0)
    monkeypatch.setattr(api_reader, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(follow, "ASK_SECONDS", 0.1)


class Refusals:
    """Rejects requests for a path with a status, from request number `first` to `last`."""

    def __init__(self, path: str, status: int, last: float = math.inf, first: int = 1) -> None:
        self.path, self.status, self.first, self.last = path, status, first, last
        self.asked = 0

    def __call__(self, path: str, query: dict[str, str]) -> int | None:
        if path != self.path or query.get("watch"):
            return None
        self.asked += 1
        return self.status if self.first <= self.asked <= self.last else None


def completed(api: BundleApi) -> None:
    serve(api, jobs.job("train", 2, jobs.condition("Complete")), jobs.pod(0), jobs.pod(1))


@pytest.mark.parametrize("status", [429, 500, 503, 504])
@pytest.mark.parametrize("path", [JOB, PODS])
def test_an_api_server_that_is_busy_is_asked_again(
    path: str, status: int, api: BundleApi, attached: Attach
) -> None:
    """Contract: a few rejected requests to an overloaded or restarting API server do not change the
    result."""
    completed(api)
    api.refusal = Refusals(path, status, 3)
    assert short(attached().verdict) == COMPLETE


@pytest.mark.parametrize("status", [429, 500])
def test_api_server_that_stays_busy_ends_with_sentence(status: int, api: BundleApi, attached: Attach) -> None:
    completed(api)
    api.refusal = Refusals(JOB, status)
    with pytest.raises(
        HarnessError, match=f"Job train could not be read: HTTP {status}: this server"
    ) as error:
        attached()
    assert error.value.cause == "cluster.unhealthy"


@pytest.mark.parametrize("status", [400, 405, 406, 410, 422])
def test_a_refusal_that_stays_is_not_repeated(status: int, api: BundleApi, attached: Attach) -> None:
    """Contract: the request is sent once, and the error is one sentence with the API server's response."""
    completed(api)
    api.refusal = refusals = Refusals(JOB, status)
    with pytest.raises(
        HarnessError, match=f"Job train could not be read: HTTP {status}: this server"
    ) as error:
        attached()
    assert (error.value.cause, refusals.asked) == ("cluster.unhealthy", 1)


@pytest.mark.parametrize("status", [400, 422, 500])
def test_kind_that_cannot_be_read_costs_only_its_checks(
    status: int, api: BundleApi, attached: Attach
) -> None:
    """Contract: for example, the conversion webhook of Kueue may not be available."""
    completed(api)
    api.refusal = Refusals("/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads", status)
    verdict = attached().verdict
    assert verdict.verdict == "UNKNOWN"
    results = jobs.results(verdict)
    assert results["rank-exit"] == results["completed"] == "PASS"
    assert f"HTTP {status}" in "\n".join(each.explanation for each in verdict.checks)


def test_a_list_whose_pages_expire_is_read_again_whole(api: BundleApi, attached: Attach) -> None:
    """Contract: status 410 means that the `continue` token of a list has expired."""
    completed(api)
    api.page = 1
    queries = list[dict[str, str]]()

    def refusal(path: str, query: dict[str, str]) -> int | None:
        if path != PODS:
            return None
        queries.append(query)
        if "limit" not in query:
            api.page = 500
        return 410 if "continue" in query else None

    api.refusal = refusal
    assert short(attached().verdict) == COMPLETE
    assert ["continue" in each for each in queries] == [False, True, False]


def test_a_job_that_completes_while_it_is_read(api: BundleApi, attached: Attach) -> None:
    """Contract: the pods are read again, so that no rank of a completed job appears to be running."""
    running(api)

    def before(path: str) -> None:
        if path.endswith("/jobs/train") and ("GET", PODS) in api.requests:
            complete(api)

    api.before = before
    assert short(attached().verdict) == COMPLETE


def running(api: BundleApi) -> None:
    serve(api, jobs.job("train", 2), jobs.pod(0, None), jobs.pod(1, None))


def complete(api: BundleApi) -> None:
    """Complete the job, and send the changes to its watches."""
    for index in (0, 1):
        pod = jobs.pod(index)
        pod["metadata"]["resourceVersion"] = "8"
        api.change("pod", pod)
    job = jobs.job("train", 2, jobs.condition("Complete"))
    job["metadata"]["resourceVersion"] = "9"
    api.change("job", job)


def when(condition: Callable[[], bool], act: Callable[[], None]) -> None:
    """Call `act` in another thread as soon as the condition is true."""

    def wait() -> None:
        while not condition():
            time.sleep(0.02)
        act()

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.nightly
@pytest.mark.parametrize("status", [429, 500, 503])
def test_following_goes_on_while_the_api_server_is_busy(
    status: int, api: BundleApi, attached: Attach
) -> None:
    """Contract: an overloaded or restarting API server does not end `--follow`. The first request finds the
    job."""
    running(api)
    api.refusal = refusals = Refusals(JOB, status, first=2, last=5)
    when(lambda: refusals.asked > 6, lambda: complete(api))
    assert short(attached(follow=True).verdict) == COMPLETE


def test_following_ends_if_the_api_server_stays_busy(
    api: BundleApi, attached: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "GONE_SECONDS", 0.5)
    running(api)
    api.refusal = Refusals(JOB, 503, first=2)
    verdict = attached(follow=True).verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "cluster.unhealthy")
    assert "Job train could not be read: HTTP 503: this server refuses with 503" in verdict.explanation


@pytest.mark.parametrize("status", [400, 403, 405, 422])
def test_following_ends_with_a_refusal_that_stays(status: int, api: BundleApi, attached: Attach) -> None:
    """Contract: the rejected request is not retried, the error contains the reason, and the evidence is
    kept."""
    running(api)
    api.refusal = refusals = Refusals(JOB, status, first=2)
    verdict = attached(follow=True).verdict
    cause = "cluster.forbidden" if status == 403 else "cluster.unhealthy"
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", cause)
    assert refusals.asked == 2


@pytest.mark.nightly
def test_a_deletion_that_the_watch_did_not_report(api: BundleApi, attached: Attach) -> None:
    """Contract: following ends, and the deletion is the cause. A broken watch does not report deletions that
    occurred in the meantime.
    """
    running(api)
    api.refusal = refusals = Refusals(JOB, 429, first=2, last=4)

    def delete() -> None:
        api.objects["job"] = []
        for index in (0, 1):
            pod = jobs.pod(index, None)
            pod["metadata"]["resourceVersion"] = "20"
            api.change("pod", pod, "DELETED")

    when(lambda: refusals.asked > 3, delete)
    verdict = attached(follow=True).verdict
    assert (verdict.verdict, verdict.cause) == ("FAIL", "run.deleted")


def test_watch_whose_resource_version_is_too_old_lists_again(api: BundleApi, attached: Attach) -> None:
    """Contract: changes between the two lists are recorded."""
    running(api)
    jobs_path = JOB.rpartition("/")[0]
    listed = list[str]()

    def refusal(path: str, query: dict[str, str]) -> int | None:
        if path != jobs_path:
            return None
        listed.append("watch" if query.get("watch") else "list")
        return 410 if query.get("watch") and listed.count("watch") == 1 else None

    api.refusal = refusal
    when(lambda: listed.count("watch") > 1, lambda: complete(api))
    assert short(attached(follow=True).verdict) == COMPLETE
    assert listed[:4] == ["list", "watch", "list", "watch"]
