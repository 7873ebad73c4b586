"""Start a cluster from a template, instead of creating it with kind.

The node containers are like those that kind creates. kubeadm creates new keys for each cluster. If the start
fails, kind creates the cluster instead.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shlex
import socket
import tarfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import yaml
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.context import RecordedContext
from harness.core import processes, proxies
from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError, WaitError
from harness.core.kubernetes import NOT_SERVED, Kube, Object
from harness.provision.controllers import install, tracker
from harness.provision.controllers.fast_start import quick
from harness.provision.controllers.readiness import SERVICE, serves
from harness.provision.images import unpacked
from harness.provision.images.containerd_import import LocalImage
from harness.provision.images.stack import Stack
from harness.provision.kind import template as templates
from harness.provision.kind.configuration import VOLUMES_MOUNT
from harness.provision.kind.nodes import KindNodes
from harness.provision.kind.preload import CompletedSteps
from harness.provision.kind.template import FILES, Template

CERTIFICATES = "harness.provision.controllers.certificates"
NETWORK = "KIND_EXPERIMENTAL_DOCKER_NETWORK"
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY")
DESKTOP = "Docker Desktop"
DNS_PODS = 2
SERVE_SECONDS, READY_SECONDS, POLL_SECONDS = 60, 60, 0.1
AS_KIND = shlex.split(
    "--privileged --security-opt seccomp=unconfined --security-opt apparmor=unconfined --tmpfs /tmp "
    "--tmpfs /run --volume /var --volume /lib/modules:/lib/modules:ro --detach --tty --restart=on-failure:1 "
    "--env KIND_EXPERIMENTAL_CONTAINERD_SNAPSHOTTER --init=false --cgroupns=private"
)
CLUSTER_LABEL, ROLE_LABEL = "io.x-k8s.kind.cluster", "io.x-k8s.kind.role"
_START_ERRORS = (HarnessError, ApiException, HTTPError, OSError, ValueError, KeyError, NOT_SERVED)


def rejection(kind: KindNodes, stack: Stack) -> str | None:
    """Return the reason why kind must create the cluster, or None if it can be started from a template.

    The reason is "" in common cases, which need not be reported to the user.
    """
    if kind.settings.fresh:
        return "as asked"
    if (
        stack.image_source != "source"
        or stack.mirrors
        or stack.containerd_patches
        or kind.settings.node_image
    ):
        return ""
    proxy_names = proxies.names(proxies.for_containers(processes.environment()))
    if any(name.upper() in PROXIES for name in proxy_names) or _docker_has_proxies():
        return "nodes get a proxy"
    info = processes.run(
        ["docker", "info", "--format", "{{.Driver}}\n{{json .SecurityOptions}}\n{{.OperatingSystem}}"],
        timeout=30,
        check=False,
    ).stdout
    return _unsupported_docker(info)


def _unsupported_docker(info: str) -> str | None:
    """Return why templates cannot be used with this Docker daemon, or None if they can be used.

    Templates need a Docker daemon that runs on this machine and uses overlayfs.
    """
    driver, options, system = [*info.splitlines(), "", "", ""][:3]
    if driver not in ("overlay2", "overlayfs") or "rootless" in options or "userns" in options:
        return f"Docker's storage driver is {driver}, and its security options are {options}"
    return f"Docker is {system}" if system == DESKTOP else None


def reason(error: Exception) -> str:
    """Return the last line of an error's message."""
    return (str(error).strip().splitlines() or ["no reason was given"])[-1]


def attempt(
    kind: KindNodes,
    template: Template,
    stack: Stack,
    own: tuple[LocalImage, LocalImage],
    context: RecordedContext,
) -> CompletedSteps | None:
    """Start the cluster from a template, and return the completed steps of the installation.

    If this fails, a progress message reports the reason, and None is returned.
    """
    if processes.run(["docker", "network", "inspect", _network()], timeout=30, check=False).returncode:
        return None  # kind creates the missing network together with its first cluster.
    kind.begin(stack.node_image, context)
    try:
        completed = _Copy(kind, template, stack, own, context).start()
    except _START_ERRORS as error:
        context.progress(
            f"cluster {kind.name}: creating it with kind, because it could not be started from its "
            f"template ({reason(error)})"
        )
        kind.export_logs(context.writer.path / "kind-copy")
        kind.delete()
        templates.record_result(template.image, context, well=False)
        return None
    except BaseException:
        context.progress(f"cluster {kind.name}: the creation ended early")
        if not kind.settings.keep_cluster:
            kind.delete()
        raise
    kind.created()
    templates.record_result(template.image, context, well=True)
    return completed


