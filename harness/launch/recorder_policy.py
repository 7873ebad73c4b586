"""Build the admission policy that injects the recorder into other launchers' pods. All functions are pure.

A MutatingAdmissionPolicy is evaluated in the API server, so it depends on no webhook and on no image. It
never blocks a pod, because its failurePolicy is Ignore and the volume with the files is optional. PYTHONPATH
in a pod replaces the image's value, so a container is recorded only in these cases:

- The command begins with a shell or with Python. The policy wraps the command in a call of that program,
  which prepends the recorder's folder to the image's PYTHONPATH and then executes the command (`exec`).
- The pod itself sets PYTHONPATH. The policy prepends the folder to the pod's value, because the image's value
  is replaced anyway.
- The label `pluto-e2e-harness/record: env` states that the image sets no PYTHONPATH.

The policy does not change init containers, native sidecars or Pluto's variables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from harness.core.kubernetes import Object
from harness.launch.mounts import recorder
from harness.workers.recorder.hooks import ADMITTED, MODE

API, POLICY, BINDING = (
    "admissionregistration.k8s.io/v1",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
)
SINCE = "1.36"
"""The first Kubernetes version that serves MutatingAdmissionPolicy in API version v1."""
NAME = "pluto-e2e-harness-recorder"
"""The name of the policy, the ConfigMaps and the volume."""
RECORD = "pluto-e2e-harness/record"
"""The label that selects the pods to record. Its value is "true" on namespaces, and "true", "env" or "false"
on pods."""
FILES = {"pluto-e2e-harness/recorder": "files"}
"""The label on the ConfigMaps that `harness recorder install` creates."""
JOBSET_UID = "jobset.sigs.k8s.io/jobset-uid"
MAX_CONTAINERS = 4
WAY = "way"
"""The prefix of the policy variables that state how a container is recorded. The container's index is
appended to it."""
NONCE = "HARNESS_NONCE"
MOUNTED = replace(
    recorder.MOUNTED,
    name=NAME,
    sources={path: file for path, file in recorder.MOUNTED.sources.items() if path.endswith(".py")},
)
SHELL = r"^((/usr)?(/local)?/bin/)?(sh|bash|dash|ash)$"
PYTHON = r"^(/[a-zA-Z0-9_./-]+/)?python[0-9.]*$"
IN_SHELL = (
    f"[ ! -d {recorder.FOLDER} ] || export "
    f'PYTHONPATH="{recorder.FOLDER}${{PYTHONPATH:+:$PYTHONPATH}}" HARNESS_LOG="/proc/$$$$/fd/1"; exec "$@"'
)
"""The shell script that sets the recorder's variables and then executes the command. It contains `$$$$`,
because the kubelet replaces each `$$` in a command with `$`."""
IN_PYTHON = "\n".join(
    [
        "import os, sys",
        f"folder, env = '{recorder.FOLDER}', os.environ",
        "if os.path.isdir(folder):",
        "    env['PYTHONPATH'] = os.pathsep.join(filter(None, [folder, env.get('PYTHONPATH')]))",
        "    env['HARNESS_LOG'] = '/proc/%d/fd/1' % os.getpid()",
        "try: os.execvp(sys.argv[1], sys.argv[1:])",
        "except OSError: os.execv(sys.executable, sys.argv[1:])",
    ]
)


def documents() -> list[Object]:
    """Return the policy and its bindings: for labelled namespaces, and for labelled pods elsewhere."""
    labelled = {"matchLabels": {RECORD: "true"}}
    not_labelled = {"matchExpressions": [{"key": RECORD, "operator": "NotIn", "values": ["true"]}]}
    not_opted_out = {"matchExpressions": [{"key": RECORD, "operator": "NotIn", "values": ["false"]}]}
    opted_in = {"matchExpressions": [{"key": RECORD, "operator": "In", "values": ["true", "env"]}]}
    return [
        _policy(),
        _binding("namespaces", labelled, not_opted_out),
        _binding("pods", not_labelled, opted_in),
    ]


def config_map(namespace: str) -> Object:
    """Return the ConfigMap with the recorder's files."""
    document = MOUNTED.config_map(namespace)
    document["metadata"]["labels"] = dict(FILES)
    return document


def volume() -> Object:
    """Return the volume with the recorder's files. The kubelet starts the pod even if the ConfigMap is
    missing."""
    document = MOUNTED.volume()
    document["configMap"]["optional"] = True
    return document


def wrapped(command: list[str]) -> list[str] | None:
    """Return a command that sets PYTHONPATH and then executes `command`, or None if that is not safe.

    If the wrapping shell is bash, it runs with --posix, so that it does not read the file named by BASH_ENV.
    The command itself still reads that file.
    """
    first = command[0] if command else ""
    if re.match(SHELL, first):
        posix = ["--posix"] if first.endswith("bash") else []
        return [first, *posix, "-c", IN_SHELL, first, *command]
    if re.match(PYTHON, first):
        return [first, "-S", "-c", IN_PYTHON, *command]
    return None


