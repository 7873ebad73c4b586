"""Manifests of StatefulSets, Indexed Jobs and DaemonSets: what is launched from them, and what is refused."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.errors import UsageError
from harness.evidence.kubernetes.unschedulable import accepts
from harness.launch import inits
from harness.launch.konduktor.workload import KonduktorWorkload
from harness.launch.labels import NETCHECK, NONCE_LABEL, QUEUE_LABEL
from harness.launch.workload_file import load
from harness.launch.workloads.base import Surroundings
from harness.launch.workloads.loader import of_manifest
from harness.launch.workloads.pod_template_workload import PlainWorkload

ROOT = Path(__file__).parents[3]
QUEUED = {QUEUE_LABEL: "user-queue"}
NETWORKING = ROOT / "manifests/networking.yaml"
TORCHRUN = ROOT / "manifests/torchrun-job.yaml"
"""Has no pod template: test_torchrun_job.py."""
MANIFESTS = sorted({*(ROOT / "manifests").glob("*.yaml")} - {NETWORKING, TORCHRUN})
INDEX = "batch.kubernetes.io/job-completion-index"


def surroundings(**more: Any) -> Surroundings:
    """Surroundings as a launch gives them. Nothing here reaches a cluster."""
    nothing: Any = None
    given: dict[str, Any] = {
        "context": nothing,
        "kube": nothing,
        "namespace": "e2e-1",
        "nonce": "1",
        "image": "worker:1",
        "envs": {"PLUTO_RUN_ID": "e2e-run-1", "HARNESS_NONCE": "1"},
        "secret_env": {"PLUTO_API_KEY": ("pluto", "PLUTO_API_KEY")},
        "max_seconds": 300.0,
        "nodes": 2,
        **more,
    }
    return Surroundings(**given)


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def worker(rendered: list[Any]) -> Any:
    return rendered[-1]["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_is_a_workload(path: Path) -> None:
    """Contract: every kind offers what the code after the launch needs."""
    workload = load(path)
    assert isinstance(workload, PlainWorkload)
    assert (workload.name, workload.container, workload.per_node) == ("trainer", "worker", 1)
    assert workload.uses_worker_image
    assert workload.resources == {"cpu", "memory"}
    assert workload.keep_alive == (workload.kind in {"StatefulSet", "DaemonSet"})


def test_the_guides_services_select_its_pods() -> None:
    """Contract: one Service names every pod of the Job, the other leads to rank 0 alone; nobody sleeps."""
    workload = load(NETWORKING)
    assert isinstance(workload, PlainWorkload)
    assert (workload.kind, workload.name, workload.per_node) == ("Job", "training", 2)
    labels = [{**workload.template["metadata"]["labels"], INDEX: str(index)} for index in range(2)]
    selected = {
        service["metadata"]["name"]: [service["spec"]["selector"].items() <= own.items() for own in labels]
        for service in workload.other_objects
    }
    assert selected == {"training": [True, True], "training-master": [True, False]}
    assert workload.template["spec"]["subdomain"] == "training"
    assert workload.envs["MASTER_ADDR"] == "training-master"
    assert "sleep" not in NETWORKING.read_text().partition("args:")[2]


def test_a_job_of_netcheck_alone_says_so() -> None:
    """Contract: only the annotation frees a Job from logging with Pluto, whatever its command is."""
    (service, job) = documents(ROOT / "harness/faults/files/netcheck.yaml")
    assert of_manifest([service, job], "x").purpose == "netcheck"
    for value in ({}, {NETCHECK: "before"}):
        job["metadata"]["annotations"] = value
        assert of_manifest([service, job], "x").purpose == "training"


def test_a_job_file_is_one_too() -> None:
    """Contract: a file without apiVersion and kind is a konduktor job file."""
    workload = load(ROOT / "jobs/multinode.yaml")
    assert isinstance(workload, KonduktorWorkload)
    assert (workload.kind, workload.name) == ("JobSet", "pluto-multinode-e2e-test")


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_what_is_applied(path: Path) -> None:
    """Contract: the launch sets namespace, label, image, environment and init. The rest stays as written."""
    workload = load(path)
    assert isinstance(workload, PlainWorkload)
    before = copy.deepcopy(workload.document)
    rendered = workload.render(surroundings(scripts=[{"name": "scripts-0", "mountPath": "/workspace/a.py"}]))
    assert workload.document == before
    assert [each["metadata"]["namespace"] for each in rendered] == ["e2e-1"] * 2
    assert [each["kind"] for each in rendered] == ["Service", workload.kind]
    template = rendered[-1]["spec"]["template"]
    assert template["metadata"]["labels"] == {"app": "trainer", NONCE_LABEL: "1"}
    container = worker(rendered)
    own = before["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "worker:1"
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["command"] == ["sh", "-c", inits.WORKER, "sh", *own["command"], *own["args"]]
    env = {each["name"]: each for each in container["env"]}
    assert env["PLUTO_RUN_ID"]["value"] == "e2e-run-1"
    assert env["HARNESS_NODES"]["value"] == "2"
    assert env["HARNESS_HOLD"]["value"] == ("1" if workload.keep_alive else "0")
    assert env["PLUTO_API_KEY"]["valueFrom"]["secretKeyRef"] == {"name": "pluto", "key": "PLUTO_API_KEY"}
    assert template["spec"]["volumes"] == [{"name": "scripts-0", "configMap": {"name": "scripts"}}]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("aFieldOfTomorrow", {"any": 1}),
        ("volumes", [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": 1024}}]),
        ("overhead", {"cpu": 1, "memory": "1Gi"}),
        ("nodeSelector", None),
    ],
)
def test_what_the_api_server_takes_is_not_refused(path: str, value: Any) -> None:
    """Contract: quantities may be numbers, and a newer cluster has fields that the client does not know."""
    changed = documents(ROOT / "manifests/statefulset.yaml")
    changed[1]["spec"]["template"]["spec"][path] = value
    assert of_manifest(changed, "x").kind == "StatefulSet"


def test_a_job_ends_before_the_harness_stops_waiting() -> None:
    """Contract: activeDeadlineSeconds is the launch's, or the manifest's own where that is less."""
    path = ROOT / "manifests/indexed-job.yaml"
    workload = load(path)
    assert isinstance(workload, PlainWorkload)
    assert workload.render(surroundings())[-1]["spec"]["activeDeadlineSeconds"] == 300
    changed = documents(path)
    changed[1]["spec"]["activeDeadlineSeconds"] = 20
    short = of_manifest(changed, "x").render(surroundings())
    assert short[-1]["spec"]["activeDeadlineSeconds"] == 20


def test_a_secret_in_a_manifest_is_applied_by_reference() -> None:
    """Contract: the secret is applied by reference, and the redactor knows it."""
    changed = documents(ROOT / "manifests/statefulset.yaml")
    changed[1]["spec"]["template"]["spec"]["containers"][0]["env"] = [
        {"name": "HF_TOKEN", "value": "hf_abcdef123456"},
        {"name": "EPOCHS", "value": "3"},
    ]
    workload = of_manifest(changed, "x")
    assert workload.secret_envs == {"HF_TOKEN": "hf_abcdef123456"}
    assert "hf_abcdef123456" in workload.secrets
    with_secret = surroundings(secret_env={"HF_TOKEN": ("pluto", "HF_TOKEN")})
    assert "hf_abcdef123456" not in yaml.safe_dump_all(workload.render(with_secret))
    assert {"name": "EPOCHS", "value": "3"} in worker(workload.render(with_secret))["env"]


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("statefulset", "spec/replicas", 0, "spec.replicas: expected a positive whole number"),
        ("statefulset", "spec/serviceName", None, "spec.serviceName"),
        (
            "statefulset",
            "spec/template/spec/containers/0/command",
            None,
            "containers[0].command: expected a list",
        ),
        (
            "statefulset",
            "spec/template/spec/containers/0/image",
            None,
            "containers[0].image: expected a string",
        ),
        ("statefulset", "spec/template/spec/containers/0/image", 7, "containers.0.image: Input should be a"),
        (
            "statefulset",
            "spec/replicas",
            1_000_000_000,
            "expected at most 10000 pods, found 1000000000",
        ),
        ("indexed-job", "spec/completions", 99_999, "spec.completions: expected at most 10000 pods"),
        (
            "statefulset",
            "spec/template/spec/containers/0/args/0",
            "torchrun --nproc-per-node=4096 x.py",
            "--nproc_per_node: expected at most 1024 processes per node, found 4096",
        ),
        (
            "statefulset",
            "spec/template/spec/containers/0/args/0",
            "x" * 200_000,
            "args[0]: expected at most 122880 bytes",
        ),
        (
            "statefulset",
            "spec/template/spec/containers/0/image",
            "a b",
            "letters, digits and . _ - + / : @;",
        ),
        (
            "statefulset",
            "spec/template/spec/containers/0/env",
            [{"name": "A" * 300}],
            "at most 255 characters",
        ),
        (
            "statefulset",
            "spec/template/metadata/labels",
            {"a": "b" * 64},
            "labels.a: String should have at most",
        ),
        (
            "statefulset",
            "spec/template/spec/containers/0/env",
            [{"name": "EPOCHS", "value": 3}],
            "spec.template.spec.containers[0].env[0].value: expected a string: put it in quotes",
        ),
        (
            "indexed-job",
            "spec/template/spec/toleration",
            [{"operator": "Exists"}],
            "spec.template.spec.toleration: Kubernetes has no such field; did you mean tolerations?",
        ),
        (
            "daemonset",
            "spec/template/spec/terminationGracePeriodSeconds",
            "30",
            "terminationGracePeriodSeconds: expected a whole number, found '30'",
        ),
        (
            "statefulset",
            "spec/template/spec/containers/0/readinessProbe",
            {"exec": ["true"]},
            "containers[0].readinessProbe.exec: expected a mapping",
        ),
        ("statefulset", "spec", [], "spec: Input should be"),
        ("statefulset", "spec/template/spec", "x", "spec.template.spec: Input should be"),
        ("statefulset", "metadata/annotations", ["x"], "metadata.annotations: Input should be"),
        ("statefulset", "kind", ["StatefulSet"], "kind: Input should be a valid string"),
        ("indexed-job", "spec/activeDeadlineSeconds", "soon", "spec.activeDeadlineSeconds: Input should be"),
        ("statefulset", "spec/template/spec/containers", [], "at least one container"),
        ("indexed-job", "spec/completionMode", "NonIndexed", "spec.completionMode: expected Indexed"),
        ("indexed-job", "spec/parallelism", 1, "spec.parallelism: expected 2"),
        ("indexed-job", "spec/completions", None, "spec.completions: expected a positive whole number"),
        (
            "indexed-job",
            "spec/suspend",
            True,
            "spec.suspend: without a queue label, nothing resumes this Job",
        ),
        ("daemonset", "metadata/labels", QUEUED, "Kueue does not manage a DaemonSet"),
        (
            "daemonset",
            "spec/template/metadata/labels",
            QUEUED,
            "to metadata.labels of the DaemonSet",
        ),
        (
            "statefulset",
            "spec/template/metadata/labels",
            QUEUED,
            "so that Kueue admits all of its pods together",
        ),
        ("daemonset", "kind", "Deployment", "exactly one of"),
        ("daemonset", "metadata", {}, "metadata.name is missing"),
    ],
)
def test_what_cannot_work_is_refused(name: str, path: str, value: Any, message: str) -> None:
    """Contract: it is refused before anything is created, with what was expected and what was seen."""
    changed = documents(ROOT / f"manifests/{name}.yaml")
    *parents, last = [int(word) if word.isdecimal() else word for word in path.split("/")]
    place: Any = changed[1]
    for parent in parents:
        place = place[parent]
    place[last] = value
    with pytest.raises(UsageError) as refused:
        of_manifest(changed, "x.yaml")
    assert message in str(refused.value)


def test_a_helper_before_the_worker_is_refused() -> None:
    """Contract: the first container is the ranks' own; one that runs no torchrun, before one that does, is
    not.
    """
    changed = documents(ROOT / "manifests/indexed-job.yaml")
    containers = changed[1]["spec"]["template"]["spec"]["containers"]
    containers.insert(0, {"name": "proxy", "image": "proxy:1", "command": ["sleep", "infinity"]})
    with pytest.raises(
        UsageError, match=r"the first container must run the ranks, but torchrun runs in .* and not in proxy"
    ):
        of_manifest(changed, "x.yaml")
    containers.reverse()
    of_manifest(changed, "x.yaml")


def test_the_placeholder_image_stands_for_ours_in_every_container() -> None:
    """Contract: a helper and an init container may run in the worker image too."""
    changed = documents(ROOT / "manifests/indexed-job.yaml")
    spec = changed[1]["spec"]["template"]["spec"]
    spec["initContainers"] = [{"name": "warm", "image": "pluto-multinode-test:local"}]
    spec["containers"].append({"name": "proxy", "image": "pluto-multinode-test:local"})
    spec["containers"].append({"name": "own", "image": "proxy:1"})
    workload = of_manifest(changed, "x.yaml")
    assert isinstance(workload, PlainWorkload)
    rendered = workload.render(surroundings())[-1]["spec"]["template"]["spec"]
    images = [each["image"] for each in [*rendered["initContainers"], *rendered["containers"]]]
    assert images == ["worker:1", "worker:1", "worker:1", "proxy:1"]


@pytest.mark.parametrize("name", ["statefulset", "indexed-job"])
def test_a_queue_name_makes_kueue_watched(name: str) -> None:
    """Contract: a manifest that names a queue is launched in it, and what Kueue does of it is evidence."""
    changed = documents(ROOT / f"manifests/{name}.yaml")
    assert not {"workload", "localqueue"} & {kind.name for kind in of_manifest(changed, "x").watched}
    changed[1]["metadata"]["labels"] = QUEUED
    changed[1]["spec"]["suspend"] = True
    workload = of_manifest(changed, "x")
    assert workload.queue == "user-queue"
    assert {"workload", "localqueue", "clusterqueue"} <= {kind.name for kind in workload.watched}


def test_objects_that_are_not_expected_beside_it() -> None:
    changed = documents(ROOT / "manifests/daemonset.yaml")
    changed[0]["kind"] = "Namespace"
    with pytest.raises(UsageError, match="Namespace: besides the workload, only"):
        of_manifest(changed, "x.yaml")


def test_a_daemonset_goes_where_labels_and_taints_let_it() -> None:
    """Contract: a cordoned node takes a DaemonSet's pod, and one with a taint of its own does not."""
    pod = {"spec": {"nodeSelector": {"pool": "a"}}}
    node: Any = {"metadata": {"labels": {"pool": "a"}}, "spec": {"unschedulable": True}}
    assert accepts(pod, node)
    taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    assert not accepts(pod, {**node, "spec": {"taints": [taint]}})
    assert not accepts(pod, {**node, "metadata": {"labels": {}}})


