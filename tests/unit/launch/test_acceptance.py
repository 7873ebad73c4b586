"""The workloads of `harness accept`: which nodes must answer, what the pods run, and what is printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from mounting import lay_out

from harness.core.errors import UsageError
from harness.evidence.kubernetes.unschedulable import accepts
from harness.launch.workload_file import load
from harness.launch.workloads import acceptance
from harness.launch.workloads.acceptance import GPU, AcceptanceSpec
from harness.launch.workloads.loader import of_manifest
from harness.settings import Settings

CPU = AcceptanceSpec(device="cpu")


def node(
    name: str, capacity: int | None = None, allocatable: int | None = None, **labels: str
) -> dict[str, Any]:
    """A node as the API server says it; `capacity` GPUs, of which `allocatable` work."""
    has = {} if capacity is None else {GPU: str(capacity)}
    works = has if allocatable is None else {GPU: str(allocatable)}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [{"key": "anything", "effect": "NoSchedule"}]},
        "status": {"capacity": has, "allocatable": works},
    }


def cluster(*nodes: dict[str, Any]) -> Any:
    return SimpleNamespace(objects=lambda *_: list(nodes))


def container(workload: Any) -> dict[str, Any]:
    return dict(workload.document["spec"]["template"]["spec"]["containers"][0])


def test_a_node_without_allocatable_gpus_must_answer_too():
    """Contract: capacity counts, not what is allocatable now; taints keep no node out."""
    there = cluster(node("a", 8), node("b", 8, 0), node("c"), node("d", 0))
    assert acceptance.nodes(AcceptanceSpec()).must_answer(there) == ["a", "b"]
    assert acceptance.nodes(CPU).must_answer(there) == ["a", "b", "c", "d"]


def test_a_selector_narrows_the_nodes():
    there = cluster(node("a", 8, pool="x"), node("b", 8, pool="y"))
    asked = AcceptanceSpec(selector=(("pool", "y"),))
    assert acceptance.nodes(asked).must_answer(there) == ["b"]
    with pytest.raises(UsageError, match="pool"):
        acceptance.nodes(AcceptanceSpec(selector=(("pool", "z"),))).members(there)


def test_pods_are_pinned_to_gpu_nodes_with_all_gpus():
    """Contract: no pod waits for a GPU on a node that never had one."""
    there = cluster(node("a", 8), node("b", 8), node("c"))
    workload = acceptance.nodes(AcceptanceSpec())
    document = yaml.safe_load(yaml.safe_dump(workload.document))
    document["spec"]["template"]["spec"]["containers"][0]["env"] = []
    workload.prepare(document, SimpleNamespace(kube=there))  # type: ignore[arg-type]
    pod = document["spec"]["template"]["spec"]
    required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    fields = [term["matchFields"] for term in required["nodeSelectorTerms"]]
    assert fields == [[{"key": "metadata.name", "operator": "In", "values": [name]}] for name in "ab"]
    assert pod["containers"][0]["resources"]["limits"] == {GPU: 8}
    assert pod["containers"][0]["env"] == [{"name": "ACCEPT_GPUS", "value": "8"}]


def test_different_numbers_of_gpus_are_refused():
    """Contract: one template cannot ask for all GPUs of each; nothing is tested half."""
    there = cluster(node("a", 8), node("b", 4))
    with pytest.raises(UsageError, match="a has 8; b has 4"):
        acceptance.nodes(AcceptanceSpec()).members(there)


def test_the_number_of_nodes_is_written_and_not_guessed():
    """Contract: torchrun is told the replicas; the guide's labels and report folder are there."""
    workload = acceptance.ddp(AcceptanceSpec(gpus=8), 64)
    command = container(workload)["args"][0]
    assert "--nnodes=64 --nproc-per-node=8 --node-rank=${HOSTNAME##*-}" in command
    assert workload.document["spec"]["podManagementPolicy"] == "Parallel"
    assert (workload.purpose, workload.per_node) == ("ddp", 8)
    assert container(workload)["resources"]["limits"] == {GPU: 8}
    service = next(each for each in workload.other_objects if each["kind"] == "Service")
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert workload.first_host == "gpu-accept-ddp-0.gpu-accept-ddp"
    for made, app in ((workload, "gpu-accept-ddp"), (acceptance.nodes(CPU), "gpu-accept-daemon")):
        assert made.document["spec"]["template"]["metadata"]["labels"]["app"] == app
        assert {"name": "reports", "mountPath": "/app/reports"} in container(made)["volumeMounts"]