class _Copy:
    def __init__(
        self,
        kind: KindNodes,
        template: Template,
        stack: Stack,
        own: tuple[LocalImage, LocalImage],
        context: RecordedContext,
    ) -> None:
        self._kind, self._template, self._stack, self._context = kind, template, stack, context
        self._tracker = own[1]
        workers = kind.settings.workers
        self._head = f"{kind.name}-control-plane"
        self._workers = [
            f"{kind.name}-worker{number if number > 1 else ''}" for number in range(1, workers + 1)
        ]

    def start(self) -> CompletedSteps:
        """Start the cluster, and return once all nodes are Ready and the controllers are applied."""
        attempt, nodes = self._context.writer.attempt, [self._head, *self._workers]
        completed = CompletedSteps(images=True, prepared=True, copied=True)
        with ThreadPoolExecutor(len(nodes) + 2) as pool:
            with attempt("nodes to start"):
                images = unpacked.folder(self._context)
                addresses = dict(
                    zip(nodes, pool.map(lambda node: self._run(node, images), nodes), strict=True)
                )
                identities = self._identify(addresses)
            # The import takes half a second. It runs here, because this process is otherwise only waiting for
            # the nodes.
            pool.submit(import_module, CERTIFICATES)
            with attempt("API server to answer"):
                self._export_kubeconfig()
                kube = self._wait_served()
            extra_scripts = () if self._workers else ("alone.sh",)
            rules_future = pool.submit(_in_node, self._head, ("first.sh", *extra_scripts, "rules.sh"))
            with attempt("Deployments"):
                self._register(kube, nodes, closed=self._workers)
                join_futures = [pool.submit(self._join, node, identities) for node in self._workers]
                kube.apply(self._template.dns)
                install.certify(kube, self._stack.controllers)
                install.deploy(kube, self._stack.controllers, quick)
                completed.deployed = True
                if self._kind.settings.tracker == "embedded":
                    tracker.begin(kube, self._tracker.tag)
                    completed.tracker = True
                install.entrust(kube, self._stack.controllers, quick)
            objects = pool.submit(_in_node, self._head, ("objects.sh",))
            with attempt("CoreDNS to have its node"):
                with suppress(WaitError):
                    kube.wait("a node for CoreDNS", "v1", "Pod", _placed, seconds=10, namespace="kube-system")
                self._register(kube, self._workers, closed=())
            with attempt("nodes to be Ready"):
                for node in join_futures:
                    node.result()
                for each in (rules_future, objects):
                    each.result()
                self._kind.wait_ready(seconds=READY_SECONDS)
        return completed

    def _run(self, node: str, images: Path) -> str:
        """Start a container for a node, with the same options as kind, and return its IP address."""
        head, network = node == self._head, _network()
        role = "control-plane" if head else "worker"
        command = ["docker", "run", "--name", node, "--hostname", node, *AS_KIND, "--net", network]
        command += ["--label", f"{CLUSTER_LABEL}={self._kind.name}", "--label", f"{ROLE_LABEL}={role}"]
        command += [f"--volume={images}:{unpacked.MOUNT}:ro"]
        command += [f"--volume={self._kind.volumes.resolve()}:{VOLUMES_MOUNT}"]
        if head:
            port = self._kind.settings.api_port or _free_port()
            command += [f"--publish=127.0.0.1:{port}:6443/TCP"]
            command += ["--env", "KUBECONFIG=/etc/kubernetes/admin.conf"]
        processes.run([*command, self._template.image], timeout=120)
        networks = processes.run(
            ["docker", "inspect", "--format", "{{json .NetworkSettings.Networks}}", node], timeout=30
        ).stdout
        address: str = json.loads(networks)[network]["IPAddress"]
        if not address:
            raise HarnessError(f"node {node} has no IPv4 address in Docker's network {network}")
        return address

    def _identify(self, addresses: dict[str, str]) -> str:
        """Create the cluster's keys on the control plane, and start its kubelet.

        Return a base64-encoded tar archive with the files that the workers need.
        """
        files = {}
        for node, address in addresses.items():
            role = "control-plane" if node == self._head else "worker"
            text = configured(self._template.configurations[role], self._kind.name, node, self._head, address)
            files[f"{node}/kind/kubeadm.conf"] = (0o600, text)
            flags = f"--node-ip={address} --provider-id={_provider(self._kind.name, node)} --node-labels="
            files[f"{node}/var/lib/kubelet/kubeadm-flags.env"] = (0o644, f'KUBELET_KUBEADM_ARGS="{flags}"\n')
        return _in_node(self._head, ("identity.sh", "kubelet.sh"), packed(files))

    def _join(self, node: str, identities: str) -> None:
        _in_node(node, ("join.sh", "kubelet.sh", "rules.sh"), identities)

    def _register(self, kube: Kube, nodes: Sequence[str], closed: Sequence[str]) -> None:
        """Create or update Nodes with their pod CIDRs, before a worker registers itself.

        A node becomes Ready once it has a pod CIDR. The controller manager assigns CIDRs too, but it starts
        two seconds later, and it keeps a CIDR that is already set. No pods are scheduled on the nodes in
        `closed`. As a result, CoreDNS runs on the control plane and does not use the workers' resources. In a
        cluster that kind creates, CoreDNS runs there too, because the workers join later.
        """
        for number, node in enumerate([self._head, *self._workers]):
            if node not in nodes:
                continue
            network = f"10.244.{number}.0/24"
            spec: Object = {"podCIDR": network, "podCIDRs": [network]}
            spec["providerID"] = _provider(self._kind.name, node)
            if node in closed:
                spec["unschedulable"] = True
            kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": spec})

    def _export_kubeconfig(self) -> None:
        kind = self._kind
        export = ["export", "kubeconfig", "--name", kind.name, "--kubeconfig", str(kind.kubeconfig)]
        processes.run([kind.settings.kind_bin, *export], timeout=60)

    def _wait_served(self) -> Kube:
        """Wait until the API server accepts requests with the administrator's credentials, and return a
        client. Raises HarnessError after SERVE_SECONDS."""
        kube = Kube(self._kind.kubeconfig, self._kind.context)
        deadline = Deadline.after(SERVE_SECONDS)
        while True:
            try:
                if kube.fetch("/api/v1/namespaces/kube-system", seconds=2).status == 200:
                    kube.on_retry = self._context.writer.retry
                    return kube
            except (ApiException, HTTPError) as error:
                if deadline.passed:
                    raise HarnessError(
                        f"the API server was not ready after {SERVE_SECONDS} s: {error}"
                    ) from None
            time.sleep(POLL_SECONDS)


