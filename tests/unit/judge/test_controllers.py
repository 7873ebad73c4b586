"""Causes for actions that JobSet and Kueue did not take, and for lost nodes."""

from pathlib import Path
from typing import Any

import bundles
import pytest
from bundles import at, cond

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import DryRun, Verdict
from harness.judge import judge


def deployment(job: bundles.Job, controller: str, available: int, when: float = 2) -> None:
    name = f"{controller}-controller-manager"
    metadata = {"name": name, "namespace": f"{controller}-system", "uid": name}
    status = {"availableReplicas": available} if available else {}
    obj = {"kind": "Deployment", "metadata": metadata, "spec": {"replicas": available}, "status": status}
    job.see(f"{controller}-controller", when, obj)


def node(job: bundles.Job, index: int, when: float, status: str, **more: Any) -> None:
    metadata = {"name": f"e2e-worker{index + 1}", "uid": f"node-{index}"}
    ready = cond("Ready", status, "NodeStatusUnknown", "Kubelet stopped posting node status.", when)
    job.see("node", when, {"kind": "Node", "metadata": metadata, "status": {"conditions": [ready]}}, **more)


def without_end(pods: bool = True) -> bundles.Job:
    """Return a job whose observer stopped waiting before the JobSet reported its end."""
    job = bundles.healthy()
    job.drop("jobset", 2)
    job.drop("workload", 2)
    if not pods:
        job.drop("pod")
        job.drop("job")
    return job


def judged(job: bundles.Job, path: Path) -> Verdict:
    return judge(job.write(path / "run"))


def test_kueue_makes_no_workload(tmp_path: Path) -> None:
    """There are different causes for a Kueue that is running but inactive and for a Kueue that is not
    running."""
    job = without_end(pods=False)
    job.drop("workload")
    job.drop("jobset", 1)
    deployment(job, "kueue", 1)
    verdict = judged(job, tmp_path)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "controllers.kueue_not_reconciling")
    assert "The Deployment of Kueue is Available" in verdict.explanation
    deployment(job, "kueue", 0, 3)
    verdict = judged(job, tmp_path / "down")
    assert (verdict.verdict, verdict.cause) == ("FAIL", "controllers.kueue_not_ready")
    assert "kueue-controller-manager has no available pod (replicas: 0)" in verdict.explanation


def test_jobset_makes_no_job(tmp_path: Path) -> None:
    job = without_end(pods=False)
    assert judged(job, tmp_path).cause == "controllers.jobset_not_reconciling"
    deployment(job, "jobset", 0)
    assert judged(job, tmp_path / "down").cause == "controllers.jobset_not_ready"


@pytest.mark.parametrize("controller", ["jobset", "kueue"])
def test_a_job_whose_pods_ended_and_that_does_not(tmp_path: Path, controller: str) -> None:
    """Either the job's controller is not running, or Kueue is not running, whose webhooks intercept requests
    for the Job."""
    job = without_end()
    assert judged(job, tmp_path).cause == "controllers.jobset_not_reconciling"
    deployment(job, controller, 1)
    deployment(job, controller, 0, 20)
    verdict = judged(job, tmp_path / "down")
    assert (verdict.verdict, verdict.cause) == ("FAIL", f"controllers.{controller}_not_ready")
    assert verdict.ranks == [0, 1]


def test_a_harness_that_was_stopped_proves_nothing(tmp_path: Path) -> None:
    job = without_end()
    job.manifest = job.manifest.model_copy(update={"interrupted": "SIGTERM"})
    assert judged(job, tmp_path).verdict == "UNKNOWN"


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("when", [12, 12.9])
def test_a_job_that_was_deleted(tmp_path: Path, when: float, ended: bool) -> None:
    """The job's deletion is the cause of its pods' deletion, even if rounding to whole seconds reverses their
    order."""
    job = without_end()
    for index in range(2):
        job.drop_pod(index, after=10)
    job.jobset(when, type_="DELETED")
    for index in range(2):
        gone = {"metadata": {"deletionTimestamp": at(42), "deletionGracePeriodSeconds": 30}}
        job.pod(index, 12.95, "Running", {"running": {"startedAt": at(5)}}, **gone)
        if ended:
            job.ended(index, 13 + index, 143, message="", **gone)
    verdict = judged(job, tmp_path)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "run.deleted", [0, 1])


def lost(status: str = "Unknown", when: float = 30) -> bundles.Job:
    job = without_end()
    for index in range(2):
        job.drop_pod(index, after=10)
        node(job, index, 1, "True")
    node(job, 1, when, status)
    return job