# -- CEL -----------------------------------------------------------------------------------------------------
def _policy() -> Object:
    conditions = {
        "no-recorder": f"!has(object.spec.volumes) || object.spec.volumes.all(v, v.name != {_text(NAME)})",
        "linux": '!has(object.spec.os) || object.spec.os.name != "windows"',
        "no-mirror-pod": "!has(object.metadata.annotations) || "
        '!("kubernetes.io/config.mirror" in object.metadata.annotations)',
    }
    variables = [
        {"name": "nonce", "expression": _NONCE},
        *({"name": f"{WAY}{at}", "expression": _way(at)} for at in range(MAX_CONTAINERS)),
    ]
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
        "scope": "Namespaced",
    }
    spec = {
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": [rule]},
        "matchConditions": [{"name": name, "expression": text} for name, text in conditions.items()],
        "variables": variables,
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _patch()}}],
    }
    return {"apiVersion": API, "kind": POLICY, "metadata": {"name": NAME}, "spec": spec}


def _binding(name: str, namespaces: Object, pods: Object) -> Object:
    match = {"namespaceSelector": namespaces, "objectSelector": pods}
    spec = {"policyName": NAME, "matchResources": match}
    return {"apiVersion": API, "kind": BINDING, "metadata": {"name": f"{NAME}-{name}"}, "spec": spec}


def _text(value: str) -> str:
    """Return a string as a CEL string literal."""
    return json.dumps(value)


def _value(value: object) -> str:
    """Return a JSON value as a CEL literal.

    The literal uses plain CEL maps and lists. With an initializer such as `Object.spec.volumes{…}` for a list
    in a patch, Kubernetes 1.36 API servers panic (kubernetes/kubernetes#142181) and would reject the pod.
    """
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)}: dyn({_value(each)})" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


_OWNERS = "object.metadata.ownerReferences"
_NONCE = (
    f"has(object.metadata.labels) && {_text(JOBSET_UID)} in object.metadata.labels"
    f" ? object.metadata.labels[{_text(JOBSET_UID)}]"
    f" : has({_OWNERS}) && {_OWNERS}.exists(o, has(o.controller) && o.controller)"
    f' ? string({_OWNERS}.filter(o, has(o.controller) && o.controller)[0].uid) : ""'
)
"""The CEL expression for the UID of a pod's JobSet or controller. A bare pod has neither, and its own UID is
not known yet."""


def _way(at: int) -> str:
    """Return the CEL expression that determines how a container is recorded.

    Its value is "shell" or "python" (the command is wrapped), "value" (the pod's PYTHONPATH is changed),
    "env" (PYTHONPATH is added), or "" if the container is not recorded. `at` is the container's index in the
    pod.
    """
    c = f"object.spec.containers[{at}]"
    mounts = f"has({c}.volumeMounts) && {c}.volumeMounts"
    starts_with = f"has({c}.command) && size({c}.command) > 0 && {c}.command[0].matches"
    labels = "object.metadata.labels"
    declared = f'has({labels}) && {_text(RECORD)} in {labels} && {labels}[{_text(RECORD)}] == "env"'
    alternatives = [
        (f"size(object.spec.containers) <= {at}", ""),
        (f'has({c}.env) && {c}.env.exists(e, e.name.startsWith("HARNESS_"))', ""),
        (f"{mounts}.exists(m, m.mountPath.startsWith({_text('/opt/harness')}))", ""),
        (f"{starts_with}({_text(SHELL)})", "shell"),
        (f"{starts_with}({_text(PYTHON)})", "python"),
        (
            f'has({c}.env) && {c}.env.exists_one(e, e.name == "PYTHONPATH")'
            f' && {c}.env.exists(e, e.name == "PYTHONPATH" && has(e.value) && e.value != "")',
            "value",
        ),
        (f'has({c}.env) && {c}.env.exists(e, e.name == "PYTHONPATH")', ""),
        (f"{declared} && !has({c}.envFrom)", "env"),
    ]
    return " : ".join(f"{test} ? {_text(way)}" for test, way in alternatives) + ' : ""'


def _way_variable(at: int) -> str:
    """Return the policy variable that states how a container is recorded. `at` is the container's index."""
    return f"variables.{WAY}{at}"


def _patch() -> str:
    """Return the CEL expression for the JSON patch that adds the recorder to a pod."""
    any_way = " || ".join(f'{_way_variable(at)} != ""' for at in range(MAX_CONTAINERS))
    volumes = "/spec/volumes"
    added = _add(f"{volumes}/-", _value(volume()))
    pod = f"({any_way} ? {_list('object.spec.volumes', volumes)} + [{added}] : [])"
    return " +\n".join([pod, *(part for at in range(MAX_CONTAINERS) for part in _container(at))])


