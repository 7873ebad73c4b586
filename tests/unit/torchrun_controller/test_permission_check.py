"""What a job may set, by default and where its queue lists it, and what pods of a queue may have."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import kubernetes.client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchrun_objects import job, queue

from harness.torchrun_controller.api.crd_generator import structural
from harness.torchrun_controller.api.models import JobSpec, QueueSpec
from harness.torchrun_controller.api.permissions import JOB, POD, grantable
from harness.torchrun_controller.objects import dry_run_pods
from harness.torchrun_controller.objects.jobset import jobset
from harness.torchrun_controller.objects.permission_check import check_job, check_pod
from harness.torchrun_controller.objects.pod_template import resolve
from harness.torchrun_controller.plan.gpu_layout import Refused

Object = dict[str, Any]
KUBERNETES = {
    "env[]": "V1EnvVar",
    "scheduling.affinity": "V1Affinity",
    "scheduling.tolerations[]": "V1Toleration",
    "volumes.additionalVolumes[]": "V1Volume",
}
"""The parts of a job whose type is one of Kubernetes."""
VALUES = {"str": "other", "int": 1, "bool": True, "object": "other"}
VALUE_OF = {
    "workspaceStorage.mountPath": "/other",
    "volumes.additionalMounts[]": {"name": "other", "mountPath": "/other"},
}
"""Values of paths that a pattern or required fields restrict."""


def made(spec: Object, of: Object) -> Object:
    """Return the pod template that the controller creates. Raises Refused."""
    one, owner = job(), queue(**of)
    one["spec"].update(spec)
    merged = resolve("demo", JobSpec.model_validate(one["spec"]), {}, QueueSpec.model_validate(owner["spec"]))
    document = jobset(one, merged, "cpu")
    return dict(document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"])


def reason(spec: Object, of: Object) -> tuple[str, str]:
    """Return the reason and the message of a refusal, or two empty strings."""
    try:
        made(spec, of)
    except Refused as refused:
        return refused.reason, str(refused)
    return "", ""


def of_kubernetes(model: str, path: str, above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield each path of a Kubernetes type, with a value for it: the schema is that of the client."""
    kind = getattr(kubernetes.client, model)
    for name, type_of in kind.openapi_types.items():
        below = f"{path}.{kind.attribute_map[name]}" if path else kind.attribute_map[name]
        inner = re.search(r"V\d\w+", type_of)
        items = "[]" * type_of.startswith("List[")
        if inner and inner[0] not in above and hasattr(kubernetes.client, inner[0]):
            yield from of_kubernetes(inner[0], below + items, (*above, model))
        else:
            yield below + items, VALUES.get(type_of.removeprefix("List[").rstrip("]"), {"x": "y"})


