"""Create, check, reuse and delete the nodes of a kind cluster that the harness owns.

A state file, <state>/clusters/<name>/state.json, records each cluster that the harness creates. The file is
written before the cluster is created and removed after the cluster is deleted. The kubeconfig is in the same
folder. A cluster without a state file was not created by the harness, and is neither used nor deleted. The
user's own kubeconfig is never written.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core import processes, proxies
from harness.core.causes import CauseId
from harness.core.clock import CLOCK
from harness.core.errors import HarnessError, ToolError, UsageError
from harness.core.locks import LockHandle, acquire, in_use
from harness.provision.kind import docker_check
from harness.provision.kind.state import State, read, save
from harness.settings import Settings

# At run time, functions import these modules when needed, so that commands start fast
# (tests/unit/cli/test_startup.py).
if TYPE_CHECKING:
    from harness.context import RecordedContext
    from harness.core.kubernetes import Kube, Object

_CREATE_CAUSES: tuple[tuple[str, CauseId], ...] = (
    ("port is already allocated", "docker.port_taken"),
    ("address already in use", "docker.port_taken"),
    ("Cannot connect to the Docker daemon", "docker.daemon_down"),
    ("no space left on device", "docker.disk_full"),
    ("pull access denied", "cluster.node_image"),
    ("failed to pull image", "cluster.node_image"),
    ("No such image", "cluster.node_image"),
    ("already exist for a cluster with the name", "cluster.name_taken"),
)
_STOPPED = ("created", "exited", "dead", "removing")
"""The states of a container without processes. A container that was frozen with `docker pause` still has
processes."""


class KindNodes:
    """The nodes and the state file of a kind cluster, which is identified by name."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = settings.cluster_name
        self.dir = settings.state_dir / "clusters" / self.name
        self.kubeconfig = self.dir / "kubeconfig"
        self.context = f"kind-{self.name}"
        self.volumes = self.dir / "volumes"
        """The folder that all nodes share, mounted at configuration.VOLUMES_MOUNT."""
        self.lock = settings.state_dir / "clusters" / f"{self.name}.lock"
        """The path of the lock that a process holds while it creates or deletes the cluster, or installs
        components in it."""
        self._created_at = ""
        """The creation time of the cluster that this process uses, or "" before it is known."""
        self.users = settings.state_dir / "clusters" / f"{self.name}.users"
        """The path of the shared lock that each process holds while it uses the cluster."""

    # -- read and write the cluster's state ------------------------------------------------------------
    def state(self) -> State | None:
        """Return the content of the state file, or None if the harness created no cluster with this name."""
        return read(self.dir)

    def exists(self) -> bool:
        """Return whether Docker has nodes of a kind cluster with this name, even if the harness did not
        create the cluster."""
        return bool(self.nodes())

    def nodes(self) -> list[str]:
        """Return the names of the node containers, control plane first."""
        return list(self.running())

    def running(self) -> dict[str, bool]:
        """Return whether each node container is running, keyed by container name, control plane first."""
        result = processes.run(
            [
                "docker",
                "ps",
                "-a",
                "--filter",
                f"label=io.x-k8s.kind.cluster={self.name}",
                "--format",
                "{{.Names}} {{.State}}",
            ],
            timeout=30,
            hint="run `harness doctor` to find out what is wrong with Docker",
            cause="docker.daemon_down",
        )
        states = dict(line.split() for line in result.stdout.splitlines())
        ordered = sorted(states, key=lambda node: ("control-plane" not in node, node))
        return {node: states[node] not in _STOPPED for node in ordered}

    def used_from_now_on(self) -> None:
        """Store the cluster's creation time, so that `deleted` can detect a newer cluster with the same
        name."""
        state = self.state()
        self._created_at = state.created_at if state else ""

    def deleted(self) -> str | None:
        """Return a message if the cluster in use was deleted or replaced by a new one, and otherwise None.

        Also returns None if Docker does not respond.
        """
        try:
            nodes = self.nodes()
        except HarnessError:
            return None  # Docker does not respond.
        if not any("control-plane" in node for node in nodes):
            remaining = f" (remaining containers: {', '.join(nodes)})" if nodes else ""
            return f"Docker has no container for the control plane of cluster {self.name}{remaining}"
        state = self.state()
        if state is not None and self._created_at not in ("", state.created_at):
            return f"cluster {self.name} was replaced by a new cluster at {state.created_at}"
        return None

    def stopped(self) -> str | None:
        """Return a message if the control plane's container is stopped, and otherwise None.

        Also returns None if Docker does not respond.
        """
        try:
            running = self.running()
        except HarnessError:
            return None  # Docker does not respond.
        node = next((node for node, runs in running.items() if "control-plane" in node and not runs), None)
        if node is None:
            return None
        return f"the control plane's container {node} is stopped; `docker start {node}` starts it"

    def pools(self) -> list[str]:
        """Return the names of the nodes that accept pods: the workers, or the only node."""
        nodes = self.nodes()
        return nodes[1:] or nodes

    def kube(self) -> Kube:
        from harness.core.kubernetes import Kube

        return Kube(self.kubeconfig, self.context)

    def trouble(self, nodes: Sequence[str] | None = None) -> HarnessError | None:
        """Return an error with the reason why the cluster cannot be used, or None if it can be used.

        By default, `nodes` contains the nodes that Docker lists.
        """
        from harness.provision.kind import health

        state = self.state()
        expected = 0 if state is None else state.workers + 1
        node_names = self.nodes() if nodes is None else nodes
        return health.trouble(self.kubeconfig, self.context, node_names, expected)

    def healthy(self) -> bool:
        return self.trouble() is None

    # -- create and delete the nodes -------------------------------------------------------------------
    def refuse_foreign(self) -> None:
        """Raise UsageError if a cluster with this name exists that the harness did not create."""
        if self.state() is None and self.exists():
            raise UsageError(
                f"a kind cluster named {self.name!r} already exists, but the harness did not create it",
                hint="choose another name with --cluster-name, or delete this cluster: "
                f"kind delete cluster --name {self.name}",
                cause="cluster.name_taken",
            )

    def create(
        self,
        node_image: str,
        containerd_patches: tuple[str, ...],
        context: RecordedContext,
    ) -> None:
        """Create the nodes and wait until all are Ready. On failure, kind's logs are kept."""
        import yaml

        from harness.provision.images import unpacked
        from harness.provision.kind.configuration import configuration

        progress, logs = context.progress, context.writer.path / "kind"
        if removed := proxies.unreachable_from_containers(processes.environment()):
            names = ", ".join(removed)
            progress(
                f"the nodes do not use a proxy, because they cannot reach the loopback address in {names}"
            )
        self.begin(node_image, context)
        images = unpacked.mountable(node_image, context)
        config = self.dir / "kind.yaml"
        config.write_text(
            yaml.safe_dump(configuration(self.settings, node_image, containerd_patches, images, self.volumes))
        )
        try:
            command = ["create", "cluster", "--name", self.name, "--config", str(config), "--retain"]
            command += ["--kubeconfig", str(self.kubeconfig), "--wait", "180s"]
            self._kind(command, timeout=self.settings.create_seconds)
            self.wait_ready(seconds=120)
        except BaseException as error:
            progress(f"cluster {self.name}: the creation ended early; keeping the nodes' logs")
            self.export_logs(logs)
            if isinstance(error, ToolError):
                (logs / "create.log").write_text(error.output)
            if not self.settings.keep_cluster:
                progress(f"deleting cluster {self.name}")
                self.delete()
            if isinstance(error, ToolError):
                causes = [cause for text, cause in _CREATE_CAUSES if text in error.output]
                cause = causes[0] if causes else "cluster.create_failed"
                hint = f"read kind's logs in {logs}"
                if "too many open files" in error.output:
                    hint = f"raise the inotify limits that `harness doctor` shows; {hint}"
                raise HarnessError(_failure_message(error), hint=hint, cause=cause) from None
            raise
        self.created()

    def begin(self, node_image: str, context: RecordedContext) -> None:
        """Check the requirements of a new cluster, remove the leftovers of an old one, and write the state
        file."""
        self.refuse_foreign()
        docker_check.check_disk_space(self.settings)
        docker_check.port(self.settings)
        if self.exists():
            context.progress(f"removing the remains of cluster {self.name}")
            self.delete()
        self.dir.mkdir(parents=True, exist_ok=True)
        self.volumes.mkdir(parents=True, exist_ok=True)
        now = CLOCK.utc().isoformat(timespec="seconds")
        self.save(State(self.name, "creating", node_image, self.settings.workers, now, owner=context.nonce))

    def created(self) -> None:
        """Record in the state file that the nodes are Ready."""
        state = self.state()
        assert state is not None
        self.save(replace(state, phase="created"))

    def wait_ready(self, *, seconds: float) -> None:
        """Wait until all nodes are Ready. Raises WaitError (cause cluster.nodes_not_ready)."""
        from harness.core.kubernetes import condition

        count = self.settings.workers + 1

        def done(nodes: dict[str, Object]) -> str | None:
            not_ready = [
                name for name, node in nodes.items() if condition(node, "Ready").get("status") != "True"
            ]
            message = f"{len(nodes)} of {count} nodes, not Ready: {not_ready}"
            return None if len(nodes) == count and not not_ready else message

        self.kube().wait(
            f"{count} nodes Ready", "v1", "Node", done, seconds=seconds, cause="cluster.nodes_not_ready"
        )

    def delete(self) -> bool:
        """Remove the cluster and its state. Return False if the harness did not create this cluster."""
        if self.state() is None:
            return False
        self.remove_volumes()
        for attempt in range(3):
            result = processes.run(
                [
                    self.settings.kind_bin,
                    "delete",
                    "cluster",
                    "--name",
                    self.name,
                    "--kubeconfig",
                    str(self.kubeconfig),
                ],
                timeout=120,
                check=attempt == 2,
                cause="cluster.delete_failed",
            )
            # The deletion is repeated, because an interrupted creation can still add a container.
            if result.returncode == 0 and not self.exists():
                break
        shutil.rmtree(self.dir, ignore_errors=True)
        return True

    def remove_volumes(self, name: str = "") -> None:
        """Remove the shared folder `name`, or all shared folders if `name` is empty.

        The first node removes the files as root, because pods may have written them as another user.
        """
        from harness.provision.kind.configuration import VOLUMES_MOUNT

        folders = sorted(self.volumes.glob("*")) if not name else [self.volumes / name]
        if any(folder.exists() for folder in folders):
            paths = [f"{VOLUMES_MOUNT}/{folder.name}" for folder in folders]
            for node in self.nodes()[:1]:
                processes.run(["docker", "exec", node, "rm", "-rf", *paths], timeout=60, check=False)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    # -- processes that use the cluster ----------------------------------------------------------------
    def use(self) -> LockHandle:
        """Mark the cluster as in use.

        Until the returned lock is released, other processes can remove the cluster only with `harness down`.
        The caller must hold `lock`.
        """
        return acquire(self.users, shared=True)

    def used(self) -> bool:
        """Return whether any process, including this one, uses the cluster."""
        return in_use(self.users)

    def abandoned(self) -> bool:
        """Return whether a killed run left the cluster behind: the cluster exists, is not marked as kept, and
        no process uses it. The caller must hold `lock`.
        """
        state = self.state()
        return state is not None and not state.kept and not self.used()

    def keep(self) -> None:
        """Mark the cluster as kept, so that only `harness down` removes it."""
        state = self.state()
        if state is not None and not state.kept:
            self.save(replace(state, kept=True))

    def export_logs(self, folder: Path) -> None:
        """Export the logs of the nodes as evidence.

        If kind fails, write the reason to a file instead of raising an error.
        """
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._kind(["export", "logs", "--name", self.name, str(folder)], timeout=120)
        except HarnessError as error:
            (folder / "export-failed.txt").write_text(str(error))

    def save(self, state: State) -> None:
        save(self.dir, state)

    def _kind(self, arguments: list[str], timeout: float) -> None:
        env = proxies.for_containers(processes.environment())
        processes.run([self.settings.kind_bin, *arguments], timeout=timeout, env=env)


def _failure_message(error: ToolError) -> str:
    """Return a message with kind's exit code and the line in which kind printed its error, or kind's last
    line if there is no such line."""
    lines = [line.strip() for line in error.output.splitlines() if line.strip()]
    last = lines[-1] if lines else "no output"
    reason = next((line for line in lines if line.startswith("ERROR")), last)
    code = error.returncode
    exit_status = f"exit code {code}" if code >= -1 else f"killed by signal {-code}"
    return f"kind could not create the cluster ({exit_status}): {reason}"