def test_search_on_gpus_has_one_pod_on_node():
    """Contract: what a group shows is of its nodes; on CPUs a small cluster is enough."""
    workload = acceptance.screen(AcceptanceSpec(gpus=8, busbw_limit=200.0), 4)
    apart = workload.document["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
    (rule,) = apart["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == {"app": "gpu-accept-ddp"}
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert "--limit 200" in container(workload)["args"][0]
    assert workload.per_node == 8
    assert "affinity" not in acceptance.screen(CPU, 4).document["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    "workload", [acceptance.nodes(AcceptanceSpec(gpus=1)), acceptance.ddp(CPU, 4)], ids=["nodes", "ddp"]
)
def test_what_is_printed_is_the_same_workload_again(workload: Any, tmp_path: Path):
    """Contract: plain Kubernetes objects without a namespace, which `harness run` launches too."""
    path = tmp_path / "printed.yaml"
    path.write_text(acceptance.manifests(workload))
    documents = list(yaml.safe_load_all(path.read_text()))
    assert all("namespace" not in each["metadata"] for each in documents)
    again = load(path)
    assert (again.purpose, again.kind) == (workload.purpose, workload.kind)
    plain = [each for each in documents if each["kind"] != "ConfigMap"]
    del plain[-1]["metadata"]["annotations"]
    assert of_manifest(plain, "x").purpose == "training"


def test_limits_of_ones_own_are_mounted(tmp_path: Path):
    own = tmp_path / "mine.toml"
    own.write_text(
        '[[row]]\nmodel = "A"\ncheck = "memory.copy"\nvalue = 1\nunit = "GB/s"\n'
        'kind = "limit"\nsource = "measured here"\n'
    )
    asked = AcceptanceSpec(device="cpu", limits=own)
    folder = lay_out(asked.mounted(), tmp_path / "mount")
    named = asked.words()[asked.words().index("--limits") + 1]
    assert (folder / Path(named).name).read_text() == own.read_text()
    assert named.startswith(acceptance.FOLDER)


@pytest.mark.parametrize(
    ("code", "report", "expected"),
    [(0, True, 0), (1, True, 0), (2, True, 0), (1, False, 1), (137, True, 137)],
)
def test_a_report_is_what_counts(tmp_path: Path, code: int, report: bool, expected: int):
    """Contract: a test that failed is no failed command; tests that ended without a report are."""
    folder = lay_out(CPU.mounted(), tmp_path / "mount")
    (folder / "acceptance/ends.py").write_text(f"import sys\nsys.exit({code})\n")
    reports = tmp_path / "reports"
    reports.mkdir()
    if report:
        (reports / "summary.json").write_text("{}")
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "ACCEPT_REPORTS": str(reports)}
    command = ["sh", str(folder / "acceptance.sh"), "acceptance.ends"]
    assert subprocess.run(command, env=env, check=False, timeout=60).returncode == expected


PASSED, FAILED, UNKNOWN, WARNED = (
    json.dumps({"kind": "node", "checks": [{"verdict": "FAIL"}], "verdict": word}, indent=1)
    for word in ("PASS", "FAIL", "UNKNOWN", "WARN")
)


@pytest.mark.parametrize(
    ("code", "reports", "word"),
    [
        (0, {"summary.json": PASSED}, "PASS"),
        (0, {"summary.json": WARNED}, "WARN"),
        (1, {"summary.json": FAILED}, "FAIL"),
        (1, {"ddp_tests_result.json": UNKNOWN}, "UNKNOWN"),
        (1, {"ddp_tests_result.json": PASSED}, "FAIL"),
        (1, {}, "FAIL"),
        (2, {"summary.json": UNKNOWN}, "UNKNOWN"),
        (0, {}, "DONE, the first pod has the report"),
        (137, {"summary.json": PASSED}, "UNKNOWN, the tests ended with exit code 137"),
        (137, {"summary.json": FAILED}, "FAIL"),
    ],
)
def test_printed_pod_stays_with_its_reports_and_its_verdict(
    tmp_path: Path, code: int, reports: dict[str, str], word: str
) -> None:
    """Contract: until SIGTERM the reports are there, a word says how it ended, and the code is true."""
    folder = lay_out(CPU.mounted(), tmp_path / "mount")
    place = tmp_path / "reports"
    place.mkdir()
    (place / "ended.txt").write_text("PASS")  # of the container's life before
    script = "".join(
        f"open(os.environ['ACCEPT_REPORTS'] + '/{name}', 'w').write({text!r})\n"
        for name, text in reports.items()
    )
    (folder / "acceptance/ends.py").write_text(f"import os, sys\n{script}os._exit({code})\n")
    env = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "ACCEPT_REPORTS": str(place),
        "ACCEPT_HOLD": "1",
    }
    command = ["sh", str(folder / "acceptance.sh"), "acceptance.ends"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(text for text in process.stdout if text.startswith("[RESULT]"))
        assert line.startswith(f"[RESULT] {word}; this pod stays until it is deleted")
        assert (place / "ended.txt").read_text().strip() == word
        assert sorted(path.name for path in place.iterdir()) == sorted(["ended.txt", *reports])
        assert process.poll() is None
        process.terminate()
        assert process.wait(timeout=20) == code


def test_the_harness_holds_its_own_pods(tmp_path: Path) -> None:
    """Contract: a printed manifest that `harness run` launches ends when its tests end."""
    folder = lay_out(CPU.mounted(), tmp_path / "mount")
    (folder / "acceptance/ends.py").write_text("")
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "ACCEPT_REPORTS": str(tmp_path)}
    command = ["sh", str(folder / "acceptance.sh"), "acceptance.ends"]
    hold_env = {**env, "ACCEPT_HOLD": "1", "HARNESS_NONCE": "n"}
    assert subprocess.run(command, env=hold_env, check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    "workload", [acceptance.nodes(AcceptanceSpec(gpus=1)), acceptance.ddp(AcceptanceSpec(gpus=8), 64)]
)
def test_kubectl_can_apply_what_is_printed(workload: Any, tmp_path: Path) -> None:
    """Contract: each object takes at most half of the annotation, and the volume shows all files."""
    documents = list(yaml.safe_load_all(acceptance.manifests(workload)))
    sizes = {each["metadata"]["name"]: len(json.dumps(each)) for each in documents}
    assert max(sizes.values()) <= 262144 // 2, sizes
    pod = documents[-1]["spec"]["template"]["spec"]
    volume = next(each for each in pod["volumes"] if each["name"] == "acceptance")
    maps = {each["metadata"]["name"]: each["data"] for each in documents if each["kind"] == "ConfigMap"}
    shown = {
        item["path"]: maps[source["configMap"]["name"]][item["key"]]
        for source in volume["projected"]["sources"]
        for item in source["configMap"]["items"]
    }
    assert shown == {path: file.read_text() for path, file in AcceptanceSpec().mounted().sources.items()}