class Container:
    """The init as PID 1 of a process namespace of its own, as in a pod."""

    def __init__(self, folder: Path, script: str, hold: bool = False) -> None:
        self.log = folder / "termination"
        self.output = folder / "output"
        self.output.mkdir()
        env = {
            "PATH": os.environ["PATH"],
            "HARNESS_NONCE": "n1",
            "HARNESS_HOLD": "1" if hold else "0",
            "TERMINATION_LOG": str(self.log),
            "KONDUKTOR_OUTPUT_DIR": str(self.output),
        }
        inside = ["sh", "-c", inits.WORKER, "sh", "bash", "-c", script]
        command = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child", *inside]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    def pid(self) -> int:
        """Return the process id of the init, seen from outside."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        deadline = time.monotonic() + 20
        while not (found := children.read_text().split()):
            assert time.monotonic() < deadline, "unshare started nothing"
            time.sleep(0.01)
        return int(found[0])


@pytest.fixture
def contain(tmp_path: Path) -> Iterator[Callable[..., Container]]:
    """Start the init around a script; whatever becomes of the test, nothing of it stays."""
    if os.geteuid() != 0:
        pytest.skip("a process namespace is for root")
    started: list[Container] = []

    def start(script: str, **more: bool) -> Container:
        started.append(Container(tmp_path, script, **more))
        return started[-1]

    yield start
    for container in started:
        container.process.kill()  # unshare takes its child with it
        container.process.wait()


@pytest.mark.parametrize("code", [0, 3])
def test_the_init_says_how_the_command_ended(contain: Callable[..., Container], code: int) -> None:
    """Contract: the exit code is the container's, and is in its log and in its termination message."""
    script = f"echo '{{\"truth\": {{}}}}' > $KONDUKTOR_OUTPUT_DIR/result.json; echo hello; exit {code}"
    container = contain(script)
    output, _ = container.process.communicate(timeout=30)
    assert container.process.returncode == code
    assert output.splitlines() == ["hello", f"@exit1 n1 {code}"]
    assert yaml.safe_load(container.log.read_text()) == {"exit": code, "value": {"truth": {}}}


