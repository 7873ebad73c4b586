"""Stop a cluster's nodes, and start them again with their contents."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from harness.core import processes
from harness.core.clock import CLOCK
from harness.core.errors import UsageError
from harness.provision.kind.nodes import KindNodes

if TYPE_CHECKING:
    from harness.core.kubernetes import Object

STOP_SECONDS = 2
"""The timeout of `docker stop`, in seconds. A longer timeout would not help: systemd did not shut down within
30 s, the longest timeout that was tested. Killing the nodes loses no data, because etcd has stored every
write that it acknowledged, and the pods' files are kept.
"""
SERVE_SECONDS = 120
STARTING_SECONDS = 180
"""The maximum number of seconds to wait until a cluster is ready after Docker or the machine has restarted
its nodes."""
FIRST_START = timedelta(seconds=30)
"""If more than this time passes between a container's creation and its start, the container was restarted."""
CAUSE: Final = "cluster.unhealthy"


def paused(kind: KindNodes) -> bool:
    """Return whether the cluster has nodes and all of them are stopped."""
    return stopped(kind.running())


def stopped(running: Mapping[str, bool]) -> bool:
    """Return whether a cluster has nodes and none of them is running.

    `running` maps each node's name to whether the node is running.
    """
    return bool(running) and not any(running.values())


def pause(kind: KindNodes) -> bool:
    """Stop all nodes. Return False if all are already stopped.

    Raises UsageError if the cluster was not created by the harness or is in use.
    """
    owned(kind)
    if kind.used():
        raise UsageError(
            f"cluster {kind.name} is in use by another harness process",
            hint="wait until the other process ends",
        )
    if paused(kind):
        return False
    nodes = kind.nodes()
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(_stop, nodes))
    return True


def restarted(kind: KindNodes) -> datetime | None:
    """Return the time at which the first of the nodes was restarted.

    Returns None unless all nodes were restarted recently.
    """
    command = ["docker", "inspect", "--format", "{{.Created}} {{.State.StartedAt}}", *kind.nodes()]
    lines = processes.run(command, timeout=30, cause="docker.daemon_down").stdout.splitlines()
    times = [[datetime.fromisoformat(f"{each[:19]}+00:00") for each in line.split()] for line in lines]
    recent = CLOCK.utc() - timedelta(seconds=STARTING_SECONDS)
    if not times or any(
        started_at < max(recent, created_at + FIRST_START) for created_at, started_at in times
    ):
        return None
    return min(started_at for _, started_at in times)


def resume(kind: KindNodes) -> None:
    """Start all nodes and wait until they are Ready."""
    nodes = kind.nodes()
    started_at = CLOCK.utc()
    for node in nodes:  # Start in the order of creation, so that each node gets its former address again.
        processes.run(["docker", "start", node], timeout=60, cause=CAUSE)

    def done(nodes: dict[str, Object]) -> str | None:
        not_ready = [name for name, node in nodes.items() if not _ready_since(node, started_at)]
        return f"nodes that are not Ready yet: {', '.join(not_ready)}" if not_ready else None

    kind.kube().wait(
        "nodes Ready again", "v1", "Node", done, seconds=SERVE_SECONDS, cause="cluster.nodes_not_ready"
    )


def owned(kind: KindNodes) -> None:
    """Raise UsageError if the harness created no cluster with this name."""
    if kind.state() is None or not kind.exists():
        raise UsageError(
            f"the harness has no cluster {kind.name}", hint="create the cluster with `harness up`"
        )


def _stop(node: str) -> None:
    processes.run(
        ["docker", "stop", "--time", str(STOP_SECONDS), node], timeout=STOP_SECONDS + 30, cause=CAUSE
    )


def _ready_since(node: Object, started_at: datetime) -> bool:
    """Return whether a node has reported that it is Ready since it was last started.

    Earlier reports do not count. API timestamps have a resolution of one second.
    """
    from harness.core.kubernetes import condition

    ready = condition(node, "Ready")
    heartbeat = datetime.fromisoformat(ready.get("lastHeartbeatTime", "1970-01-01T00:00:00Z"))
    return ready.get("status") == "True" and heartbeat >= started_at.replace(microsecond=0)
