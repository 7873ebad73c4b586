"""Define netcheck's steps and their order, the closed set of causes, and the class Finding.

Like every module in this package, this module uses only the standard library, and supports Python 3.9 and
later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    "bandwidth",
    "surroundings",
    "all-reduce",
)
"""The steps in order. Each one proves one property, and the first one that fails determines the cause."""
OUTSIDE = ("pods", "service", "bandwidth", "all-reduce")
"""Steps that do not run by default if netcheck runs in a pod.

Two of them need the API server, one needs PyTorch, and one puts load on the network.
"""

_ADVICE = {
    "variables": {
        "variables.missing": "Set the variable in the pod template, with the same value in every pod.",
        "variables.master_addr": "Set MASTER_ADDR to the DNS name of rank 0, without scheme and port.",
        "variables.master_port": "Set MASTER_PORT to the same number in every pod, from 1024 to 65535 unless "
        "the ranks have the capability NET_BIND_SERVICE.",
        "variables.world_size": "Set WORLD_SIZE to nodes × processes per node.",
        "variables.world_of_one": (
            "Pass --nnodes and rank 0's address to torchrun, without "
            "--standalone, or set NNODES and WORLD_SIZE."
        ),
        "variables.node_rank": "Set NODE_RANK to the pod's index, which must be from 0 to nodes - 1.",
        "variables.node_rank_twice": "Give each pod a different NODE_RANK, such as the pod's index.",
        "variables.nodes": "Set the number of nodes to a positive integer.",
        "variables.nproc_per_node": "Set the processes per node to a positive integer.",
        "variables.rank": "Let torchrun set RANK and LOCAL_RANK.",
        "variables.torchrun": "Put a space between torchrun's options, give every pod the same --rdzv_id, "
        "and set --rdzv_endpoint to the pod of rank 0.",
        "variables.interface": "Remove the variable, or set it to the name of an interface of the pod; "
        "only NCCL accepts ^NAME.",
    },
    "pods": {
        "peer.never_came": "Check this pod: is it Pending, pulling its image, or has it terminated?",
    },
    "interface": {
        "address.none": "Check the pod's network: the pod has only loopback addresses.",
        "address.family": "Give the pods and the Service addresses of the same IP family.",
        "address.loopback": (
            "Make the name of rank 0 resolve to the pod's own address, not to a loopback address."
        ),
    },
    "dns": {
        "dns.no_server": "Check the pod's dnsPolicy: /etc/resolv.conf lists no DNS server.",
        "dns.server_refused": "Start the DNS server: nothing is listening on port 53 of its address.",
        "dns.server_silent": "Allow UDP port 53 to the DNS server, or restart the server.",
        "dns.server_failed": "Check the DNS server's log: the server responds with an error.",
        "dns.search_path": "Use the full name, or correct dnsPolicy and the search path.",
        "dns.negative_cached": "Wait until the cached answer expires; do not query a name "
        "before its record exists.",
        "dns.no_record": "Check the Service's selector and publishNotReadyAddresses, and the "
        "pods' hostname and subdomain.",
        "dns.old_address": "Wait until the DNS record is updated, or delete the old pod.",
    },
    "tcp": {
        "tcp.refused": "Start the process, or correct the port: the machine responds, but "
        "nothing is listening.",
        "tcp.filtered": "Check NetworkPolicies, security groups and host firewalls.",
        "tcp.rejected": "Check firewalld, iptables or nftables (REJECT) and the policies on the node. "
        "For the address of a Service, check its endpoints and ports.",
        "tcp.no_route": (
            "Check the pod network: there is no route to the address, or no machine has this address."
        ),
        "tcp.denied": "Check the policies on this node: one of them blocks the connection at its source.",
    },
    "greeting": {
        "port.taken": "Stop the process that still uses the port, or choose another port. "
        "With hostNetwork, all pods on a node share its ports.",
        "tcp.reset": "Look for a sidecar or service mesh that closes connections of unknown protocols.",
        "peer.silent": "Check which process is listening on this port.",
        "peer.not_netcheck": "Choose another port with --port: another program is listening on this one.",
        "peer.other_job": "Give each job its own name, Service and run id.",
        "peer.other_rank": "Make the name of rank 0 resolve only to rank 0.",
        "address.advertised": "Set GLOO_SOCKET_IFNAME (gloo) or NCCL_SOCKET_IFNAME (NCCL) to the interface "
        "that the other ranks can reach, or make the pod's own name resolve to its address.",
        "dns.advertised": "Pass --local-addr with the pod's address to torchrun, such as "
        '--local-addr="$(hostname -i)", or give the pods a subdomain with a headless Service.',
        "peer.other_size": "Start every rank with the same number of nodes.",
    },
    "mtu": {
        "mtu.black_hole": "Lower the MTU of the pods' interfaces, or allow ICMP 'fragmentation "
        "needed' messages.",
    },
    "bandwidth": {
        "tcp.slow": "Check the node's interface, cable and rate limits, or move the pod.",
    },
    "surroundings": {
        "clock.offset": "Synchronise the node's clock.",
        "versions.python": "Run the same image in every pod.",
        "versions.torch": "Run the same image in every pod.",
        "versions.nccl": "Run the same image in every pod.",
        "shm.small": "Mount an emptyDir with medium: Memory at /dev/shm.",
        "memlock.low": "Raise the containers' memlock limit, because RDMA needs locked memory.",
    },
    "all-reduce": {
        "allreduce.wrong_sum": "Do not train on these ranks: an all-reduce over them returns wrong sums.",
        "allreduce.failed": "Read PyTorch's error; the earlier steps show more details.",
    },
}
"""Maps each step to its causes, and each cause to its advice. The causes are a closed set
(docs/reference/networking.md)."""
CAUSES = {cause: step for step, advice in _ADVICE.items() for cause in advice}
"""Maps each cause to the step that can fail with it."""


@dataclass(frozen=True)
class Finding:
    """The result of one step.

    `ranks` are the node ranks that are to blame. `pattern` is the kind of pattern that the failures form in
    the matrix of all pairs (matrix.py), or "". `seconds` is the time that netcheck took to obtain the result.
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
        """The advice for the cause, or "" if there is none."""
        return advice_of(self.cause) if self.cause else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as JSON-compatible data."""
        return {**vars(self), "ranks": list(self.ranks), "do": self.advice}

    @classmethod
    def of(cls, data: dict[str, Any]) -> Finding:
        """Return a finding from the data that `as_dict` returned."""
        fields = {name: data[name] for name in cls.__dataclass_fields__}
        return cls(**{**fields, "ranks": tuple(fields["ranks"])})


def advice_of(cause: str) -> str:
    """Return the advice for a cause. Raises KeyError if it is not one of CAUSES."""
    return _ADVICE[CAUSES[cause]][cause]


def listed(ranks: Iterable[int]) -> str:
    """Return the ranks as text, such as "rank 2" or "ranks 0, 1"."""
    each = sorted(ranks)
    return ("rank " if len(each) == 1 else "ranks ") + ", ".join(map(str, each))


def failed(
    cause: str, text: str, ranks: Iterable[int] = (), pattern: str = "", seconds: float = 0.0
) -> Finding:
    """Return a failed finding. The cause determines the step."""
    return Finding(CAUSES[cause], FAILED, text, cause, tuple(sorted(set(ranks))), pattern, round(seconds, 3))


def ok(step: str, text: str, seconds: float = 0.0) -> Finding:
    return Finding(step, OK, text, seconds=round(seconds, 3))


def unknown(step: str, text: str, ranks: Iterable[int] = ()) -> Finding:
    return Finding(step, UNKNOWN, text, ranks=tuple(sorted(set(ranks))))


def verdict(findings: Sequence[Finding]) -> str:
    """Return failed, unknown or ok. The verdict can be ok even if steps in OUTSIDE are unknown.

    The bandwidth step is an exception: if bandwidth was requested, an unknown result makes the verdict
    unknown. Its finding has ranks only if it was requested.
    """
    if any(finding.status == FAILED for finding in findings):
        return FAILED
    ok_steps = {finding.step for finding in findings if finding.status == OK}
    unknown_steps = {finding.step for finding in findings if finding.status == UNKNOWN}
    if any(f.step == "bandwidth" and f.status == UNKNOWN and f.ranks for f in findings):
        return UNKNOWN
    required = set(STEPS) - set(OUTSIDE)
    return OK if required <= ok_steps and not required & unknown_steps else UNKNOWN


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings sorted by step. Within a step, failed findings come first."""
    rank = {FAILED: 0, UNKNOWN: 1, OK: 2}
    return sorted(findings, key=lambda finding: (STEPS.index(finding.step), rank[finding.status]))
