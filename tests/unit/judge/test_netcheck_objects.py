"""Findings of netcheck that are explained by Kubernetes objects, such as the rejecting node and the specs of
the pods."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundles
import pytest
from bundles import cond
from netcheck_bundles import NODES, SERVICE, diagnosis, ended, everywhere, job

from harness.evidence.schema.bundle import Check, RendezvousSnapshot, Verdict
from harness.evidence.schema.netcheck import NetcheckDiagnosis, NetcheckStep
from harness.judge import judge

REJECTED = "tcp.rejected"
HOSTS = {0: "10.9.0.1", 1: "10.9.0.2", 2: "10.9.0.1", 3: "10.9.0.2"}
"""Maps each pod's node index to the address of its node. There are two nodes with two pods each."""


def verdict(job: bundles.Job, tmp_path: Path) -> Verdict:
    return judge(job.write(tmp_path / "bundle"))


def check(verdict: Verdict) -> Check:
    return next(one for one in verdict.checks if one.name == "netcheck")


def change(job: bundles.Job, to: Callable[[int, dict[str, Any]], None]) -> None:
    """Change the objects of all pods."""
    for kind, seen in job.objects:
        if kind == "pod":
            to(int(seen.object["metadata"]["name"][-1]), seen.object)


def on_two_nodes(job: bundles.Job) -> None:
    def place(index: int, pod: dict[str, Any]) -> None:
        pod["spec"]["nodeName"] = f"e2e-worker{index % 2 + 1}"
        pod["status"] |= {"hostIP": HOSTS[index], "podIP": f"10.244.{index % 2}.{index + 2}"}

    change(job, place)


def rejecting(senders: dict[int, str], *pairs: str) -> NetcheckDiagnosis:
    """Return a diagnosis in which the connections of these pairs are rejected. `senders` maps each probing
    rank to the address that sent the rejection."""
    one = diagnosis(REJECTED, 0, 1, 2, 3, **dict.fromkeys(pairs, REJECTED))
    rows = {
        s: {
            r: cell.model_copy(update={"sender": senders[s]}) if cell.outcome == REJECTED else cell
            for r, cell in row.items()
        }
        for s, row in one.rows.items()
    }
    return one.model_copy(update={"rows": rows})


def test_the_node_that_rejects_is_named_with_its_ranks(tmp_path: Path) -> None:
    """Contract: ranks 0 and 2 are healthy, although their connections fail too."""
    pairs = [f"c{s}{r}" for s in range(NODES) for r in range(NODES) if s != r and (s % 2 or r % 2)]
    senders = {0: "10.9.0.2", 2: "10.9.0.2", 1: "10.244.1.1", 3: "10.244.1.1"}
    made = job(everywhere(rejecting(senders, *pairs)))
    ended(made, 0, 1, 2, 3)
    on_two_nodes(made)
    node = {"metadata": {"name": "e2e-worker2", "uid": "n2"}, "spec": {"podCIDR": "10.244.1.0/24"}}
    made.see("node", 2, {**node, "status": {"addresses": [{"address": "10.9.0.2"}]}})
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", REJECTED, [1, 3]), seen.explanation
    assert (
        "node e2e-worker2 has the address that rejects the connections (10.244.1.1, 10.9.0.2)"
        in seen.explanation
    )


def test_healthy_pod_on_node_that_rejects_is_not_accused(tmp_path: Path) -> None:
    """Contract: rank 3 is on the node of rank 1, and only connections to rank 1 are rejected."""
    senders = {0: "10.9.0.2", 2: "10.9.0.2", 3: "10.9.0.2"}
    made = job(everywhere(rejecting(senders, "c01", "c21", "c31")))
    ended(made, 0, 1, 2, 3)
    on_two_nodes(made)
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", REJECTED, [1]), seen.explanation
    assert "node e2e-worker2 has the address" in seen.explanation


