"""netcheck names the reason why ranks cannot connect, and the right rank, with four processes in four network
namespaces. The faults are real: iptables rules on the node, links, mounts, and a DNS server's records and
cache. Three cases run at a time, each in its own World, because they mostly wait.
"""

from __future__ import annotations

import json
import queue
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from namespaces import DOMAIN, World, world

Result = dict[str, Any]
PORT = 29501
WORLDS = 3
PACKAGES = Path(__file__).resolve().parents[2] / "harness/workers"
WAIT = {"deadline": 8}
"""For cases in which netcheck waits for a rank, a record or a response until its deadline."""
SLOW = {"deadline": 180}
"""For cases in which netcheck waits longer on a busy machine before it names the cause."""


def play(
    pods: World, deadline: float = 20.0, without: tuple[int, ...] = (), size: int = 4, **of: dict[str, Any]
) -> dict[int, Result]:
    """Run all ranks at the same time, and return each rank's result. `r2={…}` contains options for rank 2,
    and `all={…}` options for all ranks."""
    started = {}
    for rank in range(size):
        if rank not in without:
            own = {**of.get("all", {}), **of.get(f"r{rank}", {})}
            job = {"NNODES": str(size), "WORLD_SIZE": str(size), **of.get("all", {}).get("variables", {})}
            job = {**job, **own.pop("variables", {})}
            started[rank] = pods.start(rank, "--deadline", str(deadline), **own, variables=job)
    together(started.values())
    return {rank: finished(process) for rank, process in started.items()}


FOUR = {"NNODES": "4", "WORLD_SIZE": "4"}
SERVICE = "master.team.svc.cluster.local"
"""The DNS name of a separate Service for rank 0, as in ColossalAI's guide."""


def together(started: Iterable[subprocess.Popen[str]]) -> None:
    """Start netcheck in all processes once they are ready."""
    for process in started:
        assert process.stdout
        assert process.stdout.readline() == "ready\n", process.communicate()
    for process in started:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()


def finished(process: subprocess.Popen[str]) -> Result:
    out, err = process.communicate(timeout=300)
    assert process.returncode in (0, 1), err
    result: Result = json.loads(out)
    assert process.returncode == {"ok": 0, "failed": 1, "unknown": 0}[result["verdict"]]
    assert ("WARNING" in err) == (result["verdict"] == "unknown")
    return result


def finding_of(result: Result, cause: str) -> Result:
    """Return the finding with this cause."""
    return next(finding for finding in result["findings"] if finding["cause"] == cause)


# -- faults


def rules(*texts: str) -> Callable[[World], None]:
    """Return a function that adds iptables rules on the node."""

    def change(pods: World) -> None:
        for text in texts:
            pods.iptables(pods.gateway, f"-A {text}")

    return change


def forwarded(*texts: str, to: str = "DROP") -> Callable[[World], None]:
    """Return a function that adds rules on the node for forwarded packets."""
    return rules(*(f"FORWARD {text} -j {to}" for text in texts))


def rejected(*texts: str, how: str = "icmp-host-prohibited") -> Callable[[World], None]:
    """Return a function that adds REJECT rules on the node, which send a message to the sender, like those of
    firewalld."""
    return forwarded(*texts, to=f"REJECT --reject-with {how}")


def denied(pods: World) -> None:
    """Add a firewall in the pod of rank 2 that rejects the rank's own packets."""
    pods.iptables(
        pods.pod(2), f"-A OUTPUT {TO_PORT} -d 10.77.0.0/16 -j REJECT --reject-with icmp-host-prohibited"
    )


def record(rank: int, *addresses: str) -> Callable[[World], None]:
    """Return a function that changes the addresses of a rank's name. Without addresses, it removes the
    record."""

    def change(pods: World) -> None:
        name = f"job-{rank}.{DOMAIN}."
        records = {**pods.zone.records, name: [*addresses]}
        if not addresses:
            del records[name]
        pods.serve(replace(pods.zone, records=records))

    return change


def alias(*ranks: int) -> Callable[[World], None]:
    """Return a function that makes the name of rank 0's Service resolve to these ranks."""

    def change(pods: World) -> None:
        records = {**pods.zone.records, f"{SERVICE}.": [pods.address(rank) for rank in ranks]}
        pods.serve(replace(pods.zone, records=records))

    return change


