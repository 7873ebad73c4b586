"""What a pod template names: classes and service accounts are looked up, and pull Secrets are copied."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.launch.pods import references

CONFIG = """
apiVersion: v1
kind: Config
current-context: a
contexts:
- {name: a, context: {cluster: c, user: u, namespace: team}}
clusters: []
users: []
"""
DATA = base64.b64encode(b"a-password").decode()


class Cluster:
    """A cluster with one class of each kind, and one pull Secret in the kubeconfig's namespace."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig, self.context = folder / "kubeconfig", "a"
        self.kubeconfig.write_text(CONFIG)

    def get(self, _: str, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        """Return an object."""
        if kind == "Secret" and (namespace, name) == ("team", "regcred"):
            return {"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": DATA}}
        known = {"PriorityClass": "high", "RuntimeClass": "nvidia"}
        return {"metadata": {"name": name}} if known.get(kind) == name else None

    def objects(self, _: str, kind: str) -> list[dict[str, Any]]:
        """Return all objects of a kind."""
        return [{"metadata": {"name": {"PriorityClass": "high", "RuntimeClass": "nvidia"}[kind]}}]


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    return Cluster(tmp_path)


@pytest.mark.parametrize(
    "pod",
    [
        {},
        {"priorityClassName": "high", "runtimeClassName": "nvidia", "serviceAccountName": "default"},
        {"serviceAccountName": "trainer"},
    ],
)
def test_what_the_cluster_or_the_file_has_is_taken(cluster: Any, pod: dict[str, Any]) -> None:
    references.check(cluster, pod, [{"kind": "ServiceAccount", "metadata": {"name": "trainer"}}])


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (
            {"priorityClassName": "higher"},
            "priorityClassName higher: the cluster has no .*; existing ones: high",
        ),
        (
            {"runtimeClassName": "nvidai"},
            "runtimeClassName nvidai: the cluster has no .*; existing ones: nvidia",
        ),
        (
            {"serviceAccountName": "trainer"},
            "serviceAccountName trainer: each launch runs in a new namespace",
        ),
    ],
)
def test_what_the_cluster_lacks_is_refused(cluster: Any, pod: dict[str, Any], message: str) -> None:
    """Contract: the error names the field, what was found, and what the cluster has."""
    with pytest.raises(UsageError, match=message):
        references.check(cluster, pod, [])


def test_a_pull_secret_is_copied_from_the_kubeconfig_namespace(cluster: Any) -> None:
    """Contract: with its type, and its value in no text. The launch's own Secrets are not looked up."""
    named = {"imagePullSecrets": [{"name": "regcred"}, {"name": "ours"}, {"name": "beside"}]}
    beside = [{"kind": "Secret", "metadata": {"name": "beside"}}]
    (found,) = references.pull_secrets(cluster, named, beside, None, "ours")
    copied = found.copy("e2e-1")
    assert copied["metadata"] == {"name": "regcred", "namespace": "e2e-1"}
    assert (copied["type"], copied["data"]) == ("kubernetes.io/dockerconfigjson", {".dockerconfigjson": DATA})
    assert DATA not in repr(found)
    assert found.values == ["a-password"]


def test_a_pull_secret_that_is_not_there_is_refused(cluster: Any) -> None:
    named = {"imagePullSecrets": [{"name": "other"}]}
    with pytest.raises(UsageError, match="imagePullSecrets other: namespace team has no Secret"):
        references.pull_secrets(cluster, named, [], None, None)
