"""kind.yaml: what the control plane is told, in each format of kubeadm."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.provision.kind.configuration import configuration
from harness.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(state_dir=tmp_path)


def patches(settings: Settings, tmp_path: Path) -> list[Any]:
    made = configuration(settings, "node", (), tmp_path, tmp_path)
    found = made["kubeadmConfigPatches"]
    assert isinstance(found, list)
    return [yaml.safe_load(text) for text in found]


def test_kinds_own_arguments_stay(settings: Settings, tmp_path: Path) -> None:
    """Contract: a list in a patch replaces kind's, so both formats repeat what kind gives, and agree."""
    found = {
        patch["apiVersion"]: patch
        for patch in patches(settings, tmp_path)
        if patch["kind"] == "ClusterConfiguration"
    }
    assert set(found) == {"kubeadm.k8s.io/v1beta3", "kubeadm.k8s.io/v1beta4"}
    before, now = (found[f"kubeadm.k8s.io/{version}"] for version in ("v1beta3", "v1beta4"))
    for old, new in (
        (before["controllerManager"]["extraArgs"], now["controllerManager"]["extraArgs"]),
        (before["scheduler"]["extraArgs"], now["scheduler"]["extraArgs"]),
        (before["etcd"]["local"]["extraArgs"], now["etcd"]["local"]["extraArgs"]),
    ):
        assert old == {each["name"]: each["value"] for each in new}
        assert all(isinstance(value, str) for value in old.values())
    assert before["controllerManager"]["extraArgs"]["enable-hostpath-provisioner"] == "true"


def test_the_kubelet_is_told_once(settings: Settings, tmp_path: Path) -> None:
    kubelets = [patch for patch in patches(settings, tmp_path) if patch["kind"] == "KubeletConfiguration"]
    assert len(kubelets) == 1
    assert kubelets[0]["syncFrequency"] == "3s"
