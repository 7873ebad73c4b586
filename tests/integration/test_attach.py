"""`harness attach` with an API server on loopback: verdicts, requests and missing permissions."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import attached_jobs as jobs
import pytest
import yaml
from attached_jobs import results, serve, short

from harness.attach.resources import roles
from harness.cli.main import main
from harness.core.clock import seconds
from harness.evidence import Bundle
from harness.faults.recorded_bundles import extract

PEER = "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.0.7]:4711"


def test_a_completed_job_passes_all_but_the_points(api, attached):
    """Contract: each check that needs no recorder is PASS, and the verdict is UNKNOWN."""
    serve(api, jobs.job("train", 2, jobs.condition("Complete")), jobs.pod(0), jobs.pod(1))
    verdict = attached().verdict
    assert short(verdict) == ("UNKNOWN", "unification.not_recorded", [])
    passed = {name for name, result in results(verdict).items() if result == "PASS"}
    assert {
        "expected",
        "scheduling",
        "image",
        "rank-pods",
        "rank-exit",
        "completed",
        "restarts",
        "logs",
    } <= passed
    assert results(verdict)["rendezvous"] == "UNKNOWN"
    assert (
        "--nproc-per-node of its command (1)"
        in next(c for c in verdict.checks if c.name == "expected").explanation
    )


def test_rank_that_failed_first_is_named_with_its_error(api, attached):
    """Contract: the crash is the cause, and not the peer that lost its connection a second before."""
    failed = jobs.job(
        "train", 2, jobs.condition("Failed", "BackoffLimitExceeded", "Job has reached the limit")
    )
    error = jobs.stamped("step 7", "Traceback (most recent call last):", "ValueError: bad batch")
    serve(
        api,
        failed,
        jobs.pod(0, 1, when=49),
        jobs.pod(1, 1, when=50),
        r0=jobs.stamped("step 7", PEER),
        r1=error,
    )
    verdict = attached().verdict
    assert short(verdict) == ("FAIL", "rank.crashed", [1])
    assert "ValueError: bad batch" in verdict.explanation


def test_a_peer_that_lost_its_connection_is_not_accused(api, attached):
    """Contract: if only the consequence is left, because the other pod no longer exists, the verdict is
    UNKNOWN."""
    failed = jobs.job(
        "train", 2, jobs.condition("Failed", "BackoffLimitExceeded", "Job has reached the limit")
    )
    serve(api, failed, jobs.pod(0, 1), r0=jobs.stamped("step 7", PEER))
    verdict = attached().verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "rank.crashed")
    assert "another failure, which was not recorded: no pod of rank 1 exists now" in verdict.explanation
    assert "Job controller deletes the pods that still run when the Job fails" in verdict.explanation
    own = next(check for check in verdict.checks if check.name == "rank-exit")
    assert "attach to the next run" in own.advice
    assert {results(verdict)[name] for name in ("containers", "node-spread", "scheduling", "image")} == {
        "UNKNOWN"
    }


@pytest.mark.parametrize("terminal", ["Complete", "Failed"])
def test_a_job_whose_pods_are_gone_is_unknown(terminal, api, attached):
    """Contract: if a controller or a TTL has removed the pods, no rank and no client is accused."""
    serve(api, jobs.job("train", 2, jobs.condition(terminal, "BackoffLimitExceeded", "limit")))
    verdict = attached().verdict
    assert (verdict.verdict, verdict.cause) == (
        "UNKNOWN",
        "run.evidence_missing" if terminal == "Complete" else verdict.cause,
    )
    assert verdict.verdict != "PASS"


def test_a_rank_that_torchrun_put_into_another_pod(api, attached):
    """Contract: with c10d, rank 1 can be in pod 0. The rank in torchrun's report is accused."""
    report = [
        "E1129 00:42 25 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 3)",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : 1 (local_rank: 0)",
        "  exitcode  : 3 (pid: 47)",
    ]
    failed = jobs.job("train", 2, jobs.condition("Failed", "BackoffLimitExceeded", "limit"))
    serve(api, failed, jobs.pod(0, 1), r0=jobs.stamped(*report))
    outcome = attached()
    assert short(outcome.verdict) == ("FAIL", "rank.crashed", [1])
    assert "Its log contains only torchrun's report" in outcome.verdict.explanation
    expected = next(check for check in outcome.verdict.checks if check.name == "expected")
    assert "the order of ranks is taken from torchrun's log" in expected.explanation


