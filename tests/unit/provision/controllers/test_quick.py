"""What a new cluster of the harness's own gets, in place of what is published."""

from __future__ import annotations

import copy
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.provision.controllers.fast_start import (
    CONFIGURATION,
    CONTROL_PLANE,
    DEFINITION,
    DEPLOYMENT,
    quick,
)


def deployment() -> dict[str, Any]:
    """A Deployment as the projects publish them: with a probe, and no place for its pods."""
    probe = {"httpGet": {"path": "/readyz", "port": 8081}, "initialDelaySeconds": 5, "periodSeconds": 10}
    containers = [{"name": "manager", "readinessProbe": probe}, {"name": "beside"}]
    template = {"spec": {"containers": containers}}
    return {"kind": DEPLOYMENT, "metadata": {"name": "x"}, "spec": {"template": template}}


def definition(schema: Any) -> dict[str, Any]:
    version = {"name": "v1", "served": True, "schema": {"openAPIV3Schema": schema}}
    return {"kind": DEFINITION, "metadata": {"name": "x"}, "spec": {"versions": [version]}}


def schema_of(document: dict[str, Any]) -> Any:
    return document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def test_pods_of_controllers_begin_where_node_is_ready_first() -> None:
    """On the control plane, in spite of its taint, and asked every second. The rest is as published."""
    published = deployment()
    spec = quick(published)["spec"]["template"]["spec"]
    assert published == deployment()
    assert list(spec["nodeSelector"]) == [spec["tolerations"][0]["key"]] == [CONTROL_PLANE]
    assert spec["tolerations"][0]["effect"] == "NoSchedule"
    probe = spec["containers"][0]["readinessProbe"]
    assert (probe["initialDelaySeconds"], probe["periodSeconds"]) == (0, 1)
    assert probe["httpGet"] == {"path": "/readyz", "port": 8081}


def test_pods_of_controllers_do_not_wait_for_kube_proxy() -> None:
    """They reach the API server by their node's address. Variables of their own stay."""
    published = deployment()
    published["spec"]["template"]["spec"]["containers"][1]["env"] = [{"name": "OWN", "value": "1"}]
    for container in quick(published)["spec"]["template"]["spec"]["containers"]:
        env = {each["name"]: each for each in container["env"]}
        assert env["KUBERNETES_SERVICE_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.hostIP"
        assert env["KUBERNETES_SERVICE_PORT"]["value"] == "6443"
        assert ("OWN" in env) == (container["name"] == "beside")


def test_controllers_are_given_certificates_wherever_they_would_make_some() -> None:
    """Webhooks, Kueue's metrics and Kueue's visibility server: all have the Secret that the harness fills."""
    published = deployment()
    spec = published["spec"]["template"]["spec"]
    secret = {"secret": {"secretName": "kueue-webhook-server-cert"}}
    spec["volumes"] = [{"name": "visibility", "emptyDir": {}}, {"name": "cert", **secret}, {"name": "other"}]
    mounts = [
        {"name": "visibility", "mountPath": "/visibility"},
        {"name": "cert", "mountPath": "/tmp/k8s-webhook-server/serving-certs", "readOnly": True},
    ]
    spec["containers"][0]["volumeMounts"] = list(mounts)
    changed = quick(published)["spec"]["template"]["spec"]
    assert [each["name"] for each in changed["volumes"]] == ["visibility", "cert", "other"]
    assert changed["volumes"][0] == {"name": "visibility", **secret}
    metrics = {"name": "cert", "mountPath": "/etc/kueue/metrics/certs", "readOnly": True}
    assert changed["containers"][0]["volumeMounts"] == [*mounts, metrics]
    assert "volumeMounts" not in changed["containers"][1]


def test_a_controller_s_own_settings_stay() -> None:
    """Contract: only certificates and the election are not its own affair."""
    file = "controller_manager_config.yaml"
    text = (
        "kind: Configuration\nleaderElection: {leaderElect: true, resourceName: x}\n"
        "internalCertManagement: {enable: true}\n"
    )
    published = {"kind": CONFIGURATION, "metadata": {"name": "x"}, "data": {file: text, "beside": "1"}}
    changed = quick(published)
    assert changed["data"]["beside"] == "1"
    assert yaml.safe_load(changed["data"][file]) == {
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False, "resourceName": "x"},
        "internalCertManagement": {"enable": False},
    }
    other = {"kind": CONFIGURATION, "metadata": {"name": "x"}}
    assert quick(other) == other


def test_a_schema_loses_its_descriptions_and_nothing_else() -> None:
    """A field that is called `description` stays, and so does a value that has one."""
    field = {"type": "string", "description": "what it is for"}
    schema = {
        "description": "a thing",
        "type": "object",
        "properties": {"description": field, "many": {"items": [field], "default": {"description": "x"}}},
    }
    published = definition(schema)
    kept = copy.deepcopy(published)
    bare = {"type": "string"}
    assert schema_of(quick(published)) == {
        "type": "object",
        "properties": {"description": bare, "many": {"items": [bare], "default": {"description": "x"}}},
    }
    assert published == kept


SCHEMAS = st.recursive(
    st.dictionaries(
        st.sampled_from(["type", "pattern", "format", "x-kubernetes-list-type"]), st.text(max_size=3)
    ),
    lambda inner: st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(st.sampled_from(["description", "a", "b"]), inner),
            "items": inner,
            "allOf": st.lists(inner, max_size=2),
        },
    ),
    max_leaves=8,
)


def described(schema: Any) -> Any:
    """Return the schema with a description at every place that may have one."""
    if isinstance(schema, list):
        return [described(each) for each in schema]
    changed = {"description": "text", **schema}
    for name in ("items", "allOf"):
        if name in schema:
            changed[name] = described(schema[name])
    if "properties" in schema:
        changed["properties"] = {name: described(each) for name, each in schema["properties"].items()}
    return changed


@given(SCHEMAS)
def test_described_and_bare_are_the_same_schema(schema: Any) -> None:
    """Whatever descriptions a schema has, what is left of it is what it was without them."""
    assert schema_of(quick(definition(described(schema)))) == schema


def test_other_objects_stay() -> None:
    service = {"kind": "Service", "metadata": {"name": "x"}, "spec": {"description": "x"}}
    assert quick(service) is service
