"""The controller as a program: `python -m harness.torchrun_controller`. In a pod it needs no option."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import uuid
from pathlib import Path

import yaml

from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube
from harness.torchrun_controller.cluster import Cluster
from harness.torchrun_controller.lease import Lease
from harness.torchrun_controller.operator import Operator
from harness.torchrun_controller.reconcile import Reconciler

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
log = logging.getLogger("harness.torchrun_controller")


def own_kubeconfig(folder: Path) -> Path:
    """Write the kubeconfig of the pod's service account. Raises HarnessError outside of a pod."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not (ACCOUNT / "token").exists():
        raise HarnessError(
            "expected a kubeconfig, or a pod with a service account; seen neither",
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
    parser.add_argument("--kubeconfig", type=Path, help="reach the cluster by this file, from outside")
    parser.add_argument("--context", help="context in the kubeconfig")
    parser.add_argument("--namespace", help="watch this namespace alone")
    parser.add_argument("--lease-namespace", default="torchrun-system", help="where its Lease is")
    parser.add_argument("--cluster-queue", default="cluster-queue", help="of queues that name none")
    parser.add_argument("--gang", choices=["kueue", "kai"], default="kueue", help="who admits pods together")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run until a signal comes (0), or until leadership is lost (1)."""
    asked = options(sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # a line for each event says nothing
    stop, lost = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="torchrun-controller-") as folder:
        try:
            path = asked.kubeconfig or own_kubeconfig(Path(folder))
            kube = Kube(path, asked.context, cache=Path(folder) / "discovery.json")
        except HarnessError as error:
            print(f"torchrun-controller: {error}", file=sys.stderr)
            return 2
        identity = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        lease = Lease(kube, asked.lease_namespace, "torchrun-controller", identity)
        if not lease.acquire(stop):
            return 0

        def keep() -> None:
            lease.keep(stop)
            if not stop.is_set():
                lost.set()
                stop.set()

        keeper = threading.Thread(target=keep, name="lease", daemon=True)
        keeper.start()
        cluster = Cluster(kube, kai=asked.gang == "kai")
        operator = Operator(Reconciler(cluster, asked.cluster_queue), asked.namespace)
        asyncio.run(operator.run(stop))
        stop.set()
        keeper.join(timeout=30)
    return 1 if lost.is_set() else 0


if __name__ == "__main__":
    sys.exit(main())