def too_early(cache: str) -> Callable[[World], None]:
    """Return a function that queries the name of rank 2 before its record exists, and then adds the
    record."""

    def change(pods: World) -> None:
        everything = replace(pods.zone, cache=cache)
        pods.serve(everything)
        record(2)(pods)
        pods.start(0, f"import socket; socket.getaddrinfo('job-2.{DOMAIN}', 1)", module=("-c",)).wait(60)
        pods.serve(everything)

    return change


def narrow_and_mute(pods: World) -> None:
    """Limit the link of rank 3 to 1300 bytes, although its interface has an MTU of 1500, and suppress the
    node's ICMP messages."""
    pods.mtu(3, 1300)
    pods.iptables(pods.gateway, "-A OUTPUT -p icmp -j DROP")


def unroutable(pods: World) -> None:
    """Remove the node's route from rank 1 to rank 2, for both connections and responses."""
    pods.rule("from 10.77.1.2 to 10.77.2.2 unreachable")


def other_ip_version(pods: World) -> None:
    """Remove the IPv6 address of rank 1, and let the record of rank 2 contain only an IPv6 address."""
    record(2, "fd77:2::2")(pods)
    pods.version_4_alone(1)


def nothing(_: World) -> None:
    """Change nothing."""


def variables(rank: int, **given: str) -> dict[str, Any]:
    return {f"r{rank}": {"variables": given}}


# -- tests that share one World and run one after the other


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Yield four ranks, and a fifth pod for processes that do not belong to the job."""
    with world(tmp_path_factory.mktemp("world"), size=5) as made:
        yield made


@pytest.fixture
def pods(five: World) -> Iterator[World]:
    """Return the World, after all rules have been removed."""
    yield five
    five.reset()


def test_every_healthy_rank_knows_that_all_pairs_pass(pods: World) -> None:
    """bench/netcheck.py measures how long this takes."""
    results = play(pods)
    for rank, result in results.items():
        assert result["verdict"] == "ok", (rank, result)
        assert (result["missing"], result["whole"], [*result["rows"]]) == ([], True, ["0", "1", "2", "3"])


def test_healthy_with_a_service_for_rank_0(pods: World) -> None:
    """Contract: MASTER_ADDR may differ from the pod's name, but must resolve to rank 0."""
    alias(0)(pods)
    results = play(pods, all=NAMED)
    assert [result["verdict"] for result in results.values()] == ["ok"] * 4


def test_as_a_command(pods: World) -> None:
    """`python -m netcheck` prints the matrix and each step in readable form, and has an exit code."""
    started = [pods.start(rank, variables=FOUR, module=("-m", "netcheck")) for rank in range(4)]
    shown = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 4
    assert shown[0].startswith("netcheck: OK")
    assert "        1       ok       -      ok      ok\n" in shown[0]


def test_waiting_fills_no_negative_cache(pods: World) -> None:
    """Contract: a record that is created late is found immediately, even by later queries with
    getaddrinfo."""
    everything = replace(pods.zone, cache="type")
    pods.serve(everything)
    record(2)(pods)
    started = [pods.start(rank, "--deadline", "20", variables=FOUR) for rank in range(4)]
    together(started)
    time.sleep(1.5)
    pods.serve(everything)
    assert finished(started[0])["verdict"] == "ok"
    plainly = f"import socket; print(socket.getaddrinfo('job-2.{DOMAIN}', 1)[0][4][0])"
    assert pods.start(3, plainly, module=("-c",)).communicate()[0].strip() == pods.address(2)
    for process in started[1:]:
        finished(process)


def test_another_jobs_master(pods: World) -> None:
    """The name of rank 0 resolves to a pod that runs rank 0 of another job."""
    job = {**FOUR, "NODE_RANK": "0", "RDZV_ID": "run-other"}
    other = pods.start(4, "--deadline", "60", variables=job)
    together([other])
    record(0, pods.address(4))(pods)
    results = play(pods)
    other.kill()
    other.communicate()
    for result in results.values():
        assert (result["cause"], result["ranks"]) == ("peer.other_job", [0])
    assert "run-other" in finding_of(results[0], "peer.other_job")["text"]


