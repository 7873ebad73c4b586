"""The check of netcheck's diagnoses: PASS requires complete diagnoses from all pods, and a FAIL names the
right ranks."""

from __future__ import annotations

from pathlib import Path

import bundles
import pytest
from bundles import at, cond
from netcheck_bundles import LABELS, SERVICE, diagnosis, ended, everywhere, job, services

from harness.core.causes import CauseId
from harness.evidence.kubernetes.objects import COMPLETION_INDEX
from harness.evidence.schema.bundle import Check, RendezvousSnapshot, Retry, Verdict
from harness.evidence.schema.netcheck import NetcheckStep
from harness.judge import judge
from harness.judge.catalogue import CAUSES
from harness.workers.netcheck.finding import CAUSES as SAID
from harness.workers.netcheck.finding import failed


def verdict(job: bundles.Job, tmp_path: Path) -> Verdict:
    return judge(job.write(tmp_path / "bundle"))


def check(verdict: Verdict) -> Check:
    return next(one for one in verdict.checks if one.name == "netcheck")


def test_all_pods_say_that_all_pairs_are_fine(tmp_path: Path) -> None:
    """Contract: the PASS states what was proved. Checks about logged points are not listed, and the verdict
    gives the reason."""
    made = job(everywhere(diagnosis()))
    made.truth, made.points, made.runs, made.attachments = {}, [], [], []
    seen = verdict(made, tmp_path)
    assert seen.verdict == "PASS", seen.explanation
    assert "all 12 pairs of 4 pods" in seen.explanation
    assert "This launch does not log with Pluto" in seen.explanation
    assert not {"run-exists", "no-lost-points", "code", "status"} & {one.name for one in seen.checks}


@pytest.mark.parametrize("indices", [[], [0], [0, 1, 3]])
@pytest.mark.parametrize("mode", ["alone", "before"])
def test_a_pod_without_a_diagnosis_is_no_pass(tmp_path: Path, indices: list[int], mode: str) -> None:
    """Contract: if diagnoses are missing, the verdict is UNKNOWN and names the ranks, even if all pods exited
    with 0."""
    seen = verdict(job({index: diagnosis() for index in indices}, mode), tmp_path)
    assert seen.verdict == "UNKNOWN"
    assert check(seen).ranks == sorted({0, 1, 2, 3} - set(indices))


@pytest.mark.parametrize(
    "change",
    [{"verdict": "unknown"}, {"whole": False}, {"nodes": 3}],
    ids=lambda change: next(iter(change)),
)
def test_diagnosis_of_less_than_all_pairs_is_no_pass(tmp_path: Path, change: dict[str, object]) -> None:
    """Contract: a single pod with an incomplete diagnosis makes the verdict UNKNOWN."""
    diagnoses = {**everywhere(diagnosis()), 2: diagnosis().model_copy(update=change)}
    assert verdict(job(diagnoses), tmp_path).verdict == "UNKNOWN"


def test_a_diagnosis_of_another_pod_proves_nothing(tmp_path: Path) -> None:
    """Contract: only the last pod with a node index counts, and not the pods that it replaced."""
    made = job(everywhere(diagnosis()))
    made.netchecks = [one.model_copy(update={"pod": f"old-{one.pod}"}) for one in made.netchecks]
    assert verdict(made, tmp_path).verdict == "UNKNOWN"


def test_what_a_rank_runs_by_itself_is_not_judged(tmp_path: Path) -> None:
    """Contract: a netcheck that the harness did not start does not change the verdict."""
    made = job(everywhere(diagnosis("tcp.filtered", 2)), mode="before")
    assert made.manifest.launch is not None
    launch = made.manifest.launch.model_copy(update={"netcheck": None})
    made.manifest = made.manifest.model_copy(update={"launch": launch})
    seen = verdict(made, tmp_path)
    assert seen.verdict == "PASS", seen.explanation