def test_a_node_that_stops_answering(tmp_path: Path) -> None:
    verdict = judged(lost(), tmp_path)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "cluster.node_lost", [1])
    assert "Node e2e-worker2 was lost while rank 1 ran on it" in verdict.explanation
    assert "Kubelet stopped posting" in verdict.explanation
    assert verdict.evidence == ["objects/node.jsonl:3"]


def test_a_crash_before_node_loss_is_a_consequence(tmp_path: Path) -> None:
    """A node becomes Unknown long after it was lost, so anything that failed in between is a consequence."""
    job = lost(when=31)
    job.ended(0, 25, 1)
    verdict = judged(job, tmp_path)
    assert (verdict.cause, verdict.ranks) == ("cluster.node_lost", [1])


def test_a_node_that_is_lost_after_its_rank_ended(tmp_path: Path) -> None:
    job = lost("False", 28)
    job.ended(1, 10, 3)
    verdict = judged(job, tmp_path)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1])


def test_a_node_that_was_away_while_the_job_completed(tmp_path: Path) -> None:
    job = bundles.healthy()
    node(job, 1, 20, "Unknown")
    node(job, 1, 22, "True")
    assert judged(job, tmp_path).verdict == "PASS"


def test_an_inactive_queue_says_why(tmp_path: Path) -> None:
    job = without_end(pods=False)
    job.drop("workload")
    job.drop("jobset", 1)
    job.workload(2, [cond("QuotaReserved", "False", "Inadmissible", "ClusterQueue cq is inactive")])
    active = cond("Active", "False", "FlavorNotFound", "references missing ResourceFlavor(s): gold.")
    metadata = {"name": "cq", "uid": "cq"}
    job.see("clusterqueue", 1, {"metadata": metadata, "spec": {}, "status": {"conditions": [active]}})
    verdict = judged(job, tmp_path)
    assert (verdict.cause, verdict.consequences) == ("queue.inactive", [])
    assert "missing ResourceFlavor(s): gold" in verdict.explanation


def test_a_pod_that_a_webhook_refuses(tmp_path: Path) -> None:
    job = without_end(pods=False)
    job.see("job", 3, {"kind": "Job", "metadata": {"name": "workers-0", "uid": "job"}})
    refused(
        job, "Job", 'Internal error occurred: failed calling webhook "mpod.kb.io": no endpoints available'
    )
    verdict = judged(job, tmp_path)
    assert (verdict.cause, verdict.ranks) == ("controllers.webhook_not_serving", [0, 1])


def refused(job: bundles.Job, kind: str, message: str, reason: str = "FailedCreate") -> None:
    event = {
        "metadata": {"name": f"e-{kind}", "namespace": bundles.NAMESPACE, "uid": f"e-{kind}"},
        "type": "Warning",
        "reason": reason,
        "involvedObject": {"kind": kind, "name": "multinode"},
        "lastTimestamp": at(9),
        "message": message,
    }
    job.see("event", 9, event, "ADDED")


POLICY = (
    "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'nonroot' with binding 'b' denied request: no root"
)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("Job", "FailedCreate"), ("DaemonSet", "FailedCreate"), ("JobSet", "JobCreationFailed")],
)
def test_pods_that_a_policy_refuses(tmp_path: Path, kind: str, reason: str) -> None:
    """The API server's message determines the cause, whichever controller reports it."""
    job = without_end(pods=False)
    deployment(job, "jobset", 1)
    refused(job, kind, POLICY, reason)
    verdict = judged(job, tmp_path)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "launch.pods_refused", [0, 1])
    assert POLICY in verdict.explanation
    assert any("describe validatingadmissionpolicy nonroot" in command for command in verdict.next)


