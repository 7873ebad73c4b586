"""Validate the variables for a process's rank and rank 0's address: types, ranges and consistency."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .finding import Finding, failed, ok, unknown
from .torchrun_options import RENDEZVOUS, differs_in_each_pod, gpus, is_own_host, merged, of_container

MASTER_PORT = 29500
"""torchrun's default MASTER_PORT."""
NODES = ("NNODES", "PET_NNODES", "NUM_NODES", "GROUP_WORLD_SIZE", "JOB_COMPLETIONS")
PROCESSES = ("NPROC_PER_NODE", "PET_NPROC_PER_NODE", "LOCAL_WORLD_SIZE", "NUM_GPUS_PER_NODE")
NODE_RANK = ("NODE_RANK", "PET_NODE_RANK", "GROUP_RANK", "JOB_COMPLETION_INDEX")
RUN_ID = (
    "NETCHECK_RUN_ID",
    "RDZV_ID",
    "PET_RDZV_ID",
    "TORCHELASTIC_RUN_ID",
    "JOB_ID",
    "HARNESS_NONCE",
    "PLUTO_RUN_ID",
)
"""Each of NODES, PROCESSES, NODE_RANK and RUN_ID lists alternatives. The first variable that is set is
used."""
RDZV_ID = ("RDZV_ID", "PET_RDZV_ID")
OWN_HOST = ("PET_RDZV_ENDPOINT", "PET_MASTER_ADDR")
TORCHRUN = {
    "RDZV_ID": "--rdzv_id",
    "PET_RDZV_ID": "--rdzv_id",
    "RDZV_ENDPOINT": "--rdzv_endpoint",
    "PET_RDZV_ENDPOINT": "--rdzv_endpoint",
    "NNODES": "--nnodes",
    "NPROC_PER_NODE": "--nproc_per_node",
    "NODE_RANK": "--node_rank",
    "MASTER_ADDR": "--master_addr",
    "PET_MASTER_ADDR": "--master_addr",
    "MASTER_PORT": "--master_port",
}
"""Maps each variable to the equivalent torchrun option."""
AUTOMATIC = ("auto", "gpu", "cpu")
"""Values that torchrun's --nproc_per_node accepts instead of a number."""


@dataclass(frozen=True)
class Environment:
    """The validated values of the variables. None means that a value is unknown.

    `node_rank` is this pod's index. `local_rank` is the process's index in the pod, or 0 without torchrun.
    `run_id` is "" if no variable identifies the job.
    """

    node_rank: int | None
    nodes: int | None
    per_node: int | None
    world_size: int | None
    master_addr: str
    master_port: int
    run_id: str
    findings: tuple[Finding, ...]
    local_rank: int = 0
    rdzv_id: str = ""
    """torchrun's --rdzv_id, or "" if it is unknown."""
    torchrun: Mapping[str, str] = field(default_factory=dict)
    """The RENDEZVOUS variables that are set. Their values are not expanded by a shell."""

    @property
    def ok(self) -> bool:
        """Return whether all variables are valid."""
        return not any(finding.status == "failed" for finding in self.findings)


def validate_environment(
    variables: Mapping[str, str] | None = None, *, nodes: int | None = None
) -> Environment:
    """Return the values of the variables, and a finding for each invalid variable.

    By default, the values come from the environment, the options of this container's torchrun and the
    container's number of GPUs. `nodes` is the expected number of nodes, if the caller knows it.
    """
    if variables is not None:
        return _Reader(variables).environment(nodes)
    own = dict(os.environ)
    # Only torchrun sets GROUP_WORLD_SIZE. It then also sets the other variables according to its options.
    by_torchrun = "GROUP_WORLD_SIZE" in own
    options = {} if by_torchrun else of_container()
    return _Reader(own, options, 0 if by_torchrun else gpus()).environment(nodes)


def port_after(port: int, offset: int) -> int:
    """Return `port + offset`, or `port - offset` if the sum is not a valid port."""
    return port + offset if port + offset < 65536 else port - offset