def _container(at: int) -> Iterator[str]:
    c, path, way = f"object.spec.containers[{at}]", f"/spec/containers/{at}", _way_variable(at)
    own = f"{c}.command"
    empty = 'variables.nonce == ""'
    field = {"name": NONCE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    owner = f'{{"name": dyn({_text(NONCE)}), "value": dyn(variables.nonce)}}'
    nonce = f"({empty} ? {_value(field)} : {owner})"
    mode = _value({"name": MODE, "value": ADMITTED})
    mount = _value(MOUNTED.mount())
    yield (
        f'({way} == "" ? [] : {_list(f"{c}.volumeMounts", f"{path}/volumeMounts")} + '
        f"[{_add(f'{path}/volumeMounts/-', mount)}] + {_list(f'{c}.env', f'{path}/env')} + "
        f"[{_add(f'{path}/env/-', nonce)}, {_add(f'{path}/env/-', mode)}])"
    )
    first, words = f"string({own}[0])", f"{own}.map(word, string(word))"
    posix = f'({first}.endsWith("bash") ? ["--posix"] : [])'
    shell = f'[{first}] + {posix} + ["-c", {_text(IN_SHELL)}, {first}] + {words}'
    python = f'[{first}, "-S", "-c", {_text(IN_PYTHON)}] + {words}'
    for kind, command in (("shell", shell), ("python", python)):
        yield f'({way} == "{kind}" ? [{_add(f"{path}/command", command, op="replace")}] : [])'
    names = f"{c}.env.map(e, e.name)"
    place = f'"{path}/env/" + string({names}.indexOf("PYTHONPATH")) + "/value"'
    value = f'"{recorder.FOLDER}:" + {c}.env.filter(e, e.name == "PYTHONPATH")[0].value'
    yield f'({way} == "value" ? [JSONPatch{{op: "replace", path: {place}, value: {value}}}] : [])'
    added = _value({"name": "PYTHONPATH", "value": recorder.FOLDER})
    yield f'({way} == "env" ? [{_add(f"{path}/env/-", added)}] : [])'


def _add(path: str, value: str, op: str = "add") -> str:
    return f"JSONPatch{{op: {_text(op)}, path: {_text(path)}, value: {value}}}"


def _list(field: str, path: str) -> str:
    """Return a CEL list with the JSON patches that create an empty list at `path`.

    The CEL expression evaluates to an empty list if the pod already has `field`, and otherwise to one patch.
    """
    return f"(has({field}) ? [] : [{_add(path, '[]')}])"


# -- status --------------------------------------------------------------------------------------------------
def is_recorded(container: Object) -> bool:
    """Return whether the policy, or a user who followed the printed snippet, has added the recorder to a
    container."""
    return any(each.get("name") == MODE for each in container.get("env") or [])


def why_not(pod: Object, container: Object) -> str:
    """Return why the policy does not record a container and what to change, or "" if it records it."""
    containers = pod["spec"]["containers"]
    env = container.get("env") or []
    mounts = [str(each.get("mountPath")) for each in container.get("volumeMounts") or []]
    excluded = {
        "the pod runs on Windows": (pod["spec"].get("os") or {}).get("name") == "windows",
        f"only the first {MAX_CONTAINERS} containers of a pod are recorded": containers.index(container)
        >= MAX_CONTAINERS,
        "the harness launched this pod and already records it": any(
            each["name"].startswith("HARNESS_") for each in env
        ),
        "another volume is already mounted at /opt/harness": any(
            path.startswith("/opt/harness") for path in mounts
        ),
    }
    return next((reason for reason, applies in excluded.items() if applies), "") or _obstacle(pod, container)


def _obstacle(pod: Object, container: Object) -> str:
    """Return why PYTHONPATH cannot be set in a container, or "" if it can be set."""
    command = container.get("command") or []
    paths = [each for each in container.get("env") or [] if each["name"] == "PYTHONPATH"]
    declared = (pod["metadata"].get("labels") or {}).get(RECORD) == "env" and not container.get("envFrom")
    if wrapped(command) is not None or (declared and not paths):
        return ""
    if paths:
        is_literal = len(paths) == 1 and paths[0].get("value")
        return (
            ""
            if is_literal
            else "its PYTHONPATH does not have a literal value: start the command with a shell"
        )
    problem = f"its command begins with {command[0]}" if command else "its command comes from the image"
    return (
        f"{problem}: start the command with a shell, as in command: [sh, -c, 'exec …']; or, if the image "
        "does "
        f"not set PYTHONPATH, label the pod {RECORD}: env"
    )


def snippet() -> dict[str, Any]:
    """Return a pod template snippet that adds the recorder without the policy."""
    env = [
        {"name": NONCE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": MODE, "value": ADMITTED},
    ]
    container = {
        "name": "trainer",
        "command": ["sh", "-c", IN_SHELL, "sh", "torchrun", "train.py"],
        "env": env,
        "volumeMounts": [MOUNTED.mount()],
    }
    return {"spec": {"containers": [container], "volumes": [volume()]}}