def test_a_wrong_search_path_is_not_waited_for(pods: World) -> None:
    """Contract: no rank finds another one, and each reports the reason before its deadline."""
    elsewhere = {**SHORT, "search": "other.svc.cluster.local"}
    result = play(pods, deadline=15, all=elsewhere)[0]
    assert (result["cause"], result["ranks"]) == ("dns.search_path", [0])
    assert result["seconds"] < 15


def test_a_policy_for_all_pods_filters_every_rank(pods: World) -> None:
    """A policy applies to all pods, like a security group that does not allow its own members. Each rank
    reports it for its own row."""
    forwarded(f"-p tcp --dport {PORT}")(pods)
    results = play(pods, **WAIT)
    assert {result["cause"] for result in results.values()} == {"tcp.filtered"}
    assert results[0]["missing"] == [1, 2, 3]


def test_a_rank_with_a_clock_offset_is_named(pods: World, tmp_path: Path) -> None:
    """Network namespaces share one clock, so this rank's Python uses a clock that is 10 minutes ahead."""
    ahead = "import time; true = time.time; time.time = lambda: true() + 600\n"
    (tmp_path / "sitecustomize.py").write_text(ahead)
    result = play(pods, **variables(2, PYTHONPATH=f"{tmp_path}:{PACKAGES}"))[0]
    assert (result["cause"], result["ranks"]) == ("clock.offset", [2])
    offset = re.search(r"rank 2 by \+(\d+\.\d) s", finding_of(result, "clock.offset")["text"])
    assert offset
    assert abs(float(offset[1]) - 600) < 5


def test_a_rank_with_another_torch_version_is_named(pods: World, tmp_path: Path) -> None:
    """The ranks have package metadata of two versions of PyTorch, as pip installs it."""
    paths = {}
    for version in ("2.9.1", "2.8.0"):
        folder = tmp_path / version / f"torch-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        paths[version] = {"variables": {"PYTHONPATH": f"{folder.parent}:{PACKAGES}"}}
    result = play(pods, all=paths["2.9.1"], r3=paths["2.8.0"])[0]
    assert (result["cause"], result["ranks"]) == ("versions.torch", [3])


def test_without_a_run_id(pods: World) -> None:
    """Contract: a rank that cannot distinguish its job from another one reports "unknown", and not "ok"."""
    result = play(pods, all={"variables": {"RDZV_ID": "-"}})[0]
    assert result["verdict"] == "unknown"
    doubtful = [finding["step"] for finding in result["findings"] if finding["status"] == "unknown"]
    assert doubtful == ["pods", "service", "greeting", "bandwidth", "all-reduce"]


def guide(**changed: str) -> dict[str, Any]:
    """Return options for a rank with the variables in ColossalAI's guide, without NNODES, and for pods
    without names."""
    known = {"MASTER_ADDR": SERVICE, "WORLD_SIZE": "32", "NNODES": "-", **changed}
    unnamed = "short=$(awk '{print $1, $NF}' /etc/hosts); echo \"$short\" >/etc/hosts"
    return {"variables": known, "setup": unnamed}


def test_the_variables_of_the_guide_are_enough(pods: World) -> None:
    """Contract: the number of nodes is derived from WORLD_SIZE, and ranks without names exchange
    addresses."""
    alias(0)(pods)
    results = play(pods, all=guide(NPROC_PER_NODE="8"))
    assert [(one["verdict"], one["nodes"]) for one in results.values()] == [("ok", 4)] * 4, results[0]
    proved = {finding["step"]: finding["text"] for finding in results[3]["findings"]}
    assert proved["mtu"] == "12 of 12 pairs"


@pytest.mark.nightly
def test_an_unknown_number_of_nodes_is_never_ok(pods: World) -> None:
    """Contract: all ranks that joined are checked with each other, and the verdict names the unknown number
    of nodes."""
    alias(0)(pods)
    results = play(pods, deadline=15, all=guide())
    for result in results.values():
        assert (result["verdict"], result["nodes"], result["missing"]) == ("unknown", 4, []), result
        assert result["recommendations"] == [
            "variables: WORLD_SIZE=32 is not checked: the number of nodes is unknown: set NNODES, or pass "
            "--nodes"
        ]
        assert {cell["outcome"] for row in result["rows"].values() for cell in row.values()} == {"ok"}