def test_running_job_shows_who_is_silent_for_longest_time(api, attached):
    """Contract: the verdict on a job that is hanging is UNKNOWN, with the last line of each rank and its
    age."""
    serve(
        api,
        jobs.job("train", 2, active=2),
        jobs.pod(0, None),
        jobs.pod(1, None),
        r0=jobs.stamped("step 9", start=30),
        r1=jobs.stamped("step 3", start=10),
    )
    verdict = attached().verdict
    assert short(verdict) == ("UNKNOWN", "run.not_ended", [0, 1])
    assert verdict.explanation.index("step 3") < verdict.explanation.index("step 9")


def test_a_restarted_container_is_judged_by_its_previous_log(api, attached):
    """Contract: the container's previous end is reconstructed from its status and the log of its previous
    instance."""
    before = {"restartCount": 2, "lastState": jobs.state(1, 30)}
    pods = [jobs.pod(0, None), jobs.pod(1, None, container=before)]
    serve(api, jobs.job("train", 2, active=2), *pods, r1=jobs.stamped("step 0", start=40))
    api.previous["train-1-abcd1", "main"] = jobs.stamped("KeyError: 'shard'", start=20)
    outcome = attached()
    check = next(c for c in outcome.verdict.checks if c.name == "restarts")
    assert check.cause == "rank.restarted"
    assert "2 times" in check.explanation
    text = (outcome.bundle / "logs/train-1-abcd1-main.log").read_text()
    assert text.index("KeyError") < text.index("step 0")


def test_events_and_workloads_of_other_jobs_are_not_evidence(api, attached):
    """Contract: if another job's pods in the same namespace are rejected, this job's verdict is not
    affected."""
    serve(api, jobs.job("train", 2, active=1), jobs.pod(0, None))
    message = (
        'pods "other-1" is forbidden: exceeded quota: small, requested: cpu=9, used: cpu=1, limited: cpu=4'
    )
    api.objects["event"] = [jobs.event("e1", "Job", "other", "FailedCreate", message)]
    assert attached().verdict.cause != "launch.pods_refused"
    api.objects["event"] = [
        jobs.event("e1", "Job", "train", "FailedCreate", message.replace("other", "train"))
    ]
    assert short(attached().verdict) == ("FAIL", "launch.pods_refused", [1])


