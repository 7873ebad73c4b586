"""Find out what uses the most space on a full disk, and which commands free that space."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from harness.core import disk_use, processes
from harness.evidence.schema.bundle import DiskUse
from harness.provision.kind import pod_disk_use
from harness.provision.kind.cluster import KindCluster
from harness.settings import Settings

FULL = frozenset({"docker.disk_full", "run.evidence_disk_full"})
"""The error causes that indicate a full disk on this machine."""
LARGEST = 5
_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def largest(settings: Settings) -> list[DiskUse]:
    """Return the largest users of disk space, largest first.

    A query that fails is skipped, because many queries fail on a full disk.
    """
    uses: list[DiskUse] = []
    sources: list[Callable[[Settings], Iterator[DiskUse]]] = [_pods, _folders, _docker]
    for source in sources:
        try:
            uses += source(settings)
        except Exception:  # noqa: S112 - a failed query must not prevent the verdict
            continue
    return sorted((use for use in uses if use.bytes), key=lambda use: -use.bytes)[:LARGEST]


def _pods(settings: Settings) -> Iterator[DiskUse]:
    """Yield the disk usage of the pods in each cluster that the harness created on this machine."""
    for state in (settings.state_dir / "clusters").glob("*/state.json"):
        kind = KindCluster(settings.model_copy(update={"cluster_name": state.parent.name}))
        for pod in pod_disk_use.pods(kind.kube()):
            status = "which has ended" if pod.ended else "which is still running"
            yield DiskUse(
                what=f"pod {pod.namespace}/{pod.name} of cluster {kind.name}, {status}",
                bytes=pod.bytes,
                command=f"kubectl --kubeconfig {shlex.quote(str(kind.kubeconfig))} "
                f"delete pod -n {pod.namespace} {pod.name}",
            )


def _folders(settings: Settings) -> Iterator[DiskUse]:
    cache, runs = settings.cache_dir.absolute(), settings.runs_dir.absolute()
    description = f"the cache {cache}, which the harness refills when needed"
    yield DiskUse(
        what=description, bytes=disk_use.bytes_used(cache), command=f"rm -r {shlex.quote(str(cache))}"
    )
    prune = f"harness runs --prune last:5 --runs-dir {shlex.quote(str(runs))}"
    yield DiskUse(what=f"bundles in {runs}", bytes=disk_use.bytes_used(runs), command=prune)


def _docker(_settings: Settings) -> Iterator[DiskUse]:
    """Yield the space that Docker could free, from `docker system df`."""
    commands = {
        "Images": "docker image prune --all",
        "Containers": "docker container prune",
        "Local Volumes": "docker volume prune",
        "Build Cache": "docker builder prune",
    }
    output = processes.run(
        ["docker", "system", "df", "--format", "{{.Type}}\t{{.Reclaimable}}"], timeout=60
    ).stdout
    for line in output.splitlines():
        kind, _, free = line.partition("\t")
        if kind in commands:
            description = f"unused {kind.lower()} of Docker"
            yield DiskUse(what=description, bytes=size(free), command=commands[kind])


def size(text: str) -> int:
    """Parse a size in Docker's format, such as "6.451GB (100%)", and return it in bytes."""
    amount = text.partition(" ")[0]
    number = amount.rstrip("BkMGT")
    return int(float(number) * _UNITS[amount.removeprefix(number)])
