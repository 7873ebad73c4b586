"""What --pod and --env add to the pods of a launch, and what they must not break."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from harness.cli.main import main
from harness.core.deadlines import Budget
from harness.core.errors import UsageError
from harness.evidence.schema.bundle import Expected
from harness.launch.prepare import environment
from harness.launch.workloads import acceptance, training, training_spec
from harness.launch.workloads.acceptance import AcceptanceSpec
from harness.launch.workloads.netcheck_job import job
from harness.launch.workloads.pod_options import TAKEN, TAKEN_PREFIXES, PodOptions, variables
from harness.launch.workloads.pod_template_workload import PlainWorkload

CPU = AcceptanceSpec(device="cpu")
TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
WORKLOADS: dict[str, Callable[[], PlainWorkload]] = {
    "accept": lambda: acceptance.nodes(CPU),
    "netcheck": lambda: job(2),
    "trainer": lambda: training.workload(training_spec.TrainingSpec()),
}


def written(folder: Path, text: str | dict[str, Any]) -> Path:
    path = folder / "pod.yaml"
    path.write_text(text if isinstance(text, str) else yaml.safe_dump(text))
    return path


def pod_of(workload: Any) -> dict[str, Any]:
    return dict(workload.document["spec"]["template"]["spec"])


@pytest.mark.parametrize("container", WORKLOADS)
def test_a_file_is_merged_by_the_keys_of_kubernetes(container: str, tmp_path: Path) -> None:
    """Contract: lists merge by name, what the launch has stays, and each command has one container."""
    workload = WORKLOADS[container]()
    spec = {
        "nodeSelector": {"pool": "h100"},
        "runtimeClassName": "nvidia",
        "schedulerName": "kai-scheduler",
        "tolerations": [TAINT],
        "imagePullSecrets": [{"name": "regcred"}],
        "volumes": [{"name": "ib", "hostPath": {"path": "/dev/infiniband"}}],
        "containers": [
            {
                "name": container,
                "resources": {"limits": {"rdma/ib": 1}},
                "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                "volumeMounts": [{"name": "ib", "mountPath": "/dev/infiniband"}],
            }
        ],
    }
    file = written(tmp_path, {"metadata": {"labels": {"team": "x"}}, "spec": spec})
    made = PodOptions(file=file).applied(workload)
    before, after = pod_of(workload), pod_of(made)
    assert after["nodeSelector"] == {"pool": "h100"}
    assert after["tolerations"] == [*before.get("tolerations", []), TAINT]
    (worker,), (was,) = after["containers"], before["containers"]
    assert worker["resources"]["limits"] == {**was["resources"].get("limits", {}), "rdma/ib": 1}
    assert {m["mountPath"] for m in was.get("volumeMounts", [])} < {
        m["mountPath"] for m in worker["volumeMounts"]
    }
    assert [worker[key] for key in ("command", "image")] == [was[key] for key in ("command", "image")]
    labels = made.document["spec"]["template"]["metadata"]["labels"]
    assert labels == {**workload.document["spec"]["template"]["metadata"]["labels"], "team": "x"}
    assert type(made) is type(workload)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spec: {tolerations: [", "not valid YAML"),
        ("just words", "expected the metadata and spec of a pod, found 'just words'"),
        ("[]", "expected the metadata and spec of a pod"),
        ("kind: Deployment", "expected apiVersion v1 and kind Pod, found 'v1' and 'Deployment'"),
        ("spec: {template: {spec: {}}}", "spec.template: move the template's metadata and spec"),
        (
            "tolerations: [{operator: Exists}]",
            "expected the metadata and spec of a pod, found ['tolerations']",
        ),
        ("metadata: {name: mine}", "metadata.name: the file can set only labels and annotations"),
        ("spec: {tolerationz: [{operator: Exists}]}", "did you mean tolerations?"),
        (
            "spec: {containers: [{name: accept, imge: x}]}",
            "spec.containers[0].imge: Kubernetes has no such field",
        ),
        ("spec: {nodeSelector: 5}", "spec.nodeSelector: expected a mapping, found 5"),
        ("spec: {nodeSelector: {a: 5}}", "spec.nodeSelector.a: expected a string, found 5"),
        ("spec: {tolerations: {operator: Exists}}", "spec.tolerations: expected a list"),
        ("spec: {hostNetwork: 'yes'}", "spec.hostNetwork: expected true or false, found 'yes'"),
        ("spec: {containers: [{name: gpu-accept}]}", "expected accept, found 'gpu-accept'"),
        ("spec: {containers: [{image: x}]}", "spec.containers[0].name: expected accept, found None"),
        ("spec: {containers: [{name: accept, image: x}]}", "containers.accept.image"),
        ("spec: {containers: [{name: accept, command: [sleep]}]}", "containers.accept.command"),
        ("spec: {containers: [{name: accept, args: null}]}", "containers.accept.args"),
        ("spec: {containers: [{name: accept, $patch: delete}]}", "spec.containers"),
        ("spec: {containers: [{name: accept, $patch: replace}]}", "spec.containers"),
        ("spec: {containers: null}", "spec.containers"),
        ("spec: {volumes: [{name: reports, $patch: delete}]}", "spec.volumes[reports]"),
        ("spec: {volumes: [{$patch: replace}]}", "spec.volumes"),
        ("metadata: {labels: {app: other}}", "metadata.labels.app"),
        (
            "spec: {containers: [{name: accept, env: [{name: NODE_NAME, valueFrom: null}]}]}",
            "env.NODE_NAME.valueFrom",
        ),
        (
            "spec: {containers: [{name: accept, resources: {limits: {nvidia.com/gpu: 1}}}]}",
            "the launch requests nvidia.com/gpu",
        ),
        (
            "spec: {containers: [{name: accept, env: [{name: HARNESS_NONCE, value: x}]}]}",
            "the launch itself sets HARNESS_NONCE",
        ),
    ],
)
def test_a_file_that_would_break_the_tests_is_refused(text: str, message: str, tmp_path: Path) -> None:
    """Contract: one sentence that names the field, before anything is created."""
    with pytest.raises(UsageError) as error:
        PodOptions(file=written(tmp_path, text)).applied(acceptance.nodes(CPU))
    assert message in error.value.message
    assert error.value.hint


def test_a_variable_of_the_wrong_type_is_not_shown(tmp_path: Path) -> None:
    """Contract: a value may be a secret, so the message has its place alone."""
    text = "spec: {containers: [{name: accept, env: [{name: PIN, value: 987654}]}]}"
    with pytest.raises(UsageError, match=r"env\[0\].value: expected a string") as error:
        PodOptions(file=written(tmp_path, text)).applied(acceptance.nodes(CPU))
    assert "987654" not in str(error.value)


def test_host_network_needs_names_of_pods(tmp_path: Path) -> None:
    """Contract: pods of one node's network ask the node's DNS server, which knows no Service."""
    file = written(tmp_path, "spec: {hostNetwork: true}")
    with pytest.raises(UsageError, match="ClusterFirstWithHostNet; found no dnsPolicy"):
        PodOptions(file=file).applied(acceptance.ddp(CPU, 2))
    PodOptions(file=file).applied(acceptance.nodes(CPU))
    file = written(tmp_path, "spec: {hostNetwork: true, dnsPolicy: ClusterFirstWithHostNet}")
    assert pod_of(PodOptions(file=file).applied(acceptance.ddp(CPU, 2)))["hostNetwork"] is True


def test_a_missing_kubectl_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, "spec: {hostNetwork: true}")
    with pytest.raises(Exception, match="no-such-kubectl"):
        PodOptions(file=file, kubectl="no-such-kubectl").applied(acceptance.nodes(CPU))


def test_variables_reach_the_ranks_as_they_were_written() -> None:
    """Contract: the kubelet expands $(NAME), and the user's value is no template of the kubelet."""
    workload = PodOptions(env={"NCCL_DEBUG": "INFO", "HOME_DIR": "$(HOME)/x"}).applied(acceptance.nodes(CPU))
    env = {each["name"]: each.get("value") for each in pod_of(workload)["containers"][0]["env"]}
    assert env["NCCL_DEBUG"] == "INFO"
    assert env["HOME_DIR"] == "$$(HOME)/x"
    assert "NODE_NAME" in env


