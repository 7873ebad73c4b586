"""What runs the controller in a cluster: generated, and with no right that it does not use."""

from __future__ import annotations

import tomllib
from pathlib import Path

from harness.torchrun_controller.api.names import PERMITTED
from harness.torchrun_controller.objects import etcd, manifests

FOLDER = Path(__file__).parents[3] / "manifests/torchrun-controller"


def test_files_are_generated() -> None:
    """Contract: the files that users apply are what the code says, and the kustomization names them all."""
    assert (FOLDER / "controller.yaml").read_text() == manifests.text()
    assert (FOLDER / "kustomization.yaml").read_text() == manifests.kustomization_text()
    assert {path.name for path in FOLDER.iterdir()} == {
        "kustomization.yaml",
        *manifests.kustomization()["resources"],
    }


def test_the_etcd_is_generated() -> None:
    """Contract: the file is what the code says, with the version that the harness builds for its own."""
    assert (FOLDER.with_name("torchrun-etcd") / "etcd.yaml").read_text() == etcd.text()
    versions = tomllib.loads((FOLDER.parents[1] / "harness/versions.toml").read_text())
    assert versions["rendezvous"]["image"] == etcd.IMAGE


def test_pod_is_restricted() -> None:
    """Contract: no root, no writable root, no capability, the runtime's seccomp profile, limits and probes:
    what the Pod Security Standard "restricted" asks for, and a kubelet that knows when to start it again.
    """
    [deployment] = [found for found in manifests.documents() if found["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"requests", "limits"} <= container["resources"].keys()
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    [port] = container["ports"]
    assert f"--port={port['containerPort']}" in container["args"]


def test_no_role_has_a_wildcard() -> None:
    """Contract: the original's role was every verb on everything; this one names each."""
    for rule in [*manifests.RULES, *manifests.KAI_RULES, *manifests.LEASE_RULES]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_secrets_and_pods_are_not_its_business() -> None:
    """Contract: it reads no Secret and enters no pod; Secrets it deletes by label alone. It creates pods in
    dry runs alone, which the model of the API server holds in every test (torchrun_api.py).
    """
    writes = {"update", "patch", "delete"}
    for rule in manifests.RULES:
        assert "secrets" not in rule["resources"] or rule["verbs"] == ["deletecollection"]
        assert rule["resources"] != ["events"] or rule["verbs"] == ["create", "get", "update", "list"]
        assert not ("pods" in rule["resources"] and writes & set(rule["verbs"]))
        assert "pods/exec" not in rule["resources"]
        assert "pods/log" not in rule["resources"] or rule["verbs"] == ["get"]


def test_kinds_of_resource_templates_are_permitted() -> None:
    """Contract: a kind that a queue may bring can be read and made."""
    for kind in PERMITTED:
        [rule] = [rule for rule in manifests.RULES if f"{kind.lower()}s" in rule["resources"]]
        assert {"get", "create"} <= set(rule["verbs"])
