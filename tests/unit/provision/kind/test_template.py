"""What a template keeps of etcd, and how it is written."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.context import RunContext
from harness.core.errors import HarnessError
from harness.provision.kind import template
from harness.provision.kind.from_template import configured
from harness.provision.kind.template import eager, keys, puts
from harness.settings import Settings

CONF = """\
apiVersion: kubeadm.k8s.io/v1beta4
clusterName: a
controlPlaneEndpoint: a-control-plane:6443
kind: ClusterConfiguration
kubernetesVersion: v1.36.3
---
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 172.18.0.2, bindPort: 6443}
nodeRegistration:
  kubeletExtraArgs:
  - {name: node-ip, value: 172.18.0.2}
  - {name: provider-id, value: kind://docker/a/a-control-plane}
  - {name: node-labels, value: ""}
---
kind: JoinConfiguration
controlPlane:
  localAPIEndpoint: {advertiseAddress: 172.18.0.2}
discovery:
  bootstrapToken: {apiServerEndpoint: "a-control-plane:6443", token: abcdef.0123456789abcdef}
---
kind: KubeletConfiguration
cgroupRoot: /kubelet
"""


def entry(path: str, value: str = "x") -> dict[str, str]:
    encoded = [base64.b64encode(text.encode()).decode() for text in (path, value)]
    return {"key": encoded[0], "value": encoded[1], "mod_revision": "7"}


def kept(*paths: str, late: tuple[str, ...] = ()) -> list[str]:
    return [base64.b64decode(each["key"]).decode() for each in keys([entry(path) for path in paths], late)]


def test_a_template_keeps_no_secrets_or_cluster_specific_keys() -> None:
    stays = [
        "/registry/namespaces/kueue-system",
        "/registry/configmaps/kube-system/coredns",
        "/registry/services/specs/harness-system/tracker",
        "/registry/apiextensions.k8s.io/customresourcedefinitions/jobsets.jobset.x-k8s.io",
    ]
    goes = [
        "/registry/secrets/harness-system/tracker",
        "/registry/minions/a-control-plane",
        "/registry/pods/kube-system/etcd-a-control-plane",
        "/registry/leases/kube-node-lease/a-worker",
        "/registry/networkpolicies/harness-system/tracker",
        "/registry/configmaps/kube-system/kubeadm-config",
        "/registry/configmaps/default/kube-root-ca.crt",
        "/registry/configmaps/kube-system/extension-apiserver-authentication",
        "/registry/kueue.x-k8s.io/clusterqueues/cluster-queue",
        "/registry/apiregistration.k8s.io/apiservices/v1beta2.visibility.kueue.x-k8s.io",
        "compact_rev_key",
    ]
    assert kept(*goes, *stays, late=("v1beta2.visibility.kueue.x-k8s.io",)) == stays


@pytest.mark.parametrize(
    "path",
    [
        "/registry/configmaps/default/of-a-user",
        "/registry/persistentvolumes/data",
        "/registry/of-tomorrow.k8s.io/things/one",
        "/registry/configmaps/e2e-1/config",
    ],
)
def test_what_is_not_known_makes_no_template(path: str) -> None:
    """Without it a copy would be another cluster, and with it one would hold what a user made."""
    with pytest.raises(HarnessError, match=path):
        kept(path)


@given(st.lists(st.integers(0, 3000), max_size=300))
def test_every_key_is_put_once_and_in_order(sizes: list[int]) -> None:
    entries = keys([entry(f"/registry/clusterroles/{n}", "x" * size) for n, size in enumerate(sizes)], ())
    bodies = list(puts(entries, limit=10_000))
    assert [put["requestPut"] for body in bodies for put in json.loads(body)["success"]] == entries
    for body in bodies:
        puts_of_it = json.loads(body)["success"]
        assert len(puts_of_it) <= 100
        assert len(puts_of_it) == 1 or len(body) < 10_000 + 100 * len(puts_of_it)


@given(st.sampled_from(["a", "kind", "control-plane", "kubelet", "v1", "172"]))
def test_a_name_is_changed_where_it_is_a_name(cluster: str) -> None:
    """A cluster may be called as anything else in the file is."""
    head = f"{cluster}-control-plane"
    text = configured(CONF, cluster, head, head, "10.1.2.3")
    of, init, join, kubelet = yaml.safe_load_all(text)
    assert of == {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "clusterName": cluster,
        "controlPlaneEndpoint": f"{head}:6443",
        "kind": "ClusterConfiguration",
        "kubernetesVersion": "v1.36.3",
    }
    assert init["localAPIEndpoint"] == {"advertiseAddress": "10.1.2.3", "bindPort": 6443}
    assert [each["value"] for each in init["nodeRegistration"]["kubeletExtraArgs"]] == [
        "10.1.2.3",
        f"kind://docker/{cluster}/{head}",
        "",
    ]
    assert join["controlPlane"]["localAPIEndpoint"]["advertiseAddress"] == "10.1.2.3"
    assert join["discovery"]["bootstrapToken"]["apiServerEndpoint"] == f"{head}:6443"
    assert kubelet == {"kind": "KubeletConfiguration", "cgroupRoot": "/kubelet"}


def test_coredns_is_asked_every_second() -> None:
    container = {"name": "coredns", "readinessProbe": {"periodSeconds": 10, "httpGet": {"path": "/ready"}}}
    found = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "coredns", "namespace": "kube-system", "labels": {}, "uid": "1"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [container]}}},
        "status": {"readyReplicas": 2},
    }
    changed = eager(found)
    assert changed["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["periodSeconds"] == 1
    assert set(changed) == {"apiVersion", "kind", "metadata", "spec"}
    assert "uid" not in changed["metadata"]
    assert container["readinessProbe"]["periodSeconds"] == 10, "the one that was given is unchanged"


def test_no_coredns_no_template() -> None:
    with pytest.raises(HarnessError, match="no Deployment named coredns"):
        eager(None)


def test_what_fails_twice_in_row_is_not_tried_again(tmp_path: Path) -> None:
    """A machine on which copies fail would lose the time of an attempt at each launch."""
    context = RunContext(settings=Settings(cache_dir=tmp_path), progress=print)
    image = "harness/template:of-a-test"

    def after(*ends: bool) -> bool:
        for well in ends:
            template.record_result(image, context, well=well)
        return template.attempts_exhausted(image, context)

    assert not after()
    assert not after(False)
    assert not after(True, False)
    assert after(False)
    assert not template.attempts_exhausted("harness/template:another", context)
    assert not after(True)


def test_list_of_failures_that_is_cut_off_is_empty(tmp_path: Path) -> None:
    (tmp_path / template.FAILURES).write_text("{")
    assert not template.attempts_exhausted(
        "harness/template:1", RunContext(settings=Settings(cache_dir=tmp_path), progress=print)
    )
