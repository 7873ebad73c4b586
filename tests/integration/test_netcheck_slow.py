"""A busy machine is not a fault: netcheck does not accuse a rank because a process, a node or a DNS server is
slow. SIGSTOP and SIGCONT limit the CPU time of one process, so the tests do not depend on the machine's load.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from namespaces import World
from test_netcheck import PORT, Result, finding_of, finished, together

pytestmark = pytest.mark.nightly


def started(
    pods: World, ranks: Sequence[int] = range(4), deadline: float = 60
) -> dict[int, subprocess.Popen[str]]:
    """Start netcheck in these pods. `together` then starts the checks in all ranks at the same time."""
    size = {"NNODES": str(pods.size), "WORLD_SIZE": str(pods.size)}
    return {rank: pods.start(rank, "--deadline", str(deadline), variables=size) for rank in ranks}


@contextlib.contextmanager
def starved(pid: int, stopped: float, running: float) -> Iterator[None]:
    """Let a process run only for `running` out of every `stopped + running` seconds."""
    over = threading.Event()

    def starve() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                over.wait(stopped)
                os.kill(pid, signal.SIGCONT)
                over.wait(running)

    thread = threading.Thread(target=starve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def results(processes: dict[int, subprocess.Popen[str]]) -> dict[int, Result]:
    return {rank: finished(process) for rank, process in processes.items()}


def test_a_slow_dns_server_is_waited_for(pods: World) -> None:
    """Contract: a DNS server that responds after more than 1 s does not count as silent."""
    assert pods._dns is not None
    processes = started(pods)
    together([processes[rank] for rank in (0, 1, 3)])
    time.sleep(2)
    with starved(pods._dns.pid, stopped=2.5, running=0.2):
        together([processes[2]])
        found = results(processes)
    assert [one["verdict"] for one in found.values()] == ["ok"] * 4, found[0]["findings"]


def test_late_rank_does_not_accuse_working_dns_server(pods: World) -> None:
    """Contract: a query that has no response yet at the deadline proves nothing."""
    processes = started(pods, deadline=6)
    together([processes[rank] for rank in (0, 1, 2)])
    time.sleep(3)
    pods.iptables(pods.gateway, "-A INPUT -i p3 -p udp --dport 53 -j DROP")
    together([processes[3]])
    found = results(processes)
    assert found[0]["cause"] is None or not found[0]["cause"].startswith("dns."), found[0]["findings"]


def test_a_starved_rank_is_not_accused(pods: World) -> None:
    """Contract: rank 2 responds, but only every 3 s: the pairs pass, or the result is unknown."""
    processes = started(pods, deadline=25)
    together(processes.values())
    with starved(processes[2].pid, stopped=3, running=0.05):
        found = results(processes)
    assert {one["verdict"] for one in found.values()} <= {"ok", "unknown"}, found[0]["findings"]
    assert {one["cause"] for one in found.values()} == {None}
    if found[0]["verdict"] == "unknown":
        assert any("woke up" in finding["text"] for finding in found[0]["findings"]), found[0]["findings"]


def test_refusal_before_peer_listens_accuses_no_firewall(pods: World) -> None:
    """Contract: the connection of rank 2 was refused while rank 3 was not listening, and rank 2 has no CPU
    time for a retry."""
    processes = started(pods, deadline=8)
    together([processes[rank] for rank in (0, 1, 2)])
    time.sleep(2)
    os.kill(processes[2].pid, signal.SIGSTOP)
    together([processes[3]])
    found = finished(processes[0])
    os.kill(processes[2].pid, signal.SIGCONT)
    for rank in (1, 2, 3):
        finished(processes[rank])
    assert (found["verdict"], found["cause"]) == ("unknown", None), found["findings"]
    assert any("was not proved to be listening" in finding["text"] for finding in found["findings"])


def test_firewall_that_resets_rank_which_came_late_is_named(pods: World) -> None:
    """Contract: a refused connection counts if the rank was listening before and after it."""
    pods.iptables(
        pods.gateway, f"-A FORWARD -p tcp --syn --dport {PORT} -d 10.77.3.2 -j REJECT --reject-with tcp-reset"
    )
    processes = started(pods)
    together([processes[rank] for rank in (0, 1, 2)])
    time.sleep(2)
    together([processes[3]])
    for found in results(processes).values():
        assert (found["cause"], found["ranks"]) == ("tcp.rejected", [3]), found["findings"]
        assert "firewall resets" in finding_of(found, "tcp.rejected")["text"]


def test_a_dns_server_that_answers_nobody_is_named(pods: World) -> None:
    """Contract: a server that does not respond for 5 s on idle nodes counts as silent."""
    pods.iptables(pods.gateway, "-A INPUT -p udp --dport 53 -j DROP")
    processes = started(pods, deadline=30)
    together(processes.values())
    for found in results(processes).values():
        assert found["cause"] == "dns.server_silent", found["findings"]
