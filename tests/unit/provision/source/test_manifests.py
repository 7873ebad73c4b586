"""The controllers' manifests are adapted where they must be and nowhere else."""

from __future__ import annotations

import pytest

from harness.core.errors import HarnessError
from harness.provision.source.manifests import adapt, parse, render

MANIFESTS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com, annotations: {since: 2024-01-02, "on": "yes"}}
spec: {enum: [=, "off", "1e3", "0o17", "007"], description: "a: b\\n  c # d\\n"}
---
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kueue-controller-manager, namespace: kueue-system}
spec:
  template:
    spec:
      containers:
      - name: proxy
        image: example.com/proxy:1
        imagePullPolicy: Always
      - name: manager
        image: example.com/kueue:main
        imagePullPolicy: Always
        command: [/manager]
        readinessProbe: {httpGet: {path: /readyz, port: 8081}, initialDelaySeconds: 5, periodSeconds: 10}
        resources: {limits: {cpu: "2"}, requests: {cpu: 500m, memory: 512Mi}}
"""


def test_the_manager_starts_soon_and_on_two_cores() -> None:
    """Image, pull policy, CPU request and readiness of the manager change; its other fields do not."""
    documents = parse(MANIFESTS)
    crd, deployment = adapt(documents, {"kueue-controller-manager": "harness/kueue:v1"})
    proxy, manager = deployment["spec"]["template"]["spec"]["containers"]
    assert manager == {
        "name": "manager",
        "image": "harness/kueue:v1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/manager"],
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": 8081},
            "initialDelaySeconds": 0,
            "periodSeconds": 1,
        },
        "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "50m", "memory": "512Mi"}},
    }
    assert proxy["imagePullPolicy"] == "Always"
    assert crd == documents[0]
    assert documents == parse(MANIFESTS), "the documents that were given stay as they are"


def test_a_published_image_can_stay() -> None:
    """None keeps the manifest's own image: the registry way."""
    _, deployment = adapt(parse(MANIFESTS), {"kueue-controller-manager": None})
    assert deployment["spec"]["template"]["spec"]["containers"][1]["image"] == "example.com/kueue:main"


def test_text_stays_text() -> None:
    """What looks like a date, a number or a truth value comes out of the stream as it went in."""
    (crd, _) = parse(render(parse(MANIFESTS)))
    assert crd["metadata"]["annotations"] == {"since": "2024-01-02", "on": "yes"}
    assert crd["spec"] == {"enum": ["=", "off", "1e3", "0o17", "007"], "description": "a: b\n  c # d\n"}


def test_a_deployment_that_is_not_there_is_named() -> None:
    """A renamed controller must not start unadapted."""
    with pytest.raises(HarnessError, match=r"jobset-controller-manager .* found kueue-controller-manager"):
        adapt(parse(MANIFESTS), {"jobset-controller-manager": None})


def test_a_container_that_is_not_there_is_named() -> None:
    """The same for its container."""
    text = MANIFESTS.replace("name: manager", "name: controller")
    with pytest.raises(HarnessError, match="expected a container manager, found proxy, controller"):
        adapt(parse(text), {"kueue-controller-manager": None})