def test_a_held_container_stays_until_it_is_ended(contain: Callable[..., Container]) -> None:
    """Contract: a held container stays after its command, and then ends with the command's code."""
    container = contain("exit 4", hold=True)
    assert container.process.stdout is not None
    assert container.process.stdout.readline() == "@exit1 n1 4\n"
    init = container.pid()
    assert container.process.poll() is None
    os.kill(init, signal.SIGTERM)
    assert container.process.wait(20) == 4


def test_the_init_passes_sigterm_on(contain: Callable[..., Container]) -> None:
    """Contract: a rank can log its last lines, and the container ends when every process has ended."""
    script = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    container = contain(script)
    assert container.process.stdout is not None
    assert container.process.stdout.readline() == "ready\n"
    os.kill(container.pid(), signal.SIGTERM)
    output, _ = container.process.communicate(timeout=30)
    assert output.splitlines() == ["bye", "@exit1 n1 7"]
    assert container.process.returncode == 7


def test_the_command_hears_sigint_as_without_the_init(contain: Callable[..., Container]) -> None:
    """A shell lets what it starts in the background ignore it; Python then raises no KeyboardInterrupt."""
    container = contain("python3 -c 'import signal; signal.raise_signal(signal.SIGINT)'; echo code $?")
    output, _ = container.process.communicate(timeout=60)
    assert "code 130" in output