def test_rejected_connection_without_icmp_message_is_rejected_too(tmp_path: Path) -> None:
    """Contract: the kernel limits the rate of ICMP messages, so on a real cluster some pairs received no
    message."""
    one = rejecting({0: "10.9.0.2", 2: "10.9.0.2", 3: "10.9.0.2"}, "c01", "c21", "c31")
    rows = {**one.rows, 0: {**one.rows[0], 1: one.rows[0][1].model_copy(update={"outcome": "tcp.filtered"})}}
    rows[0][1] = rows[0][1].model_copy(update={"sender": ""})
    made = job(everywhere(diagnosis("tcp.filtered", 0, 1).model_copy(update={"rows": rows})))
    ended(made, 0, 1, 2, 3)
    on_two_nodes(made)
    seen = verdict(made, tmp_path)
    assert (seen.cause, seen.ranks) == (REJECTED, [1]), seen.explanation


def test_machine_outside_cluster_that_rejects_is_no_node(tmp_path: Path) -> None:
    """Contract: the verdict names the ranks in the pods' diagnoses, and no node."""
    made = job(everywhere(rejecting(dict.fromkeys(range(4), "192.0.2.7"), "c01", "c21", "c31")))
    made.netchecks = [
        one.model_copy(update={"diagnosis": one.diagnosis.model_copy(update={"ranks": [1]})})
        for one in made.netchecks
    ]
    ended(made, 0, 1, 2, 3)
    seen = verdict(made, tmp_path)
    assert (seen.cause, seen.ranks) == (REJECTED, [1])


@pytest.mark.parametrize("cause", ["tcp.filtered", REJECTED])
def test_rows_that_rank_0_did_not_get_count(tmp_path: Path, cause: str) -> None:
    """Contract: rank 0 knows only its own row, which is not enough to accuse a node. All rows together
    are."""
    diagnoses = {}
    for index in range(NODES):
        bad = {
            f"c{s}{r}": cause
            for s in range(NODES)
            for r in range(NODES)
            if s != r and (s % 2 == 0 or r % 2 == 0)
        }
        one = diagnosis(cause, whole=index == 0, **bad)
        diagnoses[index] = one.model_copy(
            update={"rows": {index: one.rows[index]}, "rank": index, "seconds": 2.0}
        )
    made = job(diagnoses)
    ended(made, 0, 1, 2, 3)
    on_two_nodes(made)
    seen = verdict(made, tmp_path)
    assert (seen.cause, seen.ranks) == (cause, [0, 2]), seen.explanation
    assert "All failing pairs share the node e2e-worker1" in seen.explanation


@pytest.mark.parametrize("own", ["tcp.denied", "tcp.no_route"])
def test_error_of_accused_pod_itself_is_cause(tmp_path: Path, own: str) -> None:
    """Contract: a route in the pod blocks its packets, so the other pods receive no response. This occurred
    on a real cluster."""
    to_3 = {f"c{s}3": "tcp.filtered" for s in range(3)}
    diagnoses = everywhere(diagnosis("tcp.filtered", 3, **to_3))
    alone = diagnosis(own, 3, whole=False, **{f"c3{r}": own for r in range(3)})
    diagnoses[3] = alone.model_copy(update={"rows": {3: alone.rows[3]}, "rank": 3})
    for index in range(3):
        diagnoses[index] = diagnoses[index].model_copy(
            update={"rows": {s: diagnoses[index].rows[s] for s in range(3)}}
        )
    made = job(diagnoses)
    ended(made, 0, 1, 2, 3)
    seen = verdict(made, tmp_path)
    assert (seen.cause, seen.ranks) == (own, [3]), seen.explanation
    assert "Packets fail in the sender's own pod" in seen.explanation


def test_error_of_healthy_pod_is_not_cause(tmp_path: Path) -> None:
    """Contract: if a pod reaches one of the others, its own network does not explain the failures."""
    to_3 = {f"c{s}3": "tcp.filtered" for s in range(3)}
    made = job(everywhere(diagnosis("tcp.filtered", 3, whole=False, **to_3, c30="tcp.no_route")))
    ended(made, 0, 1, 2, 3)
    assert verdict(made, tmp_path).cause == "tcp.filtered"


HOST = "hostNetwork: true but not dnsPolicy: ClusterFirstWithHostNet"
CUSTOM = {"nameservers": ["192.0.2.53"], "searches": ["corp.example"]}