def of_job(schema: Object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each path of a TorchrunJob's spec, with a value for it: its CRD's and those of Kubernetes."""
    if path in VALUE_OF:
        yield path, VALUE_OF[path]
    elif path in KUBERNETES:
        yield from of_kubernetes(KUBERNETES[path], path)
    elif "properties" in schema:
        for name, part in schema["properties"].items():
            yield from of_job(part, f"{path}.{name}" if path else name)
    elif "items" in schema:
        yield from of_job(schema["items"], f"{path}[]")
    elif "additionalProperties" in schema:
        yield path, {"key": "other"}
    elif "enum" in schema:
        yield path, schema["enum"][-1]
    elif "x-kubernetes-int-or-string" in schema:
        yield path, "1Gi"
    elif schema.get("type") == "integer":
        yield path, max(schema.get("minimum", 1), 1)
    else:
        yield path, VALUES["bool" if schema.get("type") == "boolean" else "str"]


def placed(path: str, value: Any) -> Object:
    """Return an object with a value at a path. Items of lists have names."""
    first, _, rest = path.partition(".")
    inner = placed(rest, value) if rest else value
    if first.endswith("[]"):
        item = {"name": "item", **inner} if isinstance(inner, dict) and first != "tolerations[]" else inner
        return {first.removesuffix("[]"): [item]}
    return {first: inner}


JOB_PATHS = dict(of_job(structural(JobSpec)))
POD_PATHS = dict(of_kubernetes("V1PodSpec", ""))
ALLOWED = re.compile(
    r"(queue|jobQueue|command|setupCommand|suspend|cancel|numGPUs|numNodes|minNodes|maxNodes|processesPerNode)$"
    r"|(distributed|reliability)\.|env\[\]\.(name|value)$|workspaceStorage\.(url|ref|size)$"
    r"|storage\.(shmSizePerGPU|\w+\.(size|sizePerGPU))$|volumes\.additionalVolumes\[\]\.name$"
)
"""The allow-list, in the words of the documentation. The table must agree with it."""


def parents(path: str) -> Iterator[str]:
    """Yield a path and the paths above it, the nearest first."""
    while path:
        yield path
        path = path.removesuffix("[]") if path.endswith("[]") else path.rpartition(".")[0]


def decision(path: str, table: Mapping[str, str]) -> str | None:
    """Return the decision about a path: its own, or that of the nearest parent."""
    return next((table[each] for each in parents(path) if each in table), None)


def test_every_field_of_a_job_is_decided() -> None:
    """Contract: no field of a job, and none of Kubernetes that a job can contain, is without a decision; the
    table names no field that does not exist, and frees those of the documentation alone.
    """
    assert len(JOB_PATHS) > 300
    assert [path for path in JOB_PATHS if decision(path, JOB) is None] == []
    assert set(JOB) <= {each for path in JOB_PATHS for each in parents(path)}
    assert [p for p in JOB_PATHS if (decision(p, JOB) == "free") != bool(ALLOWED.match(p))] == []


def test_a_field_that_is_not_listed_is_refused() -> None:
    """Contract: with the default queue, each field of the schema beside the allow-list refuses the job."""
    passed = []
    for path, value in JOB_PATHS.items():
        spec = placed(path, value)
        if path.startswith("workspaceStorage") and path != "workspaceStorage.source":
            spec["workspaceStorage"].update(source="git", url="https://example.com/x")
        if not ALLOWED.match(path) and reason(spec, {})[0] != "OverrideNotAllowed":
            passed.append(path)
    assert passed == []


def test_every_field_of_a_pod_is_decided() -> None:
    """Contract: each field of a PodSpec is the queue owner's, or needs a privilege that the queue lists."""
    assert len(POD_PATHS) > 500
    for path, value in POD_PATHS.items():
        by = decision(path, POD)
        assert by is not None, path
        granting = "Unconfined" if path.endswith("Profile.type") else value
        found = {"metadata": {}, "spec": placed(path, granting)}
        check_pod(found, QueueSpec.model_validate({"privileges": [by]} if by else {}))
        if by:
            with pytest.raises(Refused, match=f"add {by} to the queue's privileges"):
                check_pod(found, QueueSpec.model_validate({}))


PRIVILEGED: dict[str, Object] = {
    "hostPath": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
    "hostNetwork": {"hostNetwork": True},
    "hostPID": {"hostPID": True},
    "hostIPC": {"hostIPC": True},
    "hostPorts": {"containers": [{"name": "trainer", "ports": [{"containerPort": 80, "hostPort": 80}]}]},
    "privileged": {"initContainers": [{"name": "a", "image": "b", "securityContext": {"privileged": True}}]},
    "capabilities": {
        "containers": [
            {"name": "trainer"},
            {"name": "b", "securityContext": {"capabilities": {"add": ["CHOWN"]}}},
        ]
    },
    "procMount": {"containers": [{"name": "trainer", "securityContext": {"procMount": "Unmasked"}}]},
    "seccomp": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
    "appArmor": {
        "containers": [{"name": "trainer", "securityContext": {"appArmorProfile": {"type": "Unconfined"}}}]
    },
    "seLinux": {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}},
    "sysctls": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
    "hostProcess": {"securityContext": {"windowsOptions": {"hostProcess": True}}},
    "hostProbes": {
        "containers": [
            {"name": "trainer", "livenessProbe": {"httpGet": {"port": 1, "host": "169.254.169.254"}}}
        ]
    },
}


def test_all_missing_privileges_are_named_at_once() -> None:
    """Contract: one answer has all fields and all entries, so that nobody tries one after the other."""
    of = {"podTemplate": {"spec": {"hostNetwork": True, "hostIPC": True, "hostPID": True}}}
    found, message = reason({}, {**of, "privileges": ["hostPID"]})
    assert found == "PrivilegeNotGranted"
    assert message.startswith("hostNetwork, hostIPC give pods access to their node")
    assert message.endswith("leave them out, or add hostNetwork, hostIPC to the queue's privileges")


@pytest.mark.parametrize("privilege", PRIVILEGED)
def test_a_permissive_template_needs_the_word_of_its_owner(privilege: str) -> None:
    """Contract: access to nodes needs an entry in privileges, also where the template has it."""
    of = {"podTemplate": {"spec": PRIVILEGED[privilege]}}
    found, message = reason({}, of)
    assert (found, f"add {privilege} to the queue's privileges" in message) == ("PrivilegeNotGranted", True)
    others = [each for each in PRIVILEGED if each != privilege]
    assert reason({}, {**of, "privileges": others})[0] == "PrivilegeNotGranted"
    assert reason({}, {**of, "privileges": [privilege]}) == ("", "")