@pytest.mark.parametrize("cause", SAID)
@pytest.mark.parametrize("mode", ["alone", "before"])
def test_every_cause_of_netcheck_is_cause_of_harness(tmp_path: Path, cause: CauseId, mode: str) -> None:
    """Contract: the verdict has netcheck's cause, rank and advice. Pods that ended because of the failure are
    not the cause."""
    made = job(everywhere(diagnosis(cause, 2)), mode)
    ended(made, 0, 1, 2, 3, code=90 if mode == "before" else 1)
    if cause == "peer.never_came":
        made.netchecks = [one for one in made.netchecks if one.pod != made.pod_name(2)]
        made.drop_pod(2, after=4.6)
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", cause, [2]), seen.explanation
    assert f"the text of {cause}" in seen.explanation
    assert CAUSES[cause].action == failed(cause, "").advice.rstrip(".")


def test_pod_that_did_not_come_because_nothing_schedules_it(tmp_path: Path) -> None:
    """Contract: netcheck reports the missing rank, but the cause is the reason that the scheduler reports."""
    made = job({index: diagnosis("peer.never_came", 3) for index in range(3)})
    ended(made, 0, 1, 2)
    made.drop_pod(3)
    no_node = cond("PodScheduled", "False", "Unschedulable", "0/3 nodes: insufficient cpu")
    made.pod(3, 5, "Pending", node=False, conditions=[no_node])
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "scheduling.unschedulable", [3])
    assert any(line.startswith("peer.never_came") for line in seen.consequences)


def test_a_pod_scheduled_too_late_is_the_cause(tmp_path: Path) -> None:
    """Contract: the cause is the reason why the pod was not running while the others waited, even if it ran
    later."""
    made = job({index: diagnosis("peer.never_came", 3) for index in range(3)})
    ended(made, 0, 1, 2)
    made.drop_pod(3)
    no_node = cond("PodScheduled", "False", "Unschedulable", "0/3 nodes: insufficient example.com/slot")
    made.pod(3, 4, "Pending", node=False, conditions=[no_node])
    made.pod(3, 20, "Running")
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "scheduling.unschedulable", [3])
    assert "had no node while the others waited: Unschedulable" in seen.explanation


def test_a_pod_that_crashed_before_its_netcheck(tmp_path: Path) -> None:
    """Contract: if a rank is missing because its own container failed, this failure is the cause."""
    made = job({index: diagnosis("peer.never_came", 3) for index in range(3)})
    ended(made, 0, 1, 2, 3)
    made.logs[made.pod_name(3)] = [f"{at(6, True)} netcheck: this image has no Python"]
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "rank.crashed", [3]), seen.explanation
    assert "this image has no Python" in seen.explanation


def test_pods_that_spoke_are_not_missing(tmp_path: Path) -> None:
    """Contract: rank 2 has a diagnosis, so it was present. The cause is the problem that the others
    detected."""
    made = job(everywhere(diagnosis("peer.never_came", 2, c02="dns.no_record")), at_second=12)
    ended(made, 0, 1, 2, 3)
    seen = verdict(made, tmp_path)
    assert (seen.cause, seen.ranks) == ("dns.no_record", [2]), seen.explanation


def test_name_of_rank_that_started_late_is_not_missing(tmp_path: Path) -> None:
    """Contract: 2 s after a pod's start, its name may not exist yet. The rank was late."""
    made = job(everywhere(diagnosis("peer.never_came", 2, c02="dns.no_record")))
    ended(made, 0, 1, 2, 3)
    seen = verdict(made, tmp_path)
    assert (seen.cause, seen.ranks) == ("peer.never_came", [2]), seen.explanation


def test_own_problem_of_an_absent_rank_is_the_cause(tmp_path: Path) -> None:
    """Contract: rank 2 contacted nobody because its pod has no DNS server, as rank 2 itself reports."""
    absent = diagnosis("peer.never_came", 1)
    own = diagnosis("dns.no_server", 2, whole=False)
    silent = diagnosis("tcp.filtered", whole=False)
    made = job({0: absent, 1: silent, 2: own, 3: silent})
    ended(made, 0, 1, 2, 3)
    seen = verdict(made, tmp_path)
    assert (seen.cause, seen.ranks) == ("dns.no_server", [2]), seen.explanation