def test_only_reads_that_the_printed_role_permits(api, attached):
    """Contract: the API server receives only GET requests for the resources in `--print-rbac`."""
    serve(api, jobs.job("train", 2, jobs.condition("Complete")), jobs.pod(0), jobs.pod(1))
    attached()
    permitted = {
        plural
        for document in yaml.safe_load_all(roles("team"))
        for rule in document["rules"]
        for plural in rule["resources"]
    }
    verbs = {verb for d in yaml.safe_load_all(roles("team")) for rule in d["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch"}
    for method, path in api.requests:
        within = re.sub(r"^/(api|apis/[^/]+)/v[^/]+(/namespaces/team)?/?", "", path).split("/")
        assert method == "GET"
        assert ("/".join([within[0], within[2]]) if len(within) > 2 else within[0]) in permitted, path


def test_roles_for_two_namespaces_do_not_replace_each_other():
    """Contract: each namespace has its own ClusterRole, because the rules name the namespace."""
    names = {
        (role["kind"], role["metadata"].get("namespace"), role["metadata"]["name"])
        for namespace in ("team-a", "team-b")
        for role in yaml.safe_load_all(roles(namespace))
    }
    assert len(names) == 4


@pytest.mark.parametrize(
    ("kind", "unknown"),
    [("node", "nodes"), ("event", None), ("service", None), ("workload", "admission"), ("log", "logs")],
)
def test_a_missing_right_costs_only_its_checks(kind, unknown, api, attached):
    """Contract: if a permission is missing, the checks that need it are UNKNOWN with the reason, and the
    other checks run."""
    job = jobs.job("train", 2, jobs.condition("Failed", "BackoffLimitExceeded", "limit"))
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"} if kind == "workload" else {}
    error = jobs.stamped("ValueError: bad batch")
    serve(api, job, jobs.pod(0, 137, when=55), jobs.pod(1, 3), r1=error)
    api.forbidden = {kind}
    outcome = attached()
    assert short(outcome.verdict) == ("FAIL", "rank.crashed", [1])
    if unknown:
        check = next(c for c in outcome.verdict.checks if c.name == unknown)
        assert check.result == "UNKNOWN"
        assert "forbidden" in check.explanation.lower()


def test_a_selector_takes_bare_pods_by_their_ranks(api, attached):
    """Contract: pods without a controller are numbered by RANK in their specs, or by name."""
    pods = []
    for index, name in ((1, "a"), (0, "b")):
        env = [{"name": "RANK", "value": str(index)}, {"name": "WORLD_SIZE", "value": "2"}]
        spec = jobs.template("python train.py")
        spec["containers"][0]["env"] = env
        pods.append(jobs.pod(index, index * 3, name=name, owners=[], labels={"app": "t"}, spec=spec))
    api.objects["pod"] = pods
    api.logs = {("a", "main"): jobs.stamped("ValueError: x"), ("b", "main"): jobs.stamped("done")}
    assert short(attached(selector="app=t").verdict) == ("FAIL", "rank.crashed", [1])


def test_several_replicated_jobs_have_one_rank_per_pod(api, attached):
    """Contract: pods with the same completion index in different Jobs are different ranks, not attempts."""
    spec = {"parallelism": 1, "completions": 1, "template": {"spec": jobs.template()}}
    replicated = [
        {"name": name, "replicas": count, "template": {"spec": spec}}
        for name, count in (("lead", 1), ("work", 2))
    ]
    api.objects["jobset"] = [
        {
            "metadata": jobs.meta("train"),
            "spec": {"replicatedJobs": replicated},
            "status": {"terminalState": "Completed", "conditions": [jobs.condition("Completed")]},
        }
    ]
    where = [("lead", 0), ("work", 0), ("work", 1)]
    for number, (part, index) in enumerate(where):
        labels = {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/replicatedjob-name": part}
        labels |= {"jobset.sigs.k8s.io/job-index": str(index)}
        pod = jobs.pod(0, 0, name=f"p{number}", labels=labels)
        pod["spec"]["nodeName"] = f"node-{number}"
        api.objects["pod"].append(pod)
        api.logs[f"p{number}", "main"] = jobs.stamped("done")
    outcome = attached("jobset/train")
    assert results(outcome.verdict)["restarts"] == "PASS"
    assert [pod.name for pod in Bundle.open(outcome.bundle).pods().values()] == ["p0", "p1", "p2"]


def test_statefulset_that_crashes_in_loop_names_crash(api, attached):
    """Contract: a container that is waiting to be restarted has an exit code and a log."""
    waiting = {
        "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
    }
    crashed = {"restartCount": 4, "lastState": jobs.state(1, 30)}
    api.objects["statefulset"] = [
        {
            "metadata": jobs.meta("train"),
            "spec": {"replicas": 2, "template": {"spec": jobs.template()}},
            "status": {},
        }
    ]
    owners = jobs.owned("StatefulSet", "train")
    api.objects["pod"] = [
        jobs.pod(0, None, name="train-0", owners=owners),
        jobs.pod(1, None, name="train-1", owners=owners, state=waiting, container=crashed),
    ]
    api.logs = {
        ("train-0", "main"): jobs.stamped("waits"),
        ("train-1", "main"): jobs.stamped("KeyError: 'lr'"),
    }
    verdict = attached("sts/train").verdict
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.crashed", [1])
    assert "KeyError: 'lr'" in verdict.explanation


def test_a_recorded_failure_is_read_in_time(api, attached, tmp_path):
    """Contract: a recorded failed launch that an API server serves gets the right cause within the time
    limit."""
    whole = Bundle.open(
        extract(Path("tests/recorded/rank-exception-while-logging.tar.xz"), tmp_path / "whole")
    )
    manifest = whole.manifest
    wait = next(stage for stage in manifest.stages if stage.name == "observe")
    api.load(whole, (seconds(wait.started_at) or 0.0) + wait.seconds)
    outcome = attached(f"jobset/{manifest.launch.object_name}", namespace=manifest.launch.namespace)
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("FAIL", "rank.crashed")


def test_the_commands_print_a_verdict(api, settings, capsys, monkeypatch):
    """Contract: --json prints one document, `why` fits on one screen, and both have the exit codes of
    `harness run`."""
    failed = jobs.job("train", 2, jobs.condition("Failed", "BackoffLimitExceeded", "limit"))
    serve(
        api,
        failed,
        jobs.pod(0, 1, when=55),
        jobs.pod(1, 1),
        r0=jobs.stamped(PEER),
        r1=jobs.stamped("ValueError: x"),
    )
    given = ["--kubeconfig", str(settings.kubeconfig), "-n", "team", "--runs-dir", str(settings.runs_dir)]
    monkeypatch.setenv("HARNESS_STATE_DIR", str(settings.state_dir))
    with pytest.raises(SystemExit) as end:
        main(["attach", "job/train", *given, "--json", "-q"])
    document = json.loads(capsys.readouterr().out)
    assert (end.value.code, document["cause"], document["ranks"]) == (1, "rank.crashed", [1])
    with pytest.raises(SystemExit) as end:
        main(["why", "job/train", *given])
    text = capsys.readouterr().out
    assert end.value.code == 1
    assert "FAIL  rank.crashed  rank 1" in text
    assert "ValueError: x" in text
    assert len(text.splitlines()) < 24


def test_512_pods_are_read_in_pages(api, attached):
    """Contract: many pods are listed in pages, and only the ends of their logs are read."""
    pods = [jobs.pod(n, None) for n in range(512)]
    serve(api, jobs.job("train", 512, active=512), *pods)
    api.page, api.objects["node"] = 200, [jobs.node(f"node-{n}") for n in range(512)]
    begun = time.monotonic()
    outcome = attached()
    assert len(Bundle.open(outcome.bundle).pods()) == 512
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("UNKNOWN", "run.not_ended")
    print(f"512 pods in {time.monotonic() - begun:.1f} s")


# -- situations from public bug reports ----------------------------------------------------------------


def test_failed_job_with_on_failure_reports_its_removed_pod(api, attached):
    """kubernetes/kubernetes#74848, #78644: the Job controller deleted the pod with its log."""
    failed = jobs.job("train", 1, jobs.condition("Failed", "BackoffLimitExceeded", "reached the limit"))
    failed["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    api.objects["job"] = [failed]
    verdict = attached().verdict
    assert verdict.verdict == "UNKNOWN"
    assert "restartPolicy Never" in next(c for c in verdict.checks if c.name == "completed").explanation


def test_a_backoff_limit_larger_than_0(api, attached):
    """kubernetes-sigs/jobset#825: pod 0 failed, was replaced and failed again: attempts of rank 0."""
    failed = jobs.job("train", 2, jobs.condition("Failed", "BackoffLimitExceeded", "limit"), failed=3)
    failed["spec"]["backoffLimit"] = 1
    first = jobs.pod(0, 1, name="train-0-first", when=20)
    second = jobs.pod(0, 1, name="train-0-second", when=40, metadata={"creationTimestamp": jobs.at(21)})
    serve(api, failed, first, second, r0=jobs.stamped("KeyError: 'lr'"))
    verdict = attached().verdict
    assert short(verdict) == ("FAIL", "rank.crashed", [0])
    assert results(verdict)["restarts"] == "PASS"


def test_a_pod_that_somebody_deleted_is_being_replaced(api, attached):
    """kubernetes-sigs/jobset#574: if a pod is Terminating while its replacement exists, no rank is accused of
    a crash."""
    leaving = {"deletionTimestamp": jobs.at(70), "deletionGracePeriodSeconds": 30}
    serve(
        api,
        jobs.job("train", 2, active=2),
        jobs.pod(0, None),
        jobs.pod(1, None, name="train-1-old", metadata=leaving),
        jobs.pod(1, None, name="train-1-new", metadata={"creationTimestamp": jobs.at(41)}),
    )
    verdict = attached().verdict
    assert verdict.verdict == "UNKNOWN"
    restarts = next(c for c in verdict.checks if c.name == "restarts")
    assert "train-1-old was deleted while it ran" in restarts.explanation


SIGNALLED = jobs.stamped(
    "step 5",
    "Traceback (most recent call last):",
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15",
)
"""The log of a torchrun that is the container's command. It exits with 1 after SIGTERM."""


@pytest.mark.parametrize(("code", "log"), [(143, jobs.stamped("step 5")), (1, SIGNALLED)])
def test_a_graceful_node_shutdown_is_an_eviction(code, log, api, attached):
    """kubeflow/trainer#1570: the kubelet ended the pod because its node shut down."""
    message = "Pod was terminated in response to imminent node shutdown."
    shutdown = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
        "message": message,
    }
    failed = jobs.job("train", 2, jobs.condition("Failed", "BackoffLimitExceeded", "limit"))
    ended = jobs.pod(1, code, conditions=[shutdown], reason="Terminated", message=message)
    serve(api, failed, ended, r1=log)
    verdict = attached().verdict
    assert short(verdict) == ("FAIL", "rank.evicted", [1])
    assert "node shutdown" in verdict.explanation


def test_a_deleted_pod_whose_torchrun_exits_with_1(api, attached):
    """Contract: ranks in a deleted pod are not reported as crashed."""
    leaving = {"deletionTimestamp": jobs.at(70), "deletionGracePeriodSeconds": 30}
    ended = jobs.pod(1, 1, when=41, metadata=leaving)
    serve(api, jobs.job("train", 2, active=1), jobs.pod(0, None), ended, r1=SIGNALLED)
    verdict = attached().verdict
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("UNKNOWN", "rank.pod_deleted", [1])


def test_a_jobset_that_restarted_counts_its_restarts(api, attached):
    """kubernetes-sigs/jobset#1129 and others: earlier pods no longer exist, but their number is known."""
    spec = {"parallelism": 1, "completions": 1, "template": {"spec": jobs.template("torchrun train.py")}}
    replicated = [{"name": "w", "replicas": 1, "template": {"spec": spec}}]
    status = {"terminalState": "Completed", "restarts": 2, "conditions": [jobs.condition("Completed")]}
    policy = {"maxRestarts": 3}
    api.objects["jobset"] = [
        {
            "metadata": jobs.meta("train"),
            "spec": {"replicatedJobs": replicated, "failurePolicy": policy},
            "status": status,
        }
    ]
    labels = {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/replicatedjob-name": "w"}
    labels |= {"jobset.sigs.k8s.io/job-index": "0", "jobset.sigs.k8s.io/restart-attempt": "2"}
    api.objects["pod"] = [jobs.pod(0, 0, name="p", labels=labels)]
    api.logs["p", "main"] = jobs.stamped("done")
    verdict = attached("jobset/train").verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.not_recorded")
    assert (
        "restarted 2 of at most 3 times"
        in next(c for c in verdict.checks if c.name == "restarts").explanation
    )


def test_node_that_removed_log_of_ended_container(api, attached):
    """tektoncd/pipeline#2887: the kubelet has removed the container, so the exit code is known but the log is
    not."""
    failed = jobs.job("train", 1, jobs.condition("Failed", "BackoffLimitExceeded", "limit"))
    serve(api, failed, jobs.pod(0, 3), r0="unable to retrieve container logs for containerd://ab12")
    outcome = attached()
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("FAIL", "rank.crashed")
    assert results(outcome.verdict)["logs"] == "UNKNOWN"
    assert "Its log could not be read" in outcome.verdict.explanation


def test_a_log_that_was_rotated_is_not_complete(api, attached):
    """Contract: if a log begins long after its container started, the verdict is UNKNOWN, and not PASS."""
    late = jobs.stamped("step 900", start=200)
    serve(api, jobs.job("train", 1, jobs.condition("Complete")), jobs.pod(0, 0, when=300), r0=late)
    check = next(c for c in attached().verdict.checks if c.name == "logs")
    assert check.result == "UNKNOWN"
    assert "rotated" in check.explanation