@pytest.mark.parametrize(
    "spec",
    [
        {"hostNetwork": False, "hostPID": False, "hostUsers": False},
        {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 1000, "sysctls": []}},
        {
            "containers": [
                {
                    "name": "trainer",
                    "ports": [{"containerPort": 80, "hostPort": 0}],
                    "securityContext": {
                        "privileged": False,
                        "procMount": "Default",
                        "capabilities": {"drop": ["ALL"], "add": []},
                    },
                }
            ]
        },
    ],
)
def test_a_hardened_template_needs_no_privilege(spec: Object) -> None:
    assert reason({}, {"podTemplate": {"spec": spec}}) == ("", "")


def test_a_field_of_a_later_kubernetes_is_refused() -> None:
    """Contract: a field of a pod about which nobody has decided does not reach the cluster."""
    found, message = reason({}, {"podTemplate": {"spec": {"hostDevices": ["/dev/kmsg"]}}})
    assert (found, "hostDevices" in message) == ("FieldUnknown", True)
    found, message = reason({"env": [{"name": "A", "valueFrom": {"vaultRef": {"path": "x"}}}]}, {})
    assert (found, "env[A].valueFrom.vaultRef" in message) == ("OverrideNotAllowed", True)


SECRET = {"secretKeyRef": {"name": "keys", "key": "a"}}
WORKSPACE = {"source": "git", "url": "https://example.com/x"}