def test_rank_whose_check_had_ended_is_not_filtered(tmp_path: Path) -> None:
    """Contract: pods do not respond once they have ended. The ranks that started afterwards are the cause."""
    whole = diagnosis("tcp.filtered", 0, 1, c01="tcp.filtered", c21="tcp.filtered")
    del whole.rows[1]
    early = diagnosis(whole=False).model_copy(update={"verdict": "unknown"})
    made = job({**everywhere(whole), 1: early})
    made.netchecks[1] = made.netchecks[1].model_copy(update={"at": at(7, True)})
    ended(made, 0, 2, started=10)
    ended(made, 3)
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "peer.never_came", [0, 2]), seen.explanation
    assert "ranks 0 and 2 started when netcheck had already ended on rank 1" in seen.explanation


def test_rank_that_did_not_listen_before_others_ended_is_late(tmp_path: Path) -> None:
    """Contract: a container can start long before its check. Then, the early rank's own result shows it."""
    whole = diagnosis("tcp.filtered", 0, 1, c01="tcp.filtered", c21="tcp.filtered")
    del whole.rows[1]
    early = diagnosis(whole=False, c10="pending", c12="pending").model_copy(update={"verdict": "unknown"})
    for sender in (0, 2):
        early.rows[1][sender] = early.rows[1][sender].model_copy(update={"withheld": "tcp.refused"})
    made = job({**everywhere(whole), 1: early}, at_second=25)
    made.netchecks[1] = made.netchecks[1].model_copy(update={"at": at(17, True)})
    ended(made, 0, 2, 3)
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "peer.never_came", [0, 2]), seen.explanation


def test_rank_that_rejects_at_the_same_time_is_not_late(tmp_path: Path) -> None:
    """Contract: a firewall can reject one direction and drop the other. Both checks ran for 6 s."""
    whole = diagnosis("tcp.filtered", 0, 1, c01="tcp.filtered").model_copy(update={"seconds": 6.0})
    del whole.rows[1]
    other = diagnosis(whole=False, c10="tcp.refused").model_copy(update={"verdict": "unknown", "rank": 1})
    made = job({**everywhere(whole), 1: other}, at_second=12)
    ended(made, 0, 2, 3)
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause) == ("FAIL", "tcp.filtered"), seen.explanation


def test_rank_that_was_there_is_filtered(tmp_path: Path) -> None:
    """Contract: all checks ran at the same time, so the missing response is the network's."""
    whole = diagnosis("tcp.filtered", 0, 1, c01="tcp.filtered", c21="tcp.filtered")
    del whole.rows[1]
    early = diagnosis(whole=False).model_copy(update={"verdict": "unknown"})
    made = job({**everywhere(whole), 1: early}, at_second=12)
    ended(made, 0, 1, 2, 3)
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause) == ("FAIL", "tcp.filtered"), seen.explanation


@pytest.mark.parametrize(
    ("fault", "cause", "ranks"),
    [
        ("none", "dns.no_record", [2]),
        ("deleted after the wait", "dns.no_record", [2]),
        ("selector", "service.selector", [0, 1, 2, 3]),
        ("one label", "service.selector", [0, 1, 3]),
        ("no service", "service.missing", [0, 1, 2, 3]),
        ("deleted", "cluster.network_changed", [0, 1, 2, 3]),
        ("not ready", "service.not_ready", [0, 1, 2, 3]),
        ("endpoints", "service.endpoints", [2]),
        ("not watched", "dns.no_record", [2]),
    ],
)
def test_why_a_name_does_not_exist(tmp_path: Path, fault: str, cause: str, ranks: list[int]) -> None:
    """Contract: the Service is the cause only if its recorded state shows a problem. Otherwise, the missing
    name is."""
    made = job(everywhere(diagnosis("dns.no_record", 2)), service=False)
    ended(made, 0, 1, 2, 3)
    selector = {"selector": {"app": "x"}, "one label": {COMPLETION_INDEX: "2"}}.get(fault, LABELS)
    if fault not in ("no service", "not watched"):
        services(made, selector, published=fault != "not ready")
    if fault == "deleted after the wait":
        made.see("service", 100, {"metadata": {"name": SERVICE, "uid": "svc"}, "spec": {}}, "DELETED")
    if fault == "deleted":
        made.see("service", 6, {"metadata": {"name": SERVICE, "uid": "svc"}, "spec": {}}, "DELETED")
    if fault == "endpoints":
        made.drop("endpointslice")
        services_without(made, 2)
    if fault == "not watched":
        retry = Retry(at=at(1), what="a watch", reason="objects/service: not watched, HTTP 403 Forbidden")
        made.manifest = made.manifest.model_copy(update={"retries": [retry]})
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", cause, ranks), seen.explanation


