"""The Helm chart: generated, and with its default values the same objects as the kustomization."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.torchrun_controller.api import crd_generator
from harness.torchrun_controller.objects import chart, manifests
from tests import tools

FOLDER = Path(__file__).parents[3] / "manifests/torchrun-chart"
Objects = dict[tuple[str, str], dict[str, Any]]


def by_name(documents: list[dict[str, Any]]) -> Objects:
    return {(each["kind"], each["metadata"]["name"]): each for each in documents if each}


def applied() -> Objects:
    """Return what the kustomization applies, without the namespace, which Helm creates."""
    objects = by_name([*crd_generator.definitions(), *manifests.documents()])
    del objects["Namespace", manifests.NAMESPACE]
    return objects


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    """Return what `helm template` did."""
    if not tools.available("helm"):
        pytest.skip("no helm: `python -m tests.tools` builds it")
    command = [tools.helm(), "template", "mine", str(FOLDER), "--namespace", manifests.NAMESPACE, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rendered(*words: str) -> Objects:
    """Return what Helm renders. The annotation against the deletion of CRDs is checked and removed."""
    done = helm(*words)
    assert done.returncode == 0, done.stderr
    objects = by_name([*yaml.safe_load_all(done.stdout)])
    for (kind, _), each in objects.items():
        if kind == "CustomResourceDefinition":
            assert each["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    return objects


def test_files_are_generated() -> None:
    """Contract: the chart in the repository is what the code says."""
    there = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*") if path.is_file()}
    assert there == chart.files()


def test_the_default_values_give_the_kustomization_s_objects() -> None:
    """Contract: shown without Helm, so on each machine: each expression has its default value."""
    container = applied()["Deployment", manifests.NAME]["spec"]["template"]["spec"]["containers"][0]
    values = {
        chart.EXPRESSIONS["namespace"]: manifests.NAMESPACE,
        chart.EXPRESSIONS["image"]: manifests.IMAGE,
        chart.EXPRESSIONS["replicas"]: "2",
        chart.EXPRESSIONS["resources"]: json.dumps(container["resources"]),
        chart.EXPRESSIONS["args"]: json.dumps(container["args"]),
    }
    text = chart.files()["templates/controller.yaml"]
    text = re.sub(r"^ *\{\{- with .*?^ *\{\{- end \}\}\n", "", text, flags=re.MULTILINE | re.DOTALL)
    for expression, value in values.items():
        text = text.replace(expression, value)
    assert "{{" not in text
    crds = {key: each for key, each in applied().items() if key[0] == "CustomResourceDefinition"}
    assert by_name([*yaml.safe_load_all(text)]) | crds == applied()


def test_helm_renders_the_kustomization_s_objects() -> None:
    """Contract: the same, by Helm itself."""
    assert rendered() == applied()


def test_each_value_has_its_effect_and_nothing_else() -> None:
    """Contract: every documented value; the objects are otherwise the same."""
    given = {
        "image": {"repository": "registry.example:5000/own", "tag": "2.0", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "mine"}],
        "replicas": 1,
        "resources": {"limits": {"memory": "1Gi"}},
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"operator": "Exists"}],
        "gang": "kai",
        "crds": {"install": False},
    }
    assert given.keys() == chart.values().keys()
    words = [f"--set-json={name}={json.dumps(value)}" for name, value in given.items()]
    found = rendered(*words)
    pod = found["Deployment", manifests.NAME]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("registry.example:5000/own:2.0", "Always")
    assert container["args"] == ["--log-format=json", "--port=8080", "--gang=kai"]
    assert container["resources"]["limits"] == {"memory": "1Gi"}
    assert {name: pod[name] for name in ("imagePullSecrets", "nodeSelector", "tolerations")} == {
        name: given[name] for name in ("imagePullSecrets", "nodeSelector", "tolerations")
    }
    assert found["ClusterRole", f"{manifests.NAME}-kai"]["rules"] == manifests.KAI_RULES
    added = {(kind, f"{manifests.NAME}-kai") for kind in ("ClusterRole", "ClusterRoleBinding")}
    crds = {key for key in applied() if key[0] == "CustomResourceDefinition"}
    assert found.keys() == (applied().keys() | added) - crds


@pytest.mark.parametrize(
    "wrong",
    ["replica=1", "image.tag=2026", "image.repo=x", "gang=volcano", "replicas=x", "crds.install=no"],
)
def test_a_wrong_value_is_refused(wrong: str) -> None:
    """Contract: a misspelt or unusable value is an error that names it, and not ignored."""
    done = helm("--set", wrong)
    assert done.returncode != 0
    assert wrong.partition("=")[0].split(".")[0] in done.stderr


def test_comments_and_values_agree() -> None:
    """Contract: values.yaml is the defaults."""
    assert yaml.safe_load(chart.files()["values.yaml"]) == chart.values()