def test_an_unknown_node_count_reports_no_missing_ranks(pods: World) -> None:
    """Contract: the missing record is the cause, and no rank is reported as missing.

    Rank 0 runs alone, because ranks that cannot reach it wait for their deadline.
    """
    result = play(pods, **SLOW, without=(1, 2, 3), all=guide())[0]
    found = (result["verdict"], result["cause"], result["missing"])
    assert found == ("failed", "dns.no_record", []), result["findings"]


def test_ip_version_6_alone_and_another_interface(tmp_path: Path) -> None:
    """Contract: netcheck works with any interface name and with IPv6 alone."""
    with world(tmp_path, interface="net1", versions=(6,)) as pods:
        result = play(pods)[0]
        assert result["verdict"] == "ok", result
        interface = next(finding["text"] for finding in result["findings"] if finding["step"] == "interface")
        assert re.search(r"net1 \(fd77:(\d:)?:2,", interface)


# -- cases that run concurrently


@dataclass
class Case:
    """A fault, and the result that every rank must report. `pattern` is a regex for the finding's text.
    `alone` contains the ranks that do not receive rank 0's verdict.
    """

    name: str
    cause: str
    ranks: list[int]
    wrong: Callable[[World], None] = nothing
    play: dict[str, Any] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    pattern: str | None = None
    text: str = ""
    alone: tuple[int, ...] = ()