def _placed(pods: dict[str, Object]) -> str | None:
    """Return None if all CoreDNS pods have been assigned to a node, and otherwise a message with the number
    of assigned pods."""
    dns = [pod for name, pod in pods.items() if name.startswith("coredns-")]
    placed = [pod for pod in dns if pod["spec"].get("nodeName")]
    return (
        None
        if len(placed) >= DNS_PODS
        else f"{len(placed)} of {DNS_PODS} CoreDNS pods are assigned to a node"
    )


def wait_dns(kube: Kube, seconds: float = 60) -> None:
    """Wait until CoreDNS is ready, because a rank that starts earlier cannot resolve the other ranks' names.

    Raises WaitError.
    """

    def serving(slices: dict[str, Object]) -> str | None:
        dns = [
            each for each in slices.values() if each["metadata"].get("labels", {}).get(SERVICE) == "kube-dns"
        ]
        ready = any(serves(endpoint) for each in dns for endpoint in each.get("endpoints") or [])
        return None if ready else "the Service kube-dns has no ready endpoint"

    kube.wait(
        "CoreDNS",
        "discovery.k8s.io/v1",
        "EndpointSlice",
        serving,
        seconds=seconds,
        namespace="kube-system",
        cause="cluster.unhealthy",
    )


def configured(text: str, cluster: str, node: str, head: str, address: str) -> str:
    """Return a template's kubeadm.conf, adapted to the cluster, the node and the node's address."""
    documents = list(yaml.safe_load_all(text))
    for document in documents:
        if document["kind"] == "ClusterConfiguration":
            document |= {"clusterName": cluster, "controlPlaneEndpoint": f"{head}:6443"}
        for endpoint in (document, document.get("controlPlane") or {}):
            if "localAPIEndpoint" in endpoint:
                endpoint["localAPIEndpoint"]["advertiseAddress"] = address
        if "discovery" in document:
            document["discovery"]["bootstrapToken"]["apiServerEndpoint"] = f"{head}:6443"
        for argument in document.get("nodeRegistration", {}).get("kubeletExtraArgs", []):
            own = {"node-ip": address, "provider-id": _provider(cluster, node)}
            argument["value"] = own.get(argument["name"], argument["value"])
    return str(yaml.safe_dump_all(documents))


def packed(files: dict[str, tuple[int, str]]) -> str:
    """Return a base64-encoded tar archive of files. `files` maps a path to its mode and text."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, (mode, text) in files.items():
            entry = tarfile.TarInfo(path)
            content = text.encode()
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return base64.b64encode(buffer.getvalue()).decode()


def _in_node(node: str, scripts: Sequence[str], stdin: str = "") -> str:
    """Run scripts on a node, in order, and return their output."""
    text = "".join((FILES / name).read_text() for name in scripts)
    command = ["docker", "exec", "-i", node, "bash", "-c", text, scripts[0]]
    return processes.run(command, stdin=stdin, timeout=120).stdout


def _provider(cluster: str, node: str) -> str:
    return f"kind://docker/{cluster}/{node}"


def _network() -> str:
    return os.environ.get(NETWORK) or "kind"


def _free_port() -> int:
    """Return a port that is currently free.

    Like kind, the harness chooses the API server's port itself, because a port chosen by Docker would change
    each time the node starts.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _docker_has_proxies() -> bool:
    """Return whether Docker's client is configured to set proxy variables in containers."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        return bool(json.loads((folder / "config.json").read_text()).get("proxies"))
    except (OSError, ValueError, AttributeError):
        return False
