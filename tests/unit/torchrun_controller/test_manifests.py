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


def test_roles_of_users_grant_what_their_names_promise() -> None:
    """Contract: Kubernetes' roles include those of users. A job's author needs no right on pods, Secrets or
    queues, and a queue's author has in one role what the admission policy asks for.
    """
    roles = {
        each["metadata"]["name"]: each for each in manifests.documents() if each["kind"] == "ClusterRole"
    }
    included = {
        name: sorted(label.rpartition("-")[2] for label in role["metadata"].get("labels") or {})
        for name, role in roles.items()
    }
    assert included == {
        "torchrun-controller": [],
        "torchrun-viewer": ["admin", "edit", "view"],
        "torchrun-job-user": ["admin", "edit"],
        "torchrun-queue-owner": ["admin"],
    }
    write = {"create", "update", "patch", "delete", "deletecollection"}
    writes = {
        name: {
            resource.partition("/")[0]
            for rule in role["rules"]
            if write & set(rule["verbs"])
            for resource in rule["resources"]
        }
        for name, role in roles.items()
    }
    assert writes["torchrun-viewer"] == set()
    assert writes["torchrun-job-user"] == {"torchrunjobs"}
    assert writes["torchrun-queue-owner"] == {"torchrunqueues", *manifests.CREATED_FOR_A_QUEUE}
    for name in (*roles,)[1:]:
        used = {resource for rule in roles[name]["rules"] for resource in rule["resources"]}
        assert not {"secrets", "pods/exec", "serviceaccounts"} & used


def test_queue_s_author_needs_rights_that_queue_gives() -> None:
    """Contract: what the controller creates for a queue, its author may create; the controller's own role has
    no kind beside these that a queue's spec decides.
    """
    [policy] = [each for each in manifests.documents() if each["kind"] == "ValidatingAdmissionPolicy"]
    checked = {each["expression"].split("'")[3] for each in policy["spec"]["validations"]}
    assert checked == {"pods", *(f"{kind.lower()}s" for kind in PERMITTED)}
    assert policy["spec"]["failurePolicy"] == "Fail"


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