SHORT = {"variables": {"MASTER_ADDR": "job-0.pods"}}
NAMED = {"variables": {"MASTER_ADDR": SERVICE}}
SYN = "-p tcp --syn"
TO_PORT = f"{SYN} --dport {PORT}"
REJECTED = "tcp.rejected"
CASES = [
    Case("world-size", "variables.world_size", [3], play=variables(3, WORLD_SIZE="6", NPROC_PER_NODE="1")),
    Case("master-port", "variables.master_port", [1], play=variables(1, MASTER_PORT="http")),
    Case("world-of-one", "variables.world_of_one", [2], play=variables(2, WORLD_SIZE="1")),
    Case("interface", "variables.interface", [1], play=variables(1, GLOO_SOCKET_IFNAME="ens5"), text="eth0"),
    Case("node-rank-twice", "variables.node_rank_twice", [1], play=variables(2, NODE_RANK="1")),
    Case("record-absent", "dns.no_record", [2], record(2), SLOW),
    Case(
        "service-selects-nothing",
        "dns.no_record",
        [0],
        nothing,
        {**SLOW, "all": NAMED},
        text="MASTER_ADDR master",
    ),
    Case(
        "service-selects-another", "peer.other_rank", [0], alias(2), {"all": NAMED}, text="rank 2 of this run"
    ),
    Case(
        "service-selects-all", "peer.other_rank", [0], alias(0, 1, 2, 3), {"all": NAMED}, text="of this run"
    ),
    Case("never-came", "peer.never_came", [3], record(3), {**WAIT, "without": (3,)}, missing=[3]),
    Case("negative-cache", "dns.negative_cached", [2], too_early("type"), WAIT, text="for another"),
    Case("negative-cache-shared", "dns.negative_cached", [2], too_early("shared"), WAIT, text="for another"),
    Case("dns-server-silent", "dns.server_silent", [2], rules("INPUT -i p2 -p udp --dport 53 -j DROP"), SLOW),
    Case("dns-server-gone", "dns.server_refused", [2], play={"r2": {"nameserver": "10.77.3.2"}}),
    Case(
        "search-path",
        "dns.search_path",
        [3],
        play={"all": SHORT, "r3": {"search": "other.svc.cluster.local"}},
        text=rf"job-0\.{DOMAIN}",
    ),
    Case("ingress", "tcp.filtered", [2], forwarded(f"{SYN} --dport {PORT} -d 10.77.2.2"), pattern="ingress"),
    Case("egress", "tcp.filtered", [2], forwarded(f"{SYN} -s 10.77.2.2"), pattern="egress"),
    Case("one-way", "tcp.filtered", [1, 2], forwarded(f"{SYN} -s 10.77.1.2 -d 10.77.2.2"), text="one way"),
    Case("stateless", "tcp.filtered", [1, 2], forwarded("-s 10.77.1.2 -d 10.77.2.2"), pattern="pair"),
    Case(
        "boundary",
        "tcp.filtered",
        [0, 1, 2, 3],
        forwarded(*(f"{SYN} -s 10.77.{s}.2 -d 10.77.{r}.2" for s in (0, 1) for r in (2, 3))),
        pattern="boundary",
    ),
    Case(
        "cut-off",
        "tcp.filtered",
        [2],
        forwarded("-s 10.77.2.2", "-d 10.77.2.2"),
        WAIT,
        missing=[2],
        pattern="unheard",
        alone=(2,),
    ),
    Case("not-started", "tcp.refused", [2], play={**WAIT, "without": (2,)}, missing=[2]),
    Case("no-route", "tcp.no_route", [1, 2], unroutable, text="no route to it"),
    Case("rejected", REJECTED, [2], rejected(f"{TO_PORT} -d 10.77.2.2"), pattern="ingress", text="3/10"),
    Case(
        "reset", REJECTED, [2], rejected(f"{TO_PORT} -d 10.77.2.2", how="tcp-reset"), text="firewall resets"
    ),
    Case(
        "unreachable-one-way",
        REJECTED,
        [1, 2],
        rejected(f"{SYN} -s 10.77.1.2 -d 10.77.2.2", how="icmp-host-unreachable"),
        text="one way.*there is a route",
    ),
    Case(
        "rejected-both-ways",
        REJECTED,
        [3],
        rejected("-p tcp -s 10.77.3.2", "-p tcp -d 10.77.3.2"),
        WAIT,
        missing=[3],
        pattern="unheard",
        alone=(3,),
    ),
    Case("denied", "tcp.denied", [2], denied),
    Case("old-address", "dns.old_address", [2], record(2, "10.77.2.77"), text=r"10\.77\.2\.2"),
    Case("mtu", "mtu.black_hole", [3], narrow_and_mute, SLOW, text="1260 bytes pass"),
    Case(
        "shared-memory",
        "shm.small",
        [1],
        play={"r1": {"setup": "mount -t tmpfs -o size=64k none /dev/shm"}},
        text="64 KiB",
    ),
    Case("ip-version", "address.family", [1, 2], other_ip_version),
]


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[dict[int, Result]]]]:
    """Run all selected cases. Each of them starts in a World without rules."""
    items = [item for item in request.session.items if "played" in getattr(item, "fixturenames", ())]
    with ExitStack() as stack:
        free: queue.SimpleQueue[World] = queue.SimpleQueue()
        for _ in range(WORLDS):
            free.put(stack.enter_context(world(tmp_path_factory.mktemp("world"))))
        pool = stack.enter_context(ThreadPoolExecutor(WORLDS))

        def one(case: Case) -> dict[int, Result]:
            pods = free.get()
            try:
                case.wrong(pods)
                return play(pods, **case.play)
            finally:
                pods.reset()
                free.put(pods)

        cases = [item.callspec.params["case"] for item in items]  # type: ignore[attr-defined]
        yield {case.name: pool.submit(one, case) for case in cases}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_rank_names_the_cause_and_missing_ranks(
    case: Case, played: dict[str, Future[dict[int, Result]]]
) -> None:
    """Contract: every rank names the cause, the right ranks and the missing ranks."""
    for rank, result in played[case.name].result().items():
        if rank in case.alone:
            assert (result["cause"], result["ranks"], result["whole"]) == (case.cause, [], False)
            continue
        found = (result["verdict"], result["cause"], result["ranks"], result["missing"])
        assert found == ("failed", case.cause, case.ranks, case.missing), result["findings"]
        finding = finding_of(result, case.cause)
        assert re.search(case.text, finding["text"]), finding
        assert case.pattern in (None, finding["pattern"])
        assert result["recommendations"][0].startswith(case.cause)
