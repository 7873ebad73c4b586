"""Take part in the check of all pairs, on one rank: from its variables to its diagnosis."""

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
"""Seconds that all ranks have to come and be heard, unless told otherwise."""


def diagnose(
    variables: Mapping[str, str] | None = None,
    *,
    nodes: int | None = None,
    others: Sequence[Peer] = (),
    port: int | None = None,
    deadline: float = DEADLINE,
    bandwidth: bool = False,
) -> Diagnosis:
    """Check everything that a pod can check, together with the other ranks, which do the same.

    `others`: all ranks in their order, this one too; found from the names of the pods where empty. `port`: of
    the greetings, MASTER_PORT + 1 unless given; each further process of a pod has the next one. `deadline`:
    seconds. `bandwidth`: also measure what each pair carries, in 30 s more at most. Raises ValueError when
    neither a number of ranks nor WORLD_SIZE is known.
    """
    known = validate_environment(variables, nodes=nodes or len(others) or None)
    if known.nodes is None and not known.ok:
        return alone(known)
    if known.nodes is None and known.world_size is None:
        raise ValueError("nothing says how many ranks there are: set NNODES, or pass --nodes or --peers")
    listed = (
        list(others)
        or peers.derive(known.master_addr, known.node_rank, known.nodes)
        or [Peer(known.master_addr)]
    )
    own = port or port_after(known.master_port, 1 + known.local_rank)
    given = os.environ if variables is None else variables
    with Member(known, known.nodes, listed, own, given, bandwidth) as member:
        return member.run(deadline)


def alone(known: Environment) -> Diagnosis:
    """Return the diagnosis of the variables alone."""
    findings = tuple(in_order(known.findings))
    cause, ranks = findings[0].cause, (known.node_rank or 0,)
    return Diagnosis(verdict(findings), cause, ranks, (), findings, {}, 0, known.node_rank or 0, False, 0.0)