def test_a_printed_daemonset_has_pods_on_gpu_nodes_alone() -> None:
    """Contract: a node without GPUs gets no pod. A selector of the user's says it otherwise."""
    text = acceptance.manifests(acceptance.nodes(AcceptanceSpec(gpus=1)))
    document = list(yaml.safe_load_all(text))[-1]
    template = document["spec"]["template"]
    labelled: dict[str, Any] = {"metadata": {"name": "a", "labels": {"nvidia.com/gpu.present": "true"}}}
    assert accepts(template, labelled)
    assert not accepts(template, {"metadata": {"name": "b", "labels": {"nvidia.com/gpu.present": "false"}}})
    assert not accepts(template, {"metadata": {"name": "c", "labels": {}}})
    assert "kubectl label node NODE nvidia.com/gpu.present=true" in text
    chosen = acceptance.manifests(acceptance.nodes(AcceptanceSpec(gpus=1, selector=(("pool", "h100"),))))
    spec = list(yaml.safe_load_all(chosen))[-1]["spec"]["template"]["spec"]
    assert (spec["nodeSelector"], spec.get("affinity")) == ({"pool": "h100"}, None)
    on_cpus = list(yaml.safe_load_all(acceptance.manifests(acceptance.nodes(CPU))))[-1]
    assert "affinity" not in on_cpus["spec"]["template"]["spec"]


def test_image_and_pull_secret_of_settings_are_printed() -> None:
    settings = Settings(worker_image="registry/worker@sha256:0", image_pull_secret="team/regcred")
    text = acceptance.manifests(acceptance.ddp(CPU, 2), settings)
    spec = list(yaml.safe_load_all(text))[-1]["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "registry/worker@sha256:0"
    assert spec["imagePullSecrets"] == [{"name": "regcred"}]
    assert "Copy the Secret regcred from namespace team" in text
    named = acceptance.manifests(acceptance.ddp(AcceptanceSpec(device="cpu", image="mine:1"), 2), settings)
    assert (
        list(yaml.safe_load_all(named))[-1]["spec"]["template"]["spec"]["containers"][0]["image"] == "mine:1"
    )


def test_affinities_of_the_user_stay_beside_the_nodes() -> None:
    """Contract: the launch names the nodes, and leaves what --pod says of pods."""
    workload = acceptance.nodes(AcceptanceSpec(gpus=1))
    document = yaml.safe_load(yaml.safe_dump(workload.document))
    document["spec"]["template"]["spec"]["affinity"] = {"podAntiAffinity": {"a": "b"}}
    workload.prepare(document, SimpleNamespace(kube=cluster(node("a", 1))))  # type: ignore[arg-type]
    affinity = document["spec"]["template"]["spec"]["affinity"]
    assert affinity["podAntiAffinity"] == {"a": "b"}
    assert "nodeAffinity" in affinity
