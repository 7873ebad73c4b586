"""A rendezvous that does not complete: which rank did not join, and whether the process, DNS, TCP, id or
world size is wrong."""

import bundles
import pytest
from bundles import at

from harness.evidence.schema.bundle import ProbeResult, Process, RendezvousSnapshot
from harness.evidence.schema.ground_truth import TruthRow
from harness.judge import judge
from harness.workers.ground_truth import truth_frames

HOST = "js-workers-0-0.js"


def torchrun(rank, **options):
    given = {"rdzv_id": "123", "nnodes": "2", "master_addr": HOST, "master_port": "1234", **options}
    words = [f"--{name}={value}" for name, value in given.items()] + [f"--node_rank={rank}"]
    return ["/usr/bin/python3", "/usr/bin/torchrun", *words, "/workspace/multinode.py"]


def inspection(job, index, command=None, connected=True, addresses=("10.0.0.1",), port="1234", host=HOST):
    command = command or torchrun(index)
    processes = [
        Process(pid=1, parent=0, command=["bash", "-c", "…"]),
        Process(pid=9, parent=1, command=command),
    ]
    return RendezvousSnapshot(
        at=at(30, True),
        pod=job.pod_name(index),
        processes=processes,
        connected=[f"10.0.0.1:{port}"] if connected else [],
        resolved={host: list(addresses)},
    )


@pytest.fixture
def judged(tmp_path):
    """Judge a job whose rendezvous did not complete, with these snapshots of its containers."""

    def judged_(job, *seen):
        job.drop("jobset", 2)
        job.drop("workload", 2)
        for index in range(job.nodes):
            job.drop_pod(index, after=10)
        job.truth, job.runs, job.attachments, job.points = {}, [], [], []
        job.inspections = seen
        return judge(job.write(tmp_path / "bundle"))

    return judged_


def test_a_process_that_never_came(judged):
    """Contract: the verdict names the pod without torchrun and the program that is running in it."""
    job = bundles.healthy()
    verdict = judged(job, inspection(job, 0), inspection(job, 1, ["sleep", "600"]))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rendezvous.agent_missing", [1])
    assert "only sleep 600" in verdict.explanation
    assert verdict.evidence == ["inspections.jsonl:1", "inspections.jsonl:2"]


def test_names_do_not_resolve(judged):
    """Contract: a DNS failure takes precedence over a TCP failure."""
    job = bundles.healthy()
    seen = inspection(job, 1, torchrun(1, master_addr="nope"), connected=False, addresses=(), host="nope")
    verdict = judged(job, inspection(job, 0), seen)
    assert (verdict.cause, verdict.ranks) == ("rendezvous.dns", [1])
    assert "could not resolve MASTER_ADDR nope" in verdict.explanation


def absent(seen):
    """Return the snapshot of a container in which netcheck reports that the rendezvous host does not
    exist."""
    asked = {f"{HOST}:1234": ProbeResult(outcome="dns.no_record", text=f"no such name: tried {HOST}.")}
    return seen.model_copy(update={"resolved": {HOST: []}, "connected": [], "asked": asked})


@pytest.mark.parametrize("index", [0, 1])
def test_dns_that_differs_on_one_node_is_the_cause(judged, index):
    """Contract: if a pod on another node resolves the name, the Service is not the cause."""
    job = bundles.healthy()
    seen = [absent(inspection(job, at)) if at == index else inspection(job, at) for at in range(2)]
    verdict = judged(job, *seen)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "dns.differs_by_node", [index])
    assert f"the DNS server used on e2e-worker{index + 1} is different or outdated" in verdict.explanation


def test_a_name_that_no_pod_knows_is_missing(judged):
    job = bundles.healthy()
    assert judged(job, *(absent(inspection(job, at)) for at in range(2))).cause == "dns.no_record"


def test_a_wrong_master_port_makes_the_rendezvous_unreachable(judged):
    """Contract: a missing connection to the expected port is a TCP failure, and the verdict names the port
    that the other nodes use."""
    job = bundles.healthy()
    verdict = judged(
        job, inspection(job, 0), inspection(job, 1, torchrun(1, master_port="1235"), connected=False)
    )
    assert (verdict.cause, verdict.ranks) == ("rendezvous.unreachable", [1])
    assert f"{HOST}:1235" in verdict.explanation
    assert f"rank 0 used {HOST}:1234" in verdict.explanation