@pytest.mark.parametrize(
    ("kind", "reason", "message", "cause", "advice"),
    [
        # kubernetes #100726
        (
            "Job",
            "FailedCreate",
            'pods "x" is forbidden: error looking up service account a/b: serviceaccount "b" not found',
            "launch.pods_refused",
            "serviceAccountName",
        ),
        (
            "Job",
            "FailedCreate",
            'pods "x" is forbidden: no PriorityClass with name gold was found',
            "launch.pods_refused",
            "create this PriorityClass",
        ),
        (
            "Job",
            "FailedCreate",
            'pods "x" is forbidden: pod rejected: RuntimeClass "nvidia" not found',
            "launch.pods_refused",
            "create this RuntimeClass",
        ),
        (
            "Job",
            "FailedCreate",
            'Internal error occurred: failed calling webhook "sidecar-injector.istio.io": deadline exceeded',
            "launch.pods_refused",
            "behind webhook sidecar-injector.istio.io",
        ),
        (
            "Job",
            "FailedCreate",
            'failed calling webhook "mpod.kb.io": x509: certificate has expired or is not yet valid: current',
            "controllers.webhook_not_serving",
            "control plane's clock",
        ),
        (
            "Job",
            "FailedCreate",
            'failed calling webhook "mpod.kb.io": failed to call webhook: Post "https://kruise-webhook-service.'
            'kruise-system.svc:443/mutate-pod?timeout=10s": dial tcp 10.0.0.1:443: refused',
            "launch.pods_refused",
            "behind webhook mpod.kb.io",
        ),
        (
            "Job",
            "FailedCreate",
            'failed calling webhook "mpod.kb.io": failed to call webhook: Post "https://kueue-webhook-service.'
            'kueue-system.svc:443/mutate--v1-pod?timeout=10s": dial tcp 10.0.0.1:443: refused',
            "controllers.webhook_not_serving",
            "",
        ),
        # kruise #1863: the Training Operator uses another Event reason.
        (
            "PyTorchJob",
            "FailedCreatePod",
            'admission webhook "mpod.kb.io" denied the request: the spec replicas field does not exist',
            "launch.pods_refused",
            "according to the rule",
        ),
    ],
)
def test_the_advice_fits_a_refusal(tmp_path: Path, kind, reason, message, cause, advice) -> None:
    """Contract: other webhooks are not attributed to JobSet or Kueue, and a missing object is named."""
    job = without_end(pods=False)
    job.see("job", 3, {"kind": "Job", "metadata": {"name": "workers-0", "uid": "job"}})
    refused(job, kind, message, reason)
    verdict = judged(job, tmp_path)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, [0, 1]), verdict.explanation
    assert message in verdict.explanation
    assert advice in verdict.next[-1]


@pytest.mark.parametrize("pods", [True, False])
def test_pods_in_a_namespace_that_somebody_deletes(tmp_path: Path, pods: bool) -> None:
    """Contract: jobset#101, antrea#488, trainer#1849. Nothing can be created in such a namespace again."""
    job = without_end(pods=pods)
    if pods:
        job.drop_pod(1)
    job.see("job", 3, {"kind": "Job", "metadata": {"name": "workers-0", "uid": "job"}})
    message = "is forbidden: unable to create new content in namespace e2e because it is being terminated"
    refused(job, "Job", f'pods "x" {message}')
    verdict = judged(job, tmp_path)
    assert verdict.cause == "run.namespace_deleted", verdict.explanation
    assert message in verdict.explanation
    assert "find out who deleted it" in verdict.next[-1]


def test_terminating_pod_does_not_imply_terminating_namespace(tmp_path: Path) -> None:
    job = without_end(pods=False)
    job.see("job", 3, {"kind": "Job", "metadata": {"name": "workers-0", "uid": "job"}})
    refused(job, "Job", 'object is being deleted: pods "x" already exists and is being terminated')
    assert judged(job, tmp_path).cause == "rank.missing"


def test_one_pod_that_a_quota_refuses(tmp_path: Path) -> None:
    job = without_end()
    job.drop_pod(1)
    refused(job, "Job", 'pods "x" is forbidden: exceeded quota: team, requested: cpu=1')
    verdict = judged(job, tmp_path)
    assert (verdict.cause, verdict.ranks) == ("launch.pods_refused", [1])
    assert "ResourceQuota team" in verdict.explanation


def test_a_refusal_that_was_over_is_no_cause(tmp_path: Path) -> None:
    job = bundles.healthy()
    refused(job, "Job", POLICY)
    job.refresh()
    assert judged(job, tmp_path).verdict == "PASS"


@pytest.mark.parametrize(("addresses", "serves"), [([], False), (["10.0.0.7"], True)])
def test_a_webhook_without_endpoints(tmp_path: Path, addresses: list[str], serves: bool) -> None:
    """A controller is not accused of inactivity if its own webhooks cannot be reached."""
    job = without_end(pods=False)
    job.drop("workload")
    job.drop("jobset", 1)
    deployment(job, "kueue", 1)
    labels = {"kubernetes.io/service-name": "kueue-webhook-service"}
    slice_ = {"metadata": {"name": "kueue-webhook-service-x", "uid": "slice", "labels": labels}}
    job.see("kueue-endpoints", 2, {**slice_, "endpoints": [{"addresses": addresses}]}, "ADDED")
    verdict = judged(job, tmp_path)
    wanted = "controllers.kueue_not_reconciling" if serves else "controllers.webhook_not_serving"
    assert (verdict.verdict, verdict.cause) == ("FAIL", wanted)
    assert ("Service kueue-webhook-service has no endpoint" in verdict.explanation) is not serves


def test_a_preempted_job_is_no_fault_of_jobset(tmp_path: Path) -> None:
    """A JobSet that Kueue has suspended does not end, so its controller is not accused."""
    job = without_end()
    job.jobset(31, suspend=True)
    job.workload(31, [cond("Evicted", "True", "Preempted", "to accommodate another")])
    verdict = judged(job, tmp_path)
    assert not [text for text in verdict.consequences if "not_reconciling" in text]
    assert "not_reconciling" not in (verdict.cause or "")