def is_host(name: str) -> bool:
    """Return whether a string is an IP address or a syntactically valid DNS name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        labels = name.rstrip(".").split(".")
        if re.fullmatch(r"[\d.]+", name) or len(name) > 253:
            return False
        return all(re.fullmatch(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", label) for label in labels)
    return True


@dataclass(frozen=True)
class _Numbers:
    """The numbers that the variables contain. None means that a number is unknown."""

    nodes: int | None
    per_node: int | None
    world: int | None
    node_rank: int | None
    rank: int | None
    local: int | None


class _Reader:
    def __init__(
        self, variables: Mapping[str, str], options: Mapping[str, str] | None = None, gpus: int = 0
    ) -> None:
        """`options` are torchrun's options as variables. `gpus` is the number of GPUs in this container."""
        first = (*PROCESSES, "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", *RENDEZVOUS)
        self._variables = {**variables, **{n: v for n, v in (options or {}).items() if n in first}}
        for name, value in (options or {}).items():
            self._variables.setdefault(name, value)
        self._options = options or {}
        self._torchrun = {name: self._variables[name] for name in RENDEZVOUS if self._variables.get(name)}
        if options is not None and not options:
            # If torchrun was not detected, it may have options that override these variables.
            self._torchrun = {}
        if not self._variables.get("MASTER_ADDR"):
            self._variables.update(_torchruns_master(self._variables))
        self._gpus = gpus
        self.wrong: list[Finding] = []

    def environment(self, expected: int | None) -> Environment:
        self._missing_spaces()
        declared = self._number(NODES, "variables.nodes", 1, self._last_of_range(NODES))
        declared = self._formed(declared)
        self._contradictions(declared)
        nodes = declared if expected is None else expected
        per_node = self._number(
            PROCESSES, "variables.nproc_per_node", 0 if self._first(PROCESSES)[0] == PROCESSES[3] else 1
        )
        per_node = per_node or None  # konduktor sets this number to 0 for a single process without a GPU.
        world = self._number(("WORLD_SIZE",), "variables.world_size", 1)
        each = per_node or self._gpus
        if nodes is None and world and each and world % each == 0:
            nodes = world // each
        if nodes != 1:
            self._own_run_id()
        rank, local = (self._number((name,), "variables.rank", 0) for name in ("RANK", "LOCAL_RANK"))
        node_rank = self._node_rank(rank, local, per_node)
        if nodes != 1 and node_rank != 0:
            self._own_host()
        if expected is not None and declared not in (None, expected):
            self._fail(
                "variables.nodes", f"{self._first(NODES)[0]}={declared}, but {expected} nodes are expected"
            )
        numbers = _Numbers(nodes, per_node, world, node_rank, rank, local)
        self._sizes(numbers)
        self._ranks(numbers)
        addr, port = self._master(nodes)
        findings = self.wrong or [self._valid(node_rank, nodes, world, addr), *self._brackets()]
        return Environment(
            node_rank,
            nodes,
            per_node,
            world,
            addr,
            port,
            self._first(RUN_ID)[1],
            tuple(findings),
            local or 0,
            self._first(RDZV_ID)[1],
            self._torchrun,
        )

    def _missing_spaces(self) -> None:
        """Add a failed finding for each option that is part of another value because a space is missing."""
        for name, option in TORCHRUN.items():
            value = self._option(name)
            if other := merged(value):
                text = f"torchrun reads {option}={value} as one value: a space is missing before {other}"
                self._fail("variables.torchrun", text)

    def _own_run_id(self) -> None:
        """Add a failed finding if each pod's shell expands --rdzv_id to a different value."""
        for name in RDZV_ID:
            value = self._option(name)
            if differs_in_each_pod(value) and not merged(value):
                self._fail("variables.torchrun", f"--rdzv_id={value} has a different value in each pod")

    def _own_host(self) -> None:
        """Add a failed finding if this pod's shell expands the address of rank 0 to the pod itself."""
        for name in OWN_HOST:
            value = self._option(name)
            if is_own_host(value):
                text = (
                    f"{TORCHRUN[name]}={value} refers to the pod itself in "
                    "every pod, so the ranks cannot meet"
                )
                self._fail("variables.torchrun", text)

    def _option(self, name: str) -> str:
        """Return the value of a torchrun option or, if it is not set, of the environment variable `name`."""
        return self._options.get(name) or self._variables.get(name, "")

    def _formed(self, declared: int | None) -> int | None:
        """Return the number of nodes with which an elastic torchrun job started, otherwise `declared`."""
        _, value = self._first(NODES)
        formed = self._variables.get("GROUP_WORLD_SIZE", "")
        return int(formed) if ":" in value and formed.isdecimal() and int(formed) else declared

    def _contradictions(self, declared: int | None) -> None:
        """Add a failed finding if two sources specify different numbers of nodes. Ranges are not compared."""
        name, value = self._first(NODES)
        if declared is None or ":" in value:
            return
        sources = {
            f"{other}={self._variables.get(other)}": other for other in ("PET_NNODES", "JOB_COMPLETIONS")
        }
        numbers = {text: self._variables.get(other, "") for text, other in sources.items() if other != name}
        numbers[f"torchrun --nnodes={self._options.get('NNODES')}"] = self._options.get("NNODES", "")
        for text, number in numbers.items():
            if re.fullmatch(r"[0-9]+", number.strip()) and int(number) != declared:
                self._fail("variables.nodes", f"{name}={value}, but {text}")

    def _node_rank(self, rank: int | None, local: int | None, per_node: int | None) -> int | None:
        node_rank = self._number(NODE_RANK, "variables.node_rank", 0)
        if node_rank is not None or self._first(NODE_RANK)[1] or rank is None:
            return node_rank
        if per_node and per_node > 1 and local is not None:
            return rank // per_node
        return rank if local in (None, 0) and per_node in (None, 1) else None

    def _sizes(self, sizes: _Numbers) -> None:
        nodes, per_node, world = sizes.nodes, sizes.per_node, sizes.world
        node_count = max(nodes or 1, (sizes.node_rank or 0) + 1)
        if node_count > 1 and (world == 1 or (world is None and nodes is None)):
            size = "WORLD_SIZE=1" if world else "neither WORLD_SIZE nor a number of nodes is set"
            self._fail(
                "variables.world_of_one",
                f"{size}, but {node_count}{'' if nodes else ' or more'} nodes are expected",
            )
        elif None not in (nodes, per_node, world) and world != nodes * per_node:  # type: ignore[operator]
            origin = " by torchrun's options" if {"NNODES", "NPROC_PER_NODE"} & set(self._options) else ""
            self._fail(
                "variables.world_size",
                f"WORLD_SIZE={world}, but {nodes} nodes × {per_node} processes are expected{origin}",
            )
        elif nodes and world and per_node is None and (world < nodes or world % nodes):
            self._fail("variables.world_size", f"WORLD_SIZE={world} is not a multiple of {nodes} nodes")
        elif nodes and world and per_node is None and 0 < self._gpus < world // nodes:
            self._fail(
                "variables.world_size",
                f"WORLD_SIZE={world} on {nodes} nodes means {world // nodes} processes per node, but this "
                f"pod has {self._gpus} GPUs",
            )

    def _ranks(self, numbers: _Numbers) -> None:
        nodes, world, rank, local = numbers.nodes, numbers.world, numbers.rank, numbers.local
        if numbers.node_rank is None and not self.wrong:
            self._fail(
                "variables.missing", f"none of {', '.join(NODE_RANK)} is set: this pod's rank is unknown"
            )
        if nodes is not None and numbers.node_rank is not None and numbers.node_rank >= nodes:
            self._fail(
                "variables.node_rank",
                f"the node rank is {numbers.node_rank}, but there are {nodes} nodes, "
                f"numbered 0 to {nodes - 1}",
            )
        if None not in (rank, world) and rank >= world > 1:  # type: ignore[operator]
            self._fail(
                "variables.rank",
                f"RANK={rank}, but WORLD_SIZE={world}: ranks are from 0 to {world - 1}",  # type: ignore[operator]
            )
        if None not in (local, numbers.per_node) and local >= numbers.per_node:  # type: ignore[operator]
            self._fail("variables.rank", f"LOCAL_RANK={local}, but a node has {numbers.per_node} processes")

    def _master(self, nodes: int | None) -> tuple[str, int]:
        addr = self._variables.get("MASTER_ADDR", "")
        host = addr.strip("[]")
        if not addr:
            if nodes != 1:
                self._fail("variables.missing", "MASTER_ADDR is not set, so the address of rank 0 is unknown")
        elif not is_host(host):
            self._fail(
                "variables.master_addr", f"MASTER_ADDR={addr!r} is neither a host name nor an IP address"
            )
        elif nodes and nodes > 1 and (host == "localhost" or _loopback(host)):
            self._fail(
                "variables.master_addr",
                f"MASTER_ADDR={addr} refers to this pod itself, but there are {nodes} nodes",
            )
        port = self._number(("MASTER_PORT",), "variables.master_port", 1, maximum=65535)
        return host, MASTER_PORT if port is None else port

    def _brackets(self) -> list[Finding]:
        """Return an unknown finding if MASTER_ADDR has brackets, which only torchrun's options accept."""
        addr = self._variables.get("MASTER_ADDR", "")
        if not addr.startswith("["):
            return []
        text = (
            f"MASTER_ADDR={addr} has brackets: torchrun removes them, but env:// looks up the name with them"
        )
        return [unknown("variables", f"{text}. Use {addr.strip('[]')}")]

    def _number(
        self, names: Sequence[str], cause: str, minimum: int, text: str | None = None, maximum: int = 10**9
    ) -> int | None:
        name, value = self._first(names)
        if not value or value in AUTOMATIC:
            return None
        text = value if text is None else text
        if not re.fullmatch(r"[0-9]+", text) or not minimum <= int(text) <= maximum:
            limits = f"from {minimum} to {maximum}" if maximum < 10**9 else f"of {minimum} or more"
            self._fail(cause, f"{name}={value!r} is not a whole number {limits}")
            return None
        return int(text)

    def _last_of_range(self, names: Sequence[str]) -> str:
        """Return MAX from torchrun's MIN:MAX, because an elastic job is expected to use the maximum."""
        return self._first(names)[1].rpartition(":")[2]

    def _first(self, names: Sequence[str]) -> tuple[str, str]:
        return next(
            ((name, self._variables[name].strip()) for name in names if self._variables.get(name)),
            (names[0], ""),
        )

    def _fail(self, cause: str, text: str) -> None:
        self.wrong.append(failed(cause, text))

    def _valid(self, node_rank: int | None, nodes: int | None, world: int | None, addr: str) -> Finding:
        if nodes is None:
            size = f"WORLD_SIZE={world} is not checked: " if world else ""
            return unknown("variables", f"{size}the number of nodes is unknown: set NNODES, or pass --nodes")
        size = f" of {nodes} nodes" + (f", WORLD_SIZE={world}" if world else "")
        return ok("variables", f"node rank {node_rank}{size}, rank 0 at {addr or 'this host'}")


def _torchruns_master(variables: Mapping[str, str]) -> dict[str, str]:
    """Return MASTER_ADDR and MASTER_PORT according to the variables that torchrun reads, or {}."""
    if not variables.get("PET_RDZV_BACKEND", "").startswith("etcd"):
        host, _, port = variables.get("PET_RDZV_ENDPOINT", "").rpartition(":")
        if host and port.isdigit():
            return {} if "$" in host else {"MASTER_ADDR": host.strip("[]"), "MASTER_PORT": port}
    host, port = variables.get("PET_MASTER_ADDR", ""), variables.get("PET_MASTER_PORT", "")
    if not host or "$" in host or "`" in host:
        return {}
    return {"MASTER_ADDR": host, **({"MASTER_PORT": port} if port else {})}


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