@pytest.mark.parametrize(
    "options",
    [{"rdzv_id": "124"}, {"rdzv_id": "124", "rdzv_backend": "c10d", "rdzv_endpoint": f"{HOST}:1234"}],
)
def test_another_rendezvous_id(judged, options):
    """Contract: a node that is connected under another rendezvous id is named."""
    job = bundles.healthy()
    verdict = judged(job, inspection(job, 0), inspection(job, 1, torchrun(1, **options)))
    assert (verdict.cause, verdict.ranks) == ("rendezvous.id_mismatch", [1])


def test_endpoint_without_port_has_port_of_torchrun(judged):
    """pytorch/pytorch#79388: --rdzv_endpoint=$MASTER_ADDR. c10d then uses port 29400."""
    job = bundles.healthy()
    words = ["torchrun", "--rdzv_backend=c10d", f"--rdzv_endpoint={HOST}", "--nnodes=2", "train.py"]
    apart = inspection(job, 1, words, connected=False)
    verdict = judged(job, inspection(job, 0, words, port="29400"), apart)
    assert (verdict.cause, verdict.ranks) == ("rendezvous.unreachable", [1])
    assert f"{HOST}:29400" in verdict.explanation


def test_a_missing_space_between_options_is_named(judged):
    """pytorch/pytorch#76367: --rdzv_id=ID1--rdzv_backend=c10d is one id, and the backend is the default."""
    job = bundles.healthy()
    wrong = {"rdzv_id": "ID1--rdzv_backend=c10d"}
    verdict = judged(job, *(inspection(job, rank, torchrun(rank, **wrong)) for rank in (0, 1)))
    assert (verdict.cause, verdict.ranks) == ("variables.torchrun", [0, 1])
    assert "a space is missing before --rdzv_backend" in verdict.explanation


SERVICE = "master.team.svc"
PODS = (("10.0.0.1", "fd00::1"), ("10.0.0.2", "fd00::2"))


def with_addresses(job, pods=PODS):
    """Set each pod's addresses. The first one belongs to the cluster's primary address family."""
    for _, seen in [each for each in job.objects if each[0] == "pod"]:
        addresses = pods[int(seen.object["metadata"]["name"].split("-")[-2])]
        seen.object["status"] |= {"podIP": addresses[0], "podIPs": [{"ip": each} for each in addresses]}
    return job


def behind_a_service(job, rank, conf="timeout=60", outcome="tcp.refused"):
    """Return a snapshot of a torchrun whose c10d store is at the cluster IP of a Service."""
    endpoint = f"{SERVICE}:29400"
    options = {"rdzv_backend": "c10d", "rdzv_endpoint": endpoint, "rdzv_conf": conf}
    seen = inspection(job, rank, torchrun(rank, **options), False, ("10.96.0.7",), "29400", SERVICE)
    asked = {endpoint: ProbeResult(outcome=outcome, text="Connection refused")}
    return seen.model_copy(update={"asked": asked})


@pytest.mark.parametrize(
    ("changed", "cause", "ranks"),
    [
        pytest.param({}, "variables.torchrun", [0, 1], id="pytorch #80772"),
        pytest.param({"conf": "is_host=1"}, "tcp.refused", [0, 1], id="a host is named"),
        pytest.param({"outcome": "tcp.filtered"}, "tcp.filtered", [0, 1], id="filtered"),
    ],
)
def test_a_store_that_no_torchrun_opened_is_named(judged, changed, cause, ranks):
    """Contract: the address of a Service does not belong to any pod, so each torchrun waits for another one
    to open the store."""
    job = bundles.healthy()
    verdict = judged(job, *(behind_a_service(job, rank, **changed) for rank in range(2)))
    assert (verdict.cause, verdict.ranks) == (cause, ranks), verdict.explanation
    assert ("--rdzv_conf=is_host=1" in verdict.explanation) == (cause == "variables.torchrun")


def test_torchrun_without_store_yet_has_its_pod(judged):
    """Contract: nothing listens at the address of a pod whose torchrun is starting or hangs."""
    job = with_addresses(bundles.healthy(), (("10.96.0.7",), ("10.0.0.2",)))
    verdict = judged(job, *(behind_a_service(job, rank) for rank in range(2)))
    assert (verdict.cause, verdict.ranks) == ("tcp.refused", [0, 1]), verdict.explanation
    assert "no pod has" not in verdict.explanation