def services_without(job: bundles.Job, index: int) -> None:
    """Record the Service's endpoints, with one pod missing."""
    endpoints = [{"targetRef": {"name": job.pod_name(i)}} for i in range(job.nodes) if i != index]
    slice_ = {"name": f"{SERVICE}-x", "uid": "slice", "labels": {"kubernetes.io/service-name": SERVICE}}
    job.see("endpointslice", 2, {"metadata": slice_, "endpoints": endpoints})


@pytest.mark.parametrize(
    ("asked", "resolved", "cause"),
    [
        ({"outcome": "dns.no_record", "text": "no such name"}, [], "dns.no_record"),
        ({"outcome": "dns.server_silent", "text": "no answer"}, [], "dns.server_silent"),
        (None, [], "rendezvous.dns"),
        ({"outcome": "tcp.refused", "text": "Connection refused"}, ["10.0.0.1"], "tcp.refused"),
        ({"outcome": "tcp.filtered", "text": "no answer"}, ["10.0.0.1"], "tcp.filtered"),
        ({"outcome": "ok", "text": "connected"}, ["10.0.0.1"], "rendezvous.unreachable"),
        (None, ["10.0.0.1"], "rendezvous.unreachable"),
    ],
)
def test_the_probe_from_outside_uses_the_same_words(
    tmp_path: Path, asked: dict[str, str] | None, resolved: list[str], cause: str
) -> None:
    """Contract: netcheck's result in the container determines the cause. Without it, the cause is a general
    one."""
    made = bundles.healthy()
    made.drop("jobset", 2)
    for index in range(2):
        made.drop_pod(index, after=10)
    command = ["python3", "torchrun", "--nnodes=2", "--master_addr=job-0.pods", "--master_port=29500", "x.py"]
    snapshot = {
        "at": at(20),
        "processes": [{"pid": 9, "parent": 1, "command": command}],
        "resolved": {"job-0.pods": resolved},
        "asked": {"job-0.pods:29500": asked} if asked else {},
    }
    made.inspections = [
        RendezvousSnapshot.model_validate({**snapshot, "pod": made.pod_name(index)}) for index in range(2)
    ]
    found = verdict(made, tmp_path)
    assert next(one.cause for one in found.checks if one.name == "rendezvous") == cause


def test_broken_watch_does_not_hide_recorded_selector(tmp_path: Path) -> None:
    """Contract: this occurred on a busy cluster, when the API server restarted and all watches had to list
    their objects again."""
    made = job(everywhere(diagnosis("dns.no_record", 0, 1, 2, 3)), service=False)
    services(made, {"app": "nobody"})
    ended(made, 0, 1, 2, 3)
    retry = Retry(at=at(9), what="a watch", reason="objects/service: ProtocolError")
    made.manifest = made.manifest.model_copy(update={"retries": [retry]})
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause) == ("FAIL", "service.selector"), seen.explanation


def test_selector_is_cause_of_names_without_verdict(tmp_path: Path) -> None:
    """Contract: on a busy cluster netcheck does not know whether a record is late. The selector shows it."""
    doubt = NetcheckStep(step="dns", status="unknown", text="rank 1: too early to judge", ranks=[1])
    unknown = diagnosis().model_copy(update={"verdict": "unknown", "findings": [doubt]})
    made = job(everywhere(unknown), service=False)
    services(made, {"app": "nobody"})
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "service.selector", [0, 1, 2, 3])


def test_names_that_netcheck_could_not_judge_are_unknown(tmp_path: Path) -> None:
    doubt = NetcheckStep(step="dns", status="unknown", text="rank 1: too early to judge", ranks=[1])
    unknown = diagnosis().model_copy(update={"verdict": "unknown", "findings": [doubt]})
    seen = verdict(job(everywhere(unknown)), tmp_path)
    assert (seen.verdict, seen.cause) == ("UNKNOWN", "run.evidence_missing"), seen.explanation
