"""What netcheck finds out, as data: the steps in their order, the closed set of causes, a finding.

Standard library only, Python 3.9 and later, as every module of this package.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"

STEPS = (
    "variables",
    "pods",
    "interface",
    "dns",
    "service",
    "tcp",
    "greeting",
    "matrix",
    "mtu",
    "surroundings",
    "all-reduce",
)
"""Each step proves one thing. The first that failed names the cause."""
OUTSIDE = ("pods", "service", "all-reduce")
"""Steps that netcheck does not make by itself in a pod: two need the API server, one needs PyTorch."""

CAUSES = {
    # cause: (step, what to do)
    "variables.missing": ("variables", "Set the variable in the pod template, with the same value in every pod."),
    "variables.master_addr": ("variables", "Set MASTER_ADDR to the DNS name of rank 0, without scheme and port."),
    "variables.master_port": ("variables", "Set MASTER_PORT to a number from 1 to 65535, the same in every pod."),
    "variables.world_size": ("variables", "Set WORLD_SIZE to nodes × processes per node."),
    "variables.world_of_one": ("variables", "Set the number of nodes and WORLD_SIZE: this rank would train alone."),
    "variables.node_rank": ("variables", "Set NODE_RANK from the pod's index, from 0 to nodes - 1."),
    "variables.node_rank_twice": ("variables", "Give each pod a NODE_RANK of its own, from the pod's index."),
    "variables.nodes": ("variables", "Set the number of nodes to a whole number of 1 or more."),
    "variables.nproc_per_node": ("variables", "Set the processes per node to a whole number of 1 or more."),
    "variables.rank": ("variables", "Let torchrun set RANK and LOCAL_RANK, or set RANK from NODE_RANK and LOCAL_RANK."),
    "variables.interface": ("variables", "Remove the variable: netcheck finds the interface on the route to rank 0."),
    "peer.never_came": ("pods", "Look at this pod: is it Pending, pulling its image, or has it ended?"),
    "address.none": ("interface", "Look at the pod's network: it has no address besides loopback."),
    "address.family": ("interface", "Give the pods and the Service addresses of the same IP family."),
    "address.loopback": ("interface", "Let the name of rank 0 lead to the pod's address, and not to 127.0.0.1 or ::1."),
    "dns.no_server": ("dns", "Look at the pod's dnsPolicy: /etc/resolv.conf names no DNS server."),
    "dns.server_silent": ("dns", "Open UDP port 53 to the DNS server (NetworkPolicy, firewall), or start it again."),
    "dns.server_refused": ("dns", "Start the DNS server: nothing listens on port 53 of its address."),
    "dns.server_failed": ("dns", "Look at the log of the DNS server: it answers with an error."),
    "dns.search_path": ("dns", "Write the full name, or mend dnsPolicy and the search path in /etc/resolv.conf."),
    "dns.negative_cached": ("dns", "Wait until the cached answer expires, and do not ask before the record exists."),
    "dns.no_record": ("dns", "Look at the headless Service: its selector, the pod's hostname and subdomain, "
                             "and publishNotReadyAddresses."),
    "dns.old_address": ("dns", "Wait for the record to change, or delete the old pod: the name leads elsewhere."),
    "tcp.refused": ("tcp", "Start the process there, or mend the port: the machine answers, nothing listens."),
    "tcp.filtered": ("tcp", "Look at NetworkPolicy, security group and host firewall: no answer comes."),
    "tcp.no_route": ("tcp", "Look at the pod network: no route leads to this address, or no machine has it."),
    "tcp.denied": ("tcp", "Look at the policy on this node: it forbids the connection on this side."),
    "port.taken": ("greeting", "End what is left over from an earlier start, or choose another port by --port."),
    "tcp.reset": ("greeting", "Look for a sidecar or service mesh that closes what it does not know."),
    "peer.silent": ("greeting", "Look at what listens on this port: it takes connections and says nothing."),
    "peer.not_netcheck": ("greeting", "Choose another port by --port: another program listens on this one."),
    "peer.other_job": ("greeting", "Give each job a name, a Service and a run id of its own, the same in all its pods."),
    "peer.other_rank": ("greeting", "Let the name of rank 0 lead to rank 0 alone: another rank answers."),
    "peer.other_size": ("greeting", "Start every rank with the same number of nodes."),
    "mtu.black_hole": ("mtu", "Lower the MTU of the pods' interfaces, or let ICMP 'fragmentation needed' pass."),
    "clock.offset": ("surroundings", "Let the node synchronise its clock."),
    "versions.python": ("surroundings", "Run the same image in every pod."),
    "versions.torch": ("surroundings", "Run the same image in every pod."),
    "versions.nccl": ("surroundings", "Run the same image in every pod."),
    "shm.small": ("surroundings", "Mount an emptyDir with medium: Memory at /dev/shm."),
    "memlock.low": ("surroundings", "Raise the memlock limit of the containers: RDMA needs it."),
    "allreduce.wrong_sum": ("all-reduce", "Do not train: a reduction over these ranks gives wrong numbers."),
    "allreduce.failed": ("all-reduce", "Read the error of PyTorch; the steps before this one say more."),
}  # fmt: skip
"""The closed set. docs/networking.md shows each with what netcheck prints."""


@dataclass(frozen=True)
class Finding:
    """What one step proved, or could not.

    `ranks` are node ranks, the ones that the cause accuses; `pattern` is where in the matrix of all pairs
    (matrix.py), "" when it has no place there. `seconds` is how long netcheck took to see it.
    """

    step: str
    status: str
    text: str
    cause: str | None = None
    ranks: tuple[int, ...] = ()
    pattern: str = ""
    seconds: float = 0.0

    @property
    def advice(self) -> str:
        """What to do, or ""."""
        return CAUSES[self.cause][1] if self.cause else ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return {**asdict(self), "ranks": list(self.ranks), "do": self.advice}

    @classmethod
    def of(cls, data: dict[str, Any]) -> Finding:
        """Return it from `as_dict`."""
        fields = {name: data[name] for name in cls.__dataclass_fields__}
        return cls(**{**fields, "ranks": tuple(fields["ranks"])})


def failed(
    cause: str, text: str, ranks: Iterable[int] = (), pattern: str = "", seconds: float = 0.0
) -> Finding:
    """Return a failed finding; the cause says the step."""
    step = CAUSES[cause][0]
    return Finding(step, FAILED, text, cause, tuple(sorted(set(ranks))), pattern, round(seconds, 3))


def ok(step: str, text: str, seconds: float = 0.0) -> Finding:
    return Finding(step, OK, text, seconds=round(seconds, 3))


def unknown(step: str, text: str, ranks: Iterable[int] = ()) -> Finding:
    return Finding(step, UNKNOWN, text, ranks=tuple(sorted(set(ranks))))


def verdict(findings: Sequence[Finding]) -> str:
    """Return failed, unknown or ok. Only what a pod cannot ask (OUTSIDE) may stay unknown in an ok."""
    if any(finding.status == FAILED for finding in findings):
        return FAILED
    proved = {finding.step for finding in findings if finding.status == OK}
    doubtful = {finding.step for finding in findings if finding.status == UNKNOWN}
    inside = set(STEPS) - set(OUTSIDE)
    return OK if inside <= proved and not inside & doubtful else UNKNOWN


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return them by step; what failed comes first in its step."""
    rank = {FAILED: 0, UNKNOWN: 1, OK: 2}
    return sorted(findings, key=lambda finding: (STEPS.index(finding.step), rank[finding.status]))