@pytest.mark.parametrize(
    ("spec", "cause", "text"),
    [
        ({"hostNetwork": True, "dnsPolicy": "ClusterFirst"}, "dns.policy", HOST),
        ({"hostNetwork": True}, "dns.policy", HOST),
        ({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}, "dns.no_record", ""),
        ({"dnsPolicy": "Default"}, "dns.policy", "dnsPolicy: Default"),
        (
            {"dnsPolicy": "None", "dnsConfig": CUSTOM},
            "dns.policy",
            "nameservers 192.0.2.53 and searches corp",
        ),
        ({"dnsPolicy": "ClusterFirst"}, "dns.no_record", ""),
    ],
)
def test_dns_settings_of_the_pods_are_the_cause(
    tmp_path: Path, spec: dict[str, Any], cause: str, text: str
) -> None:
    nowhere = {f"c{s}{r}": "dns.no_record" for s in range(NODES) for r in range(NODES) if s != r}
    made = job(everywhere(diagnosis("dns.no_record", 0, 1, 2, 3, **nowhere)))
    change(made, lambda _, pod: pod["spec"].update(spec))
    ended(made, 0, 1, 2, 3)
    change(made, lambda _, pod: pod["spec"].update(spec))
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", cause, [0, 1, 2, 3]), seen.explanation
    assert text in seen.explanation


def test_a_search_path_that_netcheck_found_stays_the_cause(tmp_path: Path) -> None:
    """Contract: the verdict also names the setting that explains the search path."""
    nowhere = {f"c{s}{r}": "dns.search_path" for s in range(NODES) for r in range(NODES) if s != r}
    made = job(everywhere(diagnosis("dns.search_path", 0, 1, 2, 3, **nowhere)))
    ended(made, 0, 1, 2, 3)
    change(made, lambda _, pod: pod["spec"].update({"dnsPolicy": "None", "dnsConfig": CUSTOM}))
    seen = verdict(made, tmp_path)
    assert (seen.cause, seen.ranks) == ("dns.search_path", [0, 1, 2, 3])
    assert "searches corp.example" in seen.explanation


def test_late_rank_with_the_same_search_path_is_named(tmp_path: Path) -> None:
    """Contract: the other ranks had ended before rank 3's check, so it could compare only its own name."""
    said = {}
    for index in range(NODES):
        one = diagnosis("dns.search_path", index, whole=False, c31="dns.no_record", c32="dns.search_path")
        said[index] = one.model_copy(update={"rows": {index: one.rows[index]}, "rank": index})
    step = NetcheckStep(step="pods", status="failed", text="no contact", cause="peer.never_came", ranks=[0])
    said[3] = said[3].model_copy(update={"cause": "peer.never_came", "ranks": [0], "findings": [step]})
    made = job(said)
    ended(made, 0, 1, 2, 3)
    change(made, lambda _, pod: pod["spec"].update({"dnsPolicy": "None", "dnsConfig": CUSTOM}))
    seen = verdict(made, tmp_path)
    assert (seen.cause, seen.ranks) == ("dns.search_path", [0, 1, 2, 3]), seen.explanation


def test_dns_settings_are_not_cause_if_all_pods_fail(tmp_path: Path) -> None:
    made = job(everywhere(diagnosis("dns.no_record", 2, c02="dns.no_record", c12="dns.no_record")))
    ended(made, 0, 1, 2, 3)
    change(made, lambda index, pod: pod["spec"].update({"dnsPolicy": "Default"} if index == 1 else {}))
    seen = verdict(made, tmp_path)
    assert (seen.cause, seen.ranks) == ("dns.no_record", [2]), seen.explanation


def test_rendezvous_of_host_network_pods_names_dns_policy(tmp_path: Path) -> None:
    """Contract: without netcheck, the snapshot of a waiting torchrun and the spec give the cause."""
    made = bundles.healthy()
    made.drop("jobset", 2)
    for index in range(2):
        made.drop_pod(index, after=10)
    change(made, lambda _, pod: pod["spec"].update({"hostNetwork": True}))
    command = ["python3", "torchrun", "--nnodes=2", "--master_addr=job-0.pods", "--master_port=29500", "x.py"]
    snapshot = {
        "at": bundles.at(20),
        "processes": [{"pid": 9, "parent": 1, "command": command}],
        "resolved": {"job-0.pods": []},
        "asked": {"job-0.pods:29500": {"outcome": "dns.no_record", "text": "no such name"}},
    }
    made.inspections = [
        RendezvousSnapshot.model_validate({**snapshot, "pod": made.pod_name(index)}) for index in range(2)
    ]
    found = next(one for one in verdict(made, tmp_path).checks if one.name == "rendezvous")
    assert found.cause == "dns.policy"
    assert HOST in found.explanation