NO_ENDPOINT = (
    'HTTP 500: Internal error occurred: failed calling webhook "mworkload.kb.io": failed to call webhook: '
    'no endpoints available for service "kueue-webhook-service"'
)
KUEUE = "system:serviceaccount:kueue-system:kueue-controller-manager"
FORBIDDEN = (
    f'HTTP 403: workloads.kueue.x-k8s.io is forbidden: User "{KUEUE}" cannot create resource "workloads"'
)
DENIED = 'HTTP 403: admission webhook "vworkload.kb.io" denied the request: spec.podSets: Invalid value'


def asked(
    job: bundles.Job, path: Path, *runs: tuple[float, str, str | None, bool], user: str | None = KUEUE
) -> Verdict:
    """Judge with these dry runs: (time, kind, error message, whether an object of this kind was awaited)."""
    folder = job.write(path / "run").path
    lines = [
        DryRun(at=at(when), kind=kind, name="x-dry-run", user=user, awaited=awaited, message=message)
        for when, kind, message, awaited in runs
    ]
    (folder / "dry-runs.jsonl").write_text("".join(f"{line.model_dump_json()}\n" for line in lines))
    return judge(Bundle.open(folder))


def waiting_for_kueue() -> bundles.Job:
    job = without_end(pods=False)
    job.drop("workload")
    job.drop("jobset", 1)
    deployment(job, "kueue", 1)
    return job


@pytest.mark.parametrize("awaited", [True, False])
def test_the_api_server_message_explains_a_missing_workload(tmp_path: Path, awaited: bool) -> None:
    kind = "Workload" if awaited else "JobSet"
    verdict = asked(waiting_for_kueue(), tmp_path, (9, kind, NO_ENDPOINT, awaited))
    assert (verdict.verdict, verdict.cause) == ("FAIL", "controllers.webhook_not_serving")
    assert 'no endpoints available for service "kueue-webhook-service"' in verdict.explanation
    assert "dry-runs.jsonl:1" in verdict.evidence


def test_a_webhook_outage_is_reported_with_both_responses(tmp_path: Path) -> None:
    runs = ((9, "Workload", NO_ENDPOINT, True), (40, "Workload", None, True))
    verdict = asked(waiting_for_kueue(), tmp_path, *runs)
    assert verdict.cause == "controllers.webhook_not_serving"
    assert "it was accepted" in verdict.explanation


@pytest.mark.parametrize("message", [None, DENIED, "HTTP 400: webhook x does not support dry run"])
def test_a_dry_run_that_shows_no_cause_changes_nothing(tmp_path: Path, message: str | None) -> None:
    """If Kueue's own webhook denies the harness's Workload, the Workload differs from the one that Kueue
    would create."""
    verdict = asked(waiting_for_kueue(), tmp_path, (9, "Workload", message, True))
    assert (verdict.verdict, verdict.cause) == ("FAIL", "controllers.kueue_not_reconciling")


def test_a_policy_that_refuses_pods_in_silence(tmp_path: Path) -> None:
    job = without_end(pods=False)
    job.see("job", 3, {"kind": "Job", "metadata": {"name": "workers-0", "uid": "job"}})
    verdict = asked(job, tmp_path, (9, "Pod", f"HTTP 422: {POLICY}", True))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "launch.pods_refused", [0, 1])
    assert POLICY in verdict.explanation


@pytest.mark.parametrize("user", [KUEUE, None])
def test_a_rule_counts_where_it_refuses_the_controller(tmp_path: Path, user: str | None) -> None:
    """A rule that rejects the harness's request may accept the controller's request."""
    verdict = asked(waiting_for_kueue(), tmp_path, (9, "Workload", f"HTTP 422: {POLICY}", True), user=user)
    assert verdict.cause == ("launch.pods_refused" if user else "controllers.kueue_not_reconciling")
    assert POLICY in verdict.explanation


def test_a_lost_controller_permission_is_named(tmp_path: Path) -> None:
    verdict = asked(waiting_for_kueue(), tmp_path, (9, "Workload", FORBIDDEN, True))
    assert verdict.cause == "controllers.kueue_not_reconciling"
    assert 'cannot create resource "workloads"' in verdict.explanation


def test_controller_that_is_down_comes_before_its_silent_webhook(tmp_path: Path) -> None:
    job = waiting_for_kueue()
    deployment(job, "kueue", 0, 3)
    verdict = asked(job, tmp_path, (9, "Workload", NO_ENDPOINT, True))
    assert verdict.cause == "controllers.kueue_not_ready"
    assert "no endpoints available" in verdict.explanation
