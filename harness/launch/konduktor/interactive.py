"""Run the pinned version of konduktor interactively, on a harness cluster and in a launch's namespace."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from harness.context import RunContext
from harness.core.errors import UsageError
from harness.core.kubernetes import Kube, reached
from harness.core.processes import environment
from harness.launch.konduktor.kubeconfig import for_launch
from harness.launch.namespaces import of_launches
from harness.provision.kind.nodes import KindNodes
from harness.provision.konduktor import konduktor_bin


def command(kind: KindNodes, namespace: str | None, context: RunContext) -> tuple[Path, dict[str, str]]:
    """Return konduktor's executable and its environment.

    HOME is a separate folder for each cluster. Raises UsageError if the harness has no such cluster, or if
    the cluster has no such namespace.
    """
    if kind.state() is None:
        raise UsageError(
            f"the harness has no cluster {kind.name}",
            hint="create it with `harness up --logs`, or select another cluster with --cluster-name",
        )
    home = kind.dir / "konduktor"
    kubeconfig = home / "kubeconfig"
    schemas = home / ".konduktor" / "schemas"
    schemas.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    (schemas / "podspec.json").write_text("{}")  # Otherwise, konduktor downloads this schema.
    with reached():
        kube = kind.kube()
        document = for_launch(kube, _namespace(kube, namespace))
    kubeconfig.touch(mode=0o600)
    kubeconfig.write_text(yaml.safe_dump(document))
    own = {
        "HOME": str(home),
        "USER": os.environ.get("USER") or "harness",
        "KUBECONFIG": str(kubeconfig),
        "KONDUKTOR_SKIP_IMAGE_CHECK": "1",
        "KONDUKTOR_DISABLE_USAGE_COLLECTION": "1",
    }
    # The library `requests` would use these variables instead of the certificate authority in the kubeconfig.
    return konduktor_bin(context), environment(own, without=("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))


def _namespace(kube: Kube, requested: str | None) -> str:
    """Return the namespace for konduktor.

    This is `requested` if it is set, otherwise the namespace of the newest launch. If there is no launch, it
    is "default". Raises UsageError if the cluster has no namespace `requested`.
    """
    if requested is None:
        launches = sorted(of_launches(kube), key=lambda item: str(item["metadata"]["creationTimestamp"]))
        return str(launches[-1]["metadata"]["name"]) if launches else "default"
    if kube.get("v1", "Namespace", requested) is None:
        raise UsageError(
            f"the cluster has no namespace {requested}",
            hint="`harness status` shows the namespace of each launch",
        )
    return requested