def test_service_with_cluster_ip_causes_missing_names(tmp_path: Path) -> None:
    made = job(everywhere(diagnosis("dns.no_record", 0, 1, 2, 3)))
    ended(made, 0, 1, 2, 3)
    for kind, seen_ in made.objects:
        if kind == "service":
            seen_.object["spec"]["clusterIP"] = "10.96.7.7"
    seen = verdict(made, tmp_path)
    assert (seen.cause, seen.ranks) == ("service.not_headless", [0, 1, 2, 3]), seen.explanation
    assert f"Service {SERVICE} has the clusterIP 10.96.7.7" in seen.explanation


def test_service_with_cluster_ip_and_unready_pods(tmp_path: Path) -> None:
    """Contract: CoreDNS also serves names of single pods for a Service with a cluster IP. This occurred on a
    real cluster."""
    made = job(everywhere(diagnosis("dns.no_record", 0, 1, 2, 3)))
    ended(made, 0, 1, 2, 3)
    for kind, seen_ in made.objects:
        if kind == "service":
            seen_.object["spec"] |= {"clusterIP": "10.96.7.7", "publishNotReadyAddresses": False}
    assert verdict(made, tmp_path).cause == "service.not_ready"


def test_service_without_selector_and_endpoints_is_cause(tmp_path: Path) -> None:
    made = job(everywhere(diagnosis("dns.no_record", 0, 1, 2, 3)))
    ended(made, 0, 1, 2, 3)
    for kind, seen_ in made.objects:
        if kind == "service":
            del seen_.object["spec"]["selector"]
        if kind == "endpointslice":
            seen_.object["endpoints"] = []
    seen = verdict(made, tmp_path)
    assert (seen.cause, seen.ranks) == ("service.selector", [0, 1, 2, 3]), seen.explanation
    assert "has no selector" in seen.explanation


@pytest.mark.parametrize("host", [True, False], ids=["hostNetwork", "hostPort"])
def test_two_pods_on_one_host_port_are_named(tmp_path: Path, host: bool) -> None:
    """Contract: the verdict names the port and the pod that uses it."""
    made = job({0: diagnosis("peer.never_came", 3)})
    ended(made, 0, 1, 2)
    made.drop_pod(3)
    full = "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
    made.pod(3, 5, "Pending", node=False, conditions=[cond("PodScheduled", "False", "Unschedulable", full)])
    port = {"containerPort": 29500} if host else {"containerPort": 29500, "hostPort": 29500}

    def share(_: int, pod: dict[str, Any]) -> None:
        pod["spec"] |= {"hostNetwork": host, "containers": [{"name": "worker", "ports": [port]}]}

    change(made, share)
    seen = verdict(made, tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "scheduling.unschedulable", [3])
    assert "4 pods of the job need host port 29500" in seen.explanation
    assert f"{made.pod_name(0)} on e2e-worker1" in seen.explanation


def test_pod_with_late_host_port_names_port(tmp_path: Path) -> None:
    """Contract: the pod can run only after the others, which used the port, have ended. This occurred on a
    real cluster."""
    made = job({0: diagnosis("peer.never_came", 3)})
    ended(made, 0, 1, 2)
    made.drop_pod(3)
    full = "0/2 nodes are available: 2 node(s) didn't have free ports for the requested pod ports."
    made.pod(3, 5, "Pending", node=False, conditions=[cond("PodScheduled", "False", "Unschedulable", full)])
    made.pod(3, 20, "Running", {"running": {"startedAt": bundles.at(20)}})

    def share(_: int, pod: dict[str, Any]) -> None:
        pod["spec"] |= {"containers": [{"name": "worker", "ports": [{"hostPort": 29500}]}]}

    change(made, share)
    seen = verdict(made, tmp_path)
    assert (seen.cause, seen.ranks) == ("scheduling.unschedulable", [3]), seen.explanation
    assert "4 pods of the job need host port 29500" in seen.explanation
    assert f"{made.pod_name(0)} on e2e-worker1" in seen.explanation
    assert f"{made.pod_name(3)} on" not in seen.explanation