@pytest.mark.parametrize(
    ("spec", "entry"),
    [
        ({"image": "evil:1"}, {"images": ["evil:1"]}),
        ({"image": "registry.example/team/a:2"}, {"images": ["registry.example/team/*"]}),
        ({"workspaceStorage": {**WORKSPACE, "image": "git:1"}}, {"images": ["git:1"]}),
        ({"workspaceStorage": {**WORKSPACE, "secretName": "keys"}}, {"secrets": ["keys"]}),
        (
            {"workspaceStorage": {"source": "s3", "url": "s3://a/b", "secretName": "keys"}},
            {"secrets": ["keys"]},
        ),
        ({"workspaceStorage": {"source": "s3", "url": "s3://a/b"}}, {"fields": ["workspaceStorage.source"]}),
        ({"workspaceStorage": {"source": "existing", "claimName": "data"}}, {"claims": ["data"]}),
        ({"workspaceStorage": {**WORKSPACE, "mountPath": "/x"}}, {"fields": ["workspaceStorage"]}),
        ({"env": [{"name": "A", "valueFrom": SECRET}]}, {"secrets": ["keys"]}),
        ({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c"}}}]}, {"configMaps": ["c"]}),
        (
            {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]},
            {"fields": ["env.valueFrom.fieldRef"]},
        ),
        ({"scheduling": {"priorityClassName": "high"}}, {"priorityClasses": ["high"]}),
        (
            {"scheduling": {"tolerations": [{"operator": "Exists"}]}},
            {"tolerations": [{"operator": "Exists"}]},
        ),
        ({"scheduling": {"nodeSelector": {"a": "b"}}}, {"fields": ["scheduling.nodeSelector"]}),
        ({"scheduling": {"affinity": {"nodeAffinity": {}}}}, {"fields": ["scheduling"]}),
        ({"storage": {"checkpoints": {"claimName": "data"}}}, {"claims": ["data"]}),
        (
            {"storage": {"datasets": {"enabled": True, "size": "1Gi", "mountPath": "/d"}}},
            {"fields": ["storage"]},
        ),
        ({"labels": {"experiment": "a"}}, {"labels": ["experiment"]}),
        ({"annotations": {"team": "a"}}, {"annotations": ["team"]}),
        *(
            ({"volumes": {"additionalVolumes": [{"name": "v", **volume}]}}, entry)
            for volume, entry in [
                ({"secret": {"secretName": "keys"}}, {"secrets": ["keys"]}),
                ({"configMap": {"name": "code", "defaultMode": 420}}, {"configMaps": ["code"]}),
                ({"persistentVolumeClaim": {"claimName": "data"}}, {"claims": ["data"]}),
                ({"emptyDir": {}}, {"volumes": [{"emptyDir": {}}]}),
                (
                    {"nfs": {"server": "a", "path": "/"}},
                    {"volumes": [{"name": "x", "nfs": {"server": "a", "path": "/"}}]},
                ),
                (
                    {"projected": {"sources": [{"secret": {"name": "keys"}}]}},
                    {"volumes": [{"projected": {"sources": [{"secret": {"name": "keys"}}]}}]},
                ),
            ]
        ),
    ],
)
def test_an_entry_of_the_queue_permits_the_value(spec: Object, entry: Object) -> None:
    """Contract: refused by default with the list that an owner can change, permitted by the list alone, and
    refused again where the list has another value.
    """
    found, message = reason(spec, {})
    assert (found, f"({next(iter(entry))}: " in message) == ("OverrideNotAllowed", True), message
    spread = {"numNodes": None, "numGPUs": 0} if "storage" in spec else {}
    assert reason({**spec, **spread}, {"overrides": entry}) == ("", "")
    [(name, _)] = entry.items()
    other: Any = {"tolerations": [{"key": "x"}], "volumes": [{"emptyDir": {"medium": "Memory"}}]}.get(
        name, ["image"]
    )
    if name != "fields":
        assert reason(spec, {"overrides": {name: other}})[0] == "OverrideNotAllowed"


def test_a_host_path_needs_the_list_and_the_privilege() -> None:
    """Contract: a listed hostPath is still access to the node, and only that path is listed."""
    host = {"hostPath": {"path": "/data"}}
    spec = {
        "volumes": {
            "additionalVolumes": [{"name": "v", **host}],
            "additionalMounts": [{"name": "v", "mountPath": "/d"}],
        }
    }
    everything = {
        "fields": grantable(),
        "claims": ["a"],
        "secrets": ["b"],
        "configMaps": ["c"],
        "images": ["*"],
    }
    assert reason(spec, {"privileges": ["hostPath"], "overrides": everything})[0] == "OverrideNotAllowed"
    assert reason(spec, {"overrides": {"volumes": [host]}})[0] == "PrivilegeNotGranted"
    assert reason(spec, {"overrides": {"volumes": [host]}, "privileges": ["hostPath"]}) == ("", "")
    root = {"volumes": {"additionalVolumes": [{"name": "v", "hostPath": {"path": "/"}}]}}
    assert (
        reason(root, {"overrides": {"volumes": [host]}, "privileges": ["hostPath"]})[0]
        == "OverrideNotAllowed"
    )
    two = {"volumes": {"additionalVolumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]}}
    assert reason(two, {"overrides": {"volumes": [{"emptyDir": {}}]}})[0] == "OverrideNotAllowed"


def test_volumes_of_queue_are_not_those_of_job() -> None:
    """Contract: a job neither mounts a volume of the template, which may be a sidecar's, nor replaces it."""
    of = {
        "podTemplate": {"spec": {"volumes": [{"name": "token", "secret": {"secretName": "keys"}}]}},
        "overrides": {"configMaps": ["code"]},
    }
    mount = {"volumes": {"additionalMounts": [{"name": "token", "mountPath": "/t"}]}}
    found, message = reason(mount, of)
    assert (found, "fields: volumes.additionalMounts" in message) == ("OverrideNotAllowed", True)
    for name in ("token", "workspace", "dshm"):
        replaced = {"volumes": {"additionalVolumes": [{"name": name, "configMap": {"name": "code"}}]}}
        assert reason(replaced, of)[0] == "VolumeNameTaken"


def test_a_queue_can_withdraw_what_every_job_may_set() -> None:
    spec = {"env": [{"name": "A", "value": "b"}], "distributed": {"backend": "gloo"}}
    assert reason(spec, {}) == ("", "")
    found, message = reason(spec, {"overrides": {"allowed": []}})
    assert (found, "env (allowed: env)" in message) == ("OverrideNotAllowed", True)


def test_a_list_withdrawn_by_allowed_permits_nothing() -> None:
    of = {"overrides": {"allowed": ["env"], "images": ["*"]}}
    assert reason({"image": "x"}, of)[0] == "OverrideNotAllowed"


def test_queue_without_image_lists_those_of_its_jobs() -> None:
    """Contract: such a queue is checked with an image of a job; without a list no job could run."""
    for images, permitted in (([], False), (["registry.example/*"], True)):
        one = queue(image=None, overrides={"images": images})
        with nullcontext() if permitted else pytest.raises(Refused, match="expected an image"):
            dry_run_pods.of_queue(one, QueueSpec.model_validate(one["spec"]), kai=False)


def merged(one: Any, other: Any) -> Any:
    """Return two objects as one. Lists are joined, and the second value of a field replaces the first."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **{key: merged(one.get(key), value) for key, value in other.items()}}
    return [*one, *other] if isinstance(one, list) and isinstance(other, list) else other


@given(st.lists(st.sampled_from(sorted(JOB_PATHS)), min_size=1, max_size=6, unique=True))
def test_job_is_refused_exactly_if_it_leaves_allow_list(paths: list[str]) -> None:
    """Contract: no combination of fields hides one that is not permitted, or refuses those that are."""
    spec: Object = functools.reduce(merged, (placed(path, JOB_PATHS[path]) for path in paths))
    spec.pop("queue", None)
    one = JobSpec.model_validate(merged(job()["spec"], spec))
    refused = [path for path in paths if not ALLOWED.match(path)]
    if not refused:
        check_job(one, QueueSpec())
        return
    with pytest.raises(Refused) as caught:
        check_job(one, QueueSpec())
    assert caught.value.reason == "OverrideNotAllowed"
    for path in refused:
        assert path.partition(".")[0].removesuffix("[]") in str(caught.value)
