"""What runs the controller in a cluster: generated, and with no right that it does not use."""

from __future__ import annotations

from pathlib import Path

from harness.torchrun_controller import manifests
from harness.torchrun_controller.queues import PERMITTED

FILE = Path(__file__).parents[3] / "manifests/torchrun-controller/controller.yaml"


def test_file_is_generated() -> None:
    """Contract: the file that users apply is what the code says."""
    assert FILE.read_text() == manifests.text()


def test_no_wildcard() -> None:
    """Contract: the original's role was every verb on everything; this one names each."""
    for rule in [*manifests.RULES, *manifests.KAI_RULES, *manifests.LEASE_RULES]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


def test_secrets_and_pods_are_not_its_business() -> None:
    """Contract: it reads no secret, starts no pod and enters none."""
    writes = {"create", "update", "patch", "delete"}
    for rule in manifests.RULES:
        assert "secrets" not in rule["resources"]
        assert not ("pods" in rule["resources"] and writes & set(rule["verbs"]))
        assert not {"pods/exec", "pods/log"} & set(rule["resources"])


def test_kinds_of_resource_templates_are_permitted() -> None:
    """Contract: a kind that a queue may bring can be read and made."""
    for kind in PERMITTED:
        [rule] = [rule for rule in manifests.RULES if f"{kind.lower()}s" in rule["resources"]]
        assert {"get", "create"} <= set(rule["verbs"])