@pytest.mark.parametrize(
    ("hosts", "addresses", "cause", "text"),
    [
        pytest.param(
            ("slinky-0", "slinky-1"),
            (("10.0.0.1",), ("10.0.0.2",)),
            "variables.torchrun",
            "which are different stores",
            id="awslabs/ai-on-eks#240",
        ),
        pytest.param(
            ("localhost", "localhost"),
            (("127.0.0.1", "::1"), ("127.0.0.1", "::1")),
            "variables.master_addr",
            "which in each pod is the pod itself",
            id="mlc-ai/pith-train#91",
        ),
        pytest.param(
            ("js-0", "js-0.js"), (("10.0.0.1",), ("10.0.0.1",)), "rendezvous.timeout", "", id="one store"
        ),
    ],
)
def test_torchruns_waiting_in_separate_stores_are_named(judged, hosts, addresses, cause, text):
    job = with_addresses(bundles.healthy())
    verdict = judged(job, *at_hosts(job, hosts, addresses))
    assert (verdict.cause, verdict.ranks) == (cause, [0, 1]), verdict.explanation
    assert text in verdict.explanation


def at_hosts(job, hosts, addresses, **more):
    """Return snapshots of connected torchruns with these endpoints. `more` are options of rank 1."""
    seen = []
    for rank, (host, own) in enumerate(zip(hosts, addresses, strict=True)):
        options = {"rdzv_backend": "c10d", "rdzv_endpoint": f"{host}:29400", **(more if rank else {})}
        seen.append(inspection(job, rank, torchrun(rank, **options), True, own, "29400", host))
    return seen


@pytest.mark.parametrize(
    ("hosts", "addresses"),
    [
        pytest.param(("js-0.js", "js-0.js"), (("127.0.1.1",), ("10.0.0.1",)), id="loopback in /etc/hosts"),
        pytest.param(("localhost", "js-0.js"), (("127.0.0.1", "::1"), ("10.0.0.1",)), id="localhost"),
        pytest.param(
            ("js-0", "js-0"), (("10.0.0.1",), ("10.96.0.7",)), id="a Service with rank 0's host name"
        ),
        pytest.param(("js-0.js", "js-0.js"), (("10.0.0.1",), ("fd00::1",)), id="dual-stack"),
        pytest.param(("js-0.js", "js-0.js"), (("10.0.0.1",), ()), id="a name that no longer resolves"),
    ],
)
def test_store_with_two_addresses_shows_other_rendezvous_id(judged, hosts, addresses):
    job = with_addresses(bundles.healthy())
    verdict = judged(job, *at_hosts(job, hosts, addresses, rdzv_id="124"))
    assert (verdict.cause, verdict.ranks) == ("rendezvous.id_mismatch", [1]), verdict.explanation


def test_another_number_of_nodes(judged):
    """Contract: torchrun's number of nodes is compared with that of the job."""
    job = bundles.healthy()
    verdict = judged(job, inspection(job, 0, torchrun(0, nnodes="1:3")), inspection(job, 1))
    assert (verdict.cause, verdict.ranks) == ("rendezvous.world_size", [0])


def test_ranks_that_met(judged):
    """Contract: a torchrun with a child process has completed the rendezvous, so later failures are not
    rendezvous failures."""
    job = bundles.healthy()
    seen = [inspection(job, index) for index in range(2)]
    worker = Process(pid=20, parent=9, command=["python3", "-u", "/workspace/multinode.py"])
    seen = [one.model_copy(update={"processes": [*one.processes, worker]}) for one in seen]
    assert not str(judged(job, *seen).cause).startswith("rendezvous.")


def test_more_ranks_than_the_job_has(tmp_path):
    """Contract: if a job of two ranks has a third one, the verdict names the ranks of its pod, even if all
    ranks completed."""
    job = bundles.healthy()
    job.truth[2] = [TruthRow(metric="m", step=0, value=1.0, time_ms=1)]
    frames = [
        truth_frames.encode(bundles.NONCE, {"k": "rows", "r": rank, "q": 0, "n": 0, "rows": []})
        for rank in (1, 2)
    ]
    job.logs[job.pod_name(1)] += [f"{at(9, True)} {frame}" for frame in frames]
    verdict = judge(job.write(tmp_path / "bundle"))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rendezvous.world_size", [1, 2])