def test_a_secret_is_no_text_of_the_workload() -> None:
    """Contract: it goes into the launch's Secret, is redacted, and is not printed."""
    secret, url = "hf_Aq3$x9ZZ", "https://me:s3cret-value@host"
    workload = PodOptions(env={"HF_TOKEN": secret, "TRACKING": url}).applied(
        training.workload(training_spec.TrainingSpec())
    )
    assert workload.secret_envs == {"HF_TOKEN": secret, "TRACKING": url}
    assert secret in workload.secrets
    printed = training.manifests(training_spec.TrainingSpec(), PodOptions(env={"HF_TOKEN": secret}))
    assert secret not in printed
    assert printed.startswith("# The pods read HF_TOKEN from the Secret train-llm-env.")
    printed = acceptance.manifests(PodOptions(env={"HF_TOKEN": secret}).applied(acceptance.nodes(CPU)))
    assert secret not in printed


def test_values_come_from_the_command_line_or_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "s3cret-value")
    assert variables(["A=b=c", "HF_TOKEN", "EMPTY="]) == {"A": "b=c", "HF_TOKEN": "s3cret-value", "EMPTY": ""}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["HF_TOKEN=s3cret-value"], "secrets from a command line"),
        (["URI=https://me:s3cret-value@host"], "secrets from a command line"),
        (["URI=https://me:s3cret-$value@host"], "secrets from a command line"),
        (["NOT_SET_ANYWHERE"], "does not contain this variable"),
        (["A=1", "A=2"], "A is set twice"),
    ],
)
def test_words_that_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        variables(words)
    assert "s3cret-value" not in str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        ["accept", "--nodes", "--device", "cpu", "--env", "NODE_NAME=x"],
        ["accept", "--nodes", "--device", "cpu", "--env", "HARNESS_NONCE=x"],
        ["accept", "--nodes", "--device", "cpu", "--env", "1A=x"],
        ["accept", "--nodes", "--device", "cpu", "--pod", "not/there.yaml"],
        ["train", "--env", "NNODES=9"],
        ["train", "--pod", "not/there.yaml"],
        ["netcheck", "--pod", "not/there.yaml"],
        ["netcheck", "runs/latest", "--env", "A=b"],
    ],
)
def test_commands_refuse_them(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: exit code 64 and one sentence."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 64
    assert capsys.readouterr().err.startswith("harness:")


def test_no_variable_of_a_launch_can_be_replaced_silently() -> None:
    """Contract: what `environment` sets for every rank is refused, the run's id and project excepted."""
    expected = Expected(num_nodes=1, ranks=1, run_id="r", project="p")
    for name in environment(expected, "n", Budget(600), "http://x"):
        known = name in TAKEN or name.startswith(TAKEN_PREFIXES)
        assert known or name in ("PLUTO_RUN_ID", "PLUTO_PROJECT"), name


def test_the_settings_hold_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Contract: pyproject.toml has the file and the variables, and the command line comes before it."""
    written(tmp_path, {"spec": {"tolerations": [TAINT]}})
    (tmp_path / "pyproject.toml").write_text(
        '[tool.harness]\npod = "pod.yaml"\n[tool.harness.env]\nA = "settings"\nB = "settings"\n'
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["accept", "--ddp", "--device", "cpu", "--env", "A=word", "--print-manifests"])
    (found,) = [d for d in yaml.safe_load_all(capsys.readouterr().out) if d["kind"] == "StatefulSet"]
    pod = pod_of(SimpleNamespace(document=found))
    env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert (env["A"], env["B"]) == ("word", "settings")
    assert TAINT in pod["tolerations"]
