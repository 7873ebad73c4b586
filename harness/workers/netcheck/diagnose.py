"""Run the complete check on one rank, and return its diagnosis."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from . import peers
from .diagnosis import Diagnosis
from .finding import in_order, verdict
from .member import Member
from .peers import Peer
from .variables import Environment, port_after, validate_environment

DEADLINE = 60.0
"""Default number of seconds within which all ranks must start and report."""


def diagnose(
    variables: Mapping[str, str] | None = None,
    *,
    nodes: int | None = None,
    others: Sequence[Peer] = (),
    port: int | None = None,
    deadline: float = DEADLINE,
    bandwidth: bool = False,
) -> Diagnosis:
    """Run all checks that are possible in a pod, together with the other ranks, and return the diagnosis.

    `others` lists all ranks in order, including this one. If it is empty, the addresses are derived from the
    pod names. `port` is the greeting server's port, by default MASTER_PORT + 1 + LOCAL_RANK. `deadline` is in
    seconds. With `bandwidth`, the bandwidth of each pair is measured too, which takes up to 30 s more. Raises
    ValueError if neither the number of nodes nor WORLD_SIZE is known.
    """
    environment = validate_environment(variables, nodes=nodes or len(others) or None)
    if environment.nodes is None and not environment.ok:
        return alone(environment)
    if environment.nodes is None and environment.world_size is None:
        raise ValueError("the number of ranks is unknown: set NNODES, or pass --nodes or --peers")
    peer_list = (
        list(others)
        or peers.derive(environment.master_addr, environment.node_rank, environment.nodes)
        or [Peer(environment.master_addr)]
    )
    own = port or port_after(environment.master_port, 1 + environment.local_rank)
    source = os.environ if variables is None else variables
    with Member(environment, environment.nodes, peer_list, own, source, bandwidth) as member:
        return member.run(deadline)


def alone(environment: Environment) -> Diagnosis:
    """Diagnose only the environment variables, without contacting other ranks."""
    findings = tuple(in_order(environment.findings))
    cause, ranks = findings[0].cause, (environment.node_rank or 0,)
    return Diagnosis(
        verdict(findings), cause, ranks, (), findings, {}, 0, environment.node_rank or 0, False, 0.0
    )
