"""Run the controller: `python -m harness.torchrun_controller`. In a pod, no options are required."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import tempfile
import threading
import uuid
from pathlib import Path

import yaml

from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Kube
from harness.torchrun_controller.runtime import logging_setup
from harness.torchrun_controller.runtime.caches import Caches
from harness.torchrun_controller.runtime.executor import Cluster
from harness.torchrun_controller.runtime.http import Health, Server
from harness.torchrun_controller.runtime.lease import Lease
from harness.torchrun_controller.runtime.metrics import Metrics
from harness.torchrun_controller.runtime.operator import Operator
from harness.torchrun_controller.runtime.reconcile import Reconciler

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def own_kubeconfig(folder: Path) -> Path:
    """Write a kubeconfig for the pod's service account and return its path.

    Raises HarnessError if this process does not run in a pod with a service account.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not (ACCOUNT / "token").exists():
        raise HarnessError(
            "expected a kubeconfig or a pod with a service account, but found neither",
            hint="--kubeconfig FILE",
            cause="cluster.kubeconfig",
        )
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "pod",
        "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
        "clusters": [
            {"name": "pod", "cluster": {"server": server, "certificate-authority": str(ACCOUNT / "ca.crt")}}
        ],
        "users": [{"name": "pod", "user": {"tokenFile": str(ACCOUNT / "token")}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m harness.torchrun_controller", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, help="kubeconfig, which is required outside the cluster")
    parser.add_argument("--context", help="context in the kubeconfig")
    parser.add_argument("--namespace", help="watch only this namespace")
    parser.add_argument(
        "--lease-namespace", help="namespace of the Lease (default: the pod's namespace, or torchrun-system)"
    )
    parser.add_argument(
        "--cluster-queue",
        default="cluster-queue",
        help="ClusterQueue for TorchrunQueues that do not specify one",
    )
    parser.add_argument(
        "--gang", choices=["kueue", "kai"], default="kueue", help="component that admits a job's pods"
    )
    parser.add_argument("--log-format", choices=["text", "json"], default="text")
    parser.add_argument("--port", type=int, default=0, help="port for /metrics, /healthz and /readyz")
    return parser.parse_args(arguments)


def lease_namespace(configured: str | None) -> str:
    """Return the namespace of the Lease.

    This is `configured` if it is set, and otherwise the pod's namespace. Outside a pod, it is
    torchrun-system.
    """
    own = ACCOUNT / "namespace"
    return configured or (own.read_text().strip() if own.exists() else "torchrun-system")


def main(arguments: list[str] | None = None) -> int:
    """Run the controller and return the exit code.

    The exit code is 0 after a signal, 1 if leadership was lost, and 2 if the cluster or the port is
    unavailable.
    """
    args = options(sys.argv[1:] if arguments is None else arguments)
    logging_setup.setup(args.log_format)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="torchrun-controller-") as folder:
        try:
            path = args.kubeconfig or own_kubeconfig(Path(folder))
            kube = Kube(path, args.context, cache=Path(folder) / "discovery.json")
            health, metrics = Health(), Metrics()
            if args.port:
                serve(args.port, health, metrics)
        except HarnessError as error:
            print(f"torchrun-controller: {error}", file=sys.stderr)
            return 2
        kube.on_response = metrics.record_response
        return _lead(args, kube, stop, health, metrics)


def serve(port: int, health: Health, metrics: Metrics) -> None:
    """Serve metrics and probes. Raises UsageError if the port cannot be bound."""
    try:
        Server(port, health, metrics.registry).start()
    except (OSError, OverflowError) as error:
        message = f"expected a free port, but {port} cannot be bound: {error}"
        raise UsageError(message, hint="--port") from None


def keep_leadership(lease: Lease, stop: threading.Event, lost: threading.Event) -> None:
    """Renew the Lease until `stop` is set. If the Lease is lost or an error is raised, set `lost` and `stop`.

    A controller that no longer renews its Lease must not continue to run next to the new leader.
    """
    try:
        lease.renew(stop)
    finally:
        if not stop.is_set():
            lost.set()
            stop.set()


def _lead(
    args: argparse.Namespace, kube: Kube, stop: threading.Event, health: Health, metrics: Metrics
) -> int:
    """Wait for the Lease, and reconcile objects as long as this process holds it. Return the exit code."""
    leadership_lost, watching = threading.Event(), threading.Event()

    def on_attempt(succeeded: bool) -> None:
        health.moves("lease")
        # A standby is ready as soon as it can take over. The leader is ready once its caches are synced.
        if succeeded and (not metrics.leads or watching.is_set()):
            health.ready.set()

    identity = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    namespace = lease_namespace(args.lease_namespace)
    lease = Lease(kube, namespace, "torchrun-controller", identity, on_attempt=on_attempt)
    if not lease.acquire(stop):
        return 0
    metrics.leads = True
    health.ready.clear()

    def renew() -> None:
        try:
            keep_leadership(lease, stop, leadership_lost)
        finally:
            metrics.leads = False

    renewal = threading.Thread(target=renew, name="lease", daemon=True)
    renewal.start()
    kai = args.gang == "kai"
    cluster = Cluster(kube, kai=kai)
    reconciler = Reconciler(cluster, Caches(kai=kai), args.cluster_queue, metrics=metrics)
    operator = Operator(reconciler, args.namespace, lambda: health.moves("event loop"))
    asyncio.run(operator.run(stop, watching))
    stop.set()
    renewal.join(timeout=30)
    return 1 if leadership_lost.is_set() else 0


if __name__ == "__main__":
    sys.exit(main())
