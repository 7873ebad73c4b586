"""Determine the number of ranks per pod from the command line, the environment, or torchrun's log."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.attach import pod_variables
from harness.core.input_limits import MAX_PROCESSES
from harness.core.kubernetes import Object
from harness.evidence.kubernetes.objects import container_of, items, mapping
from harness.evidence.torchrun_logs import LoggedRanks

_PER_NODE = re.compile(r"--nproc[-_]per[-_]node(?:=|\s+)[\"']?([^\s\"']+)")
_NODES = re.compile(r"--nnodes(?:=|\s+)[\"']?([^\s\"']+)")
_PROCESSES = re.compile(r"--num[-_]processes(?:=|\s+)[\"']?([^\s\"']+)")
_TORCHRUN = re.compile(r"(?:^|[\s/;&|(])torchrun(?:\s|$)|-m\s+torch\.distributed\.(?:run|launch)\b")
_ACCELERATE = re.compile(r"(?:^|[\s/;&|(])accelerate\s+launch\b")
_OTHER = re.compile(r"(?:^|[\s/;&|(])(mpirun|mpiexec|horovodrun|deepspeed)\s")
_REPORTED = re.compile(rb"\brank\s*:\s*(\d{1,18}) \(local_rank: (\d{1,18})\)")
"""Pattern for a line about a failed worker in torchrun's failure report, which lists the workers of one
pod."""
_GPU = re.compile(r"^[\w.-]+/(gpu|mig-.+)$")


@dataclass(frozen=True)
class RankCount:
    """The number of ranks per pod, or None if it is unknown.

    `source` describes where the number comes from, or why it is unknown.
    """

    per_pod: int | None
    source: str


def of_pod(spec: Object, container: str, nodes: int) -> RankCount:
    """Return the number of ranks per pod according to a pod spec. The job has `nodes` such pods."""
    own = container_of(spec, container)
    text = pod_variables.command(own)
    env = pod_variables.of_container(own)
    gpus = _gpus(own)
    if match := _PER_NODE.search(text):
        return _of_option(match[1], env, gpus, "--nproc-per-node of its command")
    if value := env.get("PET_NPROC_PER_NODE"):
        return _of_option(value, env, gpus, "PET_NPROC_PER_NODE in its environment")
    if _TORCHRUN.search(text):
        return RankCount(1, "torchrun without --nproc-per-node, which starts one rank in each pod")
    return _without_torchrun(text, env, nodes)


def nodes_of_pod(spec: Object) -> int | None:
    """Return the number of pods in the job to which a pod with this spec belongs, or None if it is not known.

    The number is the value of --nnodes or PET_NNODES, or the minimum of a MIN:MAX range. If the pod does not
    run torchrun and sets RANK for a single process, the number is WORLD_SIZE.
    """
    for own in items(spec, "containers"):
        text, env = pod_variables.command(own), pod_variables.of_container(own)
        match = _NODES.search(text)
        value = match[1] if match else env.get("PET_NNODES", "")
        if not value and "RANK" in env and "LOCAL_RANK" not in env and not _TORCHRUN.search(text):
            value = env.get("WORLD_SIZE", "")
        number = _number(pod_variables.expanded(value, env).partition(":")[0], env)
        if number is not None:
            return number
    return None


def _without_torchrun(text: str, env: Mapping[str, str], nodes: int) -> RankCount:
    """Return the number of ranks per pod for pods that do not run torchrun."""
    if _ACCELERATE.search(text) and (match := _PROCESSES.search(text)):
        return _divided(_number(match[1], env), nodes, "--num_processes of accelerate launch")
    if other := _OTHER.search(text):
        return RankCount(None, f"{other[1]} decides it")
    if size := pod_variables.assigned(text).get("WORLD_SIZE"):
        return _divided(_number(size, env), nodes, f"WORLD_SIZE={size} in its command")
    if "WORLD_SIZE" in env:
        source = f"WORLD_SIZE={env['WORLD_SIZE']} in its environment"
        return _divided(_number(env["WORLD_SIZE"], env), nodes, source)
    return RankCount(None, "neither its command nor its environment has --nproc-per-node or WORLD_SIZE")


def launched(pod: Object, container: str) -> bool:
    """Return whether a launcher such as torchrun assigns the ranks in the container."""
    own = container_of(mapping(pod, "spec"), container)
    text = pod_variables.command(own)
    return any(pattern.search(text) for pattern in (_TORCHRUN, _ACCELERATE, _OTHER, _PER_NODE))


def _of_option(text: str, env: Mapping[str, str], gpus: int, source: str) -> RankCount:
    value = pod_variables.expanded(text, env)
    if value in ("gpu", "auto") and gpus:
        return RankCount(gpus, f"{source} ({value}) and the {gpus} GPUs of each pod")
    number = _number(text, env)
    if number is None:
        return RankCount(None, f"{source} is {text}, whose value is not in the pod's spec")
    return RankCount(number, f"{source} ({number})")


def _divided(total: int | None, nodes: int, source: str) -> RankCount:
    if total is None or nodes < 1 or total % nodes:
        return RankCount(None, f"{source} cannot be divided evenly among {nodes} pods")
    return RankCount(total // nodes, source)


def _number(text: str, env: Mapping[str, str]) -> int | None:
    value = pod_variables.expanded(text, env)
    return int(value) if value.isdecimal() and 0 < int(value[:9]) <= MAX_PROCESSES * 100 else None


def _gpus(container: Object) -> int:
    limits = mapping(container, "resources", "limits")
    counts = [str(value) for name, value in limits.items() if _GPU.match(name)]
    return sum(int(count) for count in counts if count.isdecimal())


def reported(log: Iterable[bytes], per_pod: int) -> int | None:
    """Return the pod's position in the rank order according to torchrun's last failure report, or None.

    With c10d, the rank order can differ from the pod order. `log` yields the lines of the pod's log, and
    `per_pod` is the number of ranks per pod.
    """
    last_pair: tuple[int, int] | None = None
    for line in log:
        for rank, local in _REPORTED.findall(line):
            last_pair = int(rank), int(local)
    if last_pair is None or (last_pair[0] - last_pair[1]) % per_pod:
        return None
    return (last_pair[0] - last_pair[1]) // per_pod


def whole_order(positions: Mapping[int, int], nodes: int) -> dict[int, int] | None:
    """Return each pod's position in the rank order, keyed by pod index.

    `positions` contains the positions found in logs. The other pods get the remaining positions in ascending
    order. Returns None if each pod's position is its index, or if the known positions contradict each other.
    """
    places = set(positions.values())
    if len(places) < len(positions) or not places <= set(range(nodes)):
        return None  # The logs contradict each other.
    free = iter(sorted(set(range(nodes)) - places))
    order = {index: positions.get(index, -1) for index in range(nodes)}
    order = {index: next(free) if place < 0 else place for index, place in order.items()}
    return None if all(index == place for index, place in order.items()) else order


def agreed(
    logs: Mapping[str, LoggedRanks], nodes: int, source: str = "the log of torchrun"
) -> RankCount | None:
    """Return the number of ranks per pod, or None if the pods' logs do not agree on it.

    The logs agree if they contain the same world size, and the same number of ranks for each pod. `source` is
    a description of the logs.
    """
    worlds = {each.world for each in logs.values()}
    ranks = sorted(rank for each in logs.values() for rank in each.ranks)
    sizes = {len(each.ranks) for each in logs.values()}
    if len(logs) != nodes or len(worlds) != 1 or len(sizes) != 1 or ranks != list(range(max(worlds))):
        return None
    return RankCount(min(sizes), source)
