"""The recorder's admission policy on a real cluster: it records pods of others, and never holds one."""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.cli.main import main
from harness.core.kubernetes import Kube, Object
from harness.evidence.schema.columns import Columns, Part
from harness.judge.points import digest_check, digest_records
from harness.launch import recorder_admission as admission
from harness.launch import recorder_policy as policy
from harness.launch.mounts.recorder import FOLDER
from harness.provision.cluster import Ready
from harness.provision.controllers import tracker
from harness.tracker.client.audit import EmbeddedAudit

pytestmark = pytest.mark.attach
SECONDS = 120
SHOW = 'echo "$0 $* path=$PYTHONPATH nonce=$HARNESS_NONCE"'
PYTHON = "import os, sys; print(sys.argv[1:], 'path=' + os.environ.get('PYTHONPATH', ''))"
RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
TRAIN = """
import os, pluto
run = pluto.init(name="node0")
for step in range(20):
    run.log({"loss": 1 / (step + 1)}, step=step)
run.finish()
"""


class Team:
    """Two namespaces of a team with a launcher of its own: one has the label, the other has not."""

    def __init__(self, cluster: Ready) -> None:
        self.kube: Kube = cluster.kube
        self.image = cluster.worker.tag
        self.name = f"recorded-{secrets.token_hex(3)}"
        self.other = f"{self.name}-other"

    def create(self) -> None:
        standard = {"pod-security.kubernetes.io/enforce": "restricted"}
        for name, labels in ((self.name, {policy.RECORD: "true"}), (self.other, standard)):
            metadata = {"name": name, "labels": labels}
            self.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def remove(self) -> None:
        for name in (self.name, self.other):
            self.kube.delete("v1", "Namespace", name)

    def pod(self, name: str, command: list[str] | None, namespace: str = "", **more: Any) -> Object:
        """Create a pod with one container, and return what the API server made of it."""
        labels, spec = more.pop("labels", {}), more.pop("spec", {})
        container = {"name": "main", "image": self.image, "imagePullPolicy": "IfNotPresent", **more}
        if command is not None:
            container["command"] = command
        containers = [container, *spec.pop("beside", [])]
        metadata = {"name": name, "namespace": namespace or self.name, "labels": labels}
        body = {"restartPolicy": "Never", "containers": containers, **spec}
        return self.kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body})

    def wait(self, *namespaces: str) -> dict[str, str]:
        """Wait until all pods have ended or run, and return their phases."""
        phases: dict[str, str] = {}
        for namespace in namespaces or (self.name, self.other):

            def unmet(pods: dict[str, Object]) -> str | None:
                found = {name: pod.get("status", {}).get("phase", "") for name, pod in pods.items()}
                phases.update(found)
                open_ = [name for name, phase in found.items() if phase not in ("Succeeded", "Failed")]
                return None if not open_ else f"{open_} are not ended"

            self.kube.wait("the pods", "v1", "Pod", unmet, seconds=SECONDS, namespace=namespace)
        return phases

    def log(self, pod: str, namespace: str = "", container: str = "main") -> str:
        path = f"/api/v1/namespaces/{namespace or self.name}/pods/{pod}/log"
        return self.kube.fetch(path, {"container": container}).read().decode()


@pytest.fixture(scope="module")
def team(cluster: Ready) -> Iterator[Team]:
    found = Team(cluster)
    found.create()
    yield found
    admission.uninstall(found.kube)
    found.remove()


def traces(kube: Kube) -> set[tuple[str, str]]:
    """Return the objects of the kinds that `install` creates, without those that Kubernetes creates."""
    kinds = ((policy.API, policy.POLICY), (policy.API, policy.BINDING), ("v1", "ConfigMap"))
    return {
        (kind, f"{each['metadata'].get('namespace')}/{each['metadata']['name']}")
        for api, kind in kinds
        for each in kube.objects(api, kind)
        if each["metadata"]["name"] != "kube-root-ca.crt"
    }


def rows_of(team: Team, run_id: str) -> tuple[str, list[Part]]:
    with tracker.find(team.kube).client(team.kube) as client:
        audit = EmbeddedAudit(client)
        (run,) = audit.runs(external_id=run_id, project="recorded", job_name=None)
        parts: list[Part] = []
        for rows in audit.columns([run.run_id]):
            names = list(dict.fromkeys(rows.metrics))
            which = array("I", map(names.index, rows.metrics))
            steps, times = array("q", rows.steps), array("q", rows.times_ms)
            parts += Columns(names, steps, times, array("d", rows.values), which).series()
        return str(run.run_id), parts


Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def harness(cluster: Ready, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Return harness(*words): type `harness recorder …`. It returns the exit code and what was printed."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kind.kubeconfig))

    def typed(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["recorder", *words])
        return int(ended.value.code or 0), capsys.readouterr().out

    return typed


def test_a_training_of_another_launcher_is_recorded_and_judged(team: Team, harness: Typed) -> None:
    """Nothing of the recorder is left in the cluster afterwards."""
    before = traces(team.kube)
    code, output = harness("install", "--namespace", team.name)
    assert (code, f"Namespaces with the recorder's files: {team.name}" in output) == (0, True)
    _until_active(team)
    pluto = _pluto(team)
    env = [{"name": name, "value": value} for name, value in pluto.items()]
    train = team.pod("train", ["python3", "-c", TRAIN], env=env)
    unknown = team.pod("unknown", ["env"])
    code, output = harness("status")
    assert code == 1
    assert f"not recorded: {team.name}/unknown, container main: its command begins with env" in output
    assert policy.why_not(unknown, unknown["spec"]["containers"][0])
    assert team.wait(team.name) == {"train": "Succeeded", "unknown": "Succeeded"}
    assert FOLDER not in team.log("unknown")
    container = train["spec"]["containers"][0]
    assert {each["name"]: each.get("value") for each in container["env"]}.items() >= pluto.items()

    run, rows = rows_of(team, team.name)
    nonce = digest_records.nonce_of(train, "main")
    pod = digest_records.read(team.log("train").splitlines(), nonce, pod="train", rank=0)
    findings = digest_check.judge([pod], ranks=[0], parts=rows, run=run)
    assert {finding.result for finding in findings} == {"PASS"}, [each.check.explanation for each in findings]
    lost = [(name, *(column[1:] for column in columns)) for name, *columns in rows]
    findings = digest_check.judge([pod], ranks=[0], parts=lost, run=run)  # type: ignore[arg-type]
    assert "unification.lost_points" in {finding.cause for finding in findings}

    team.kube.delete("v1", "ConfigMap", policy.NAME, team.name)
    team.pod("no-files", ["python3", "-c", PYTHON])
    assert team.wait(team.name)["no-files"] == "Succeeded"
    assert f"no files in {team.name}" in harness("status")[1]
    assert harness("uninstall")[0] == 0
    assert not traces(team.kube) - before  # those of namespaces that are being deleted may go meanwhile
    assert harness("uninstall") == (0, "The recorder was not installed.\n")


def _pluto(team: Team) -> dict[str, str]:
    embedded = tracker.find(team.kube)
    urls = {f"PLUTO_URL_{part}": embedded.url for part in ("APP", "API", "INGEST", "PY")}
    return {**urls, "PLUTO_API_KEY": embedded.key, "PLUTO_PROJECT": "recorded", "PLUTO_RUN_ID": team.name}


@pytest.mark.nightly
def test_pods_of_every_shape_run_and_are_recorded(team: Team) -> None:
    """All of them end with 0, whether they are recorded or cannot be."""
    assert admission.install(team.kube, []) == [team.name]
    assert admission.install(team.kube, [team.name, team.other]) == [team.name, team.other]
    _until_active(team)
    team.pod("shell", ["/bin/sh", "-c", SHOW, "zero", "a b", "$(NOT_A_VARIABLE)"], args=["last"])
    team.pod("bash", ["bash", "-c", SHOW], env=[{"name": "BASH_ENV", "value": "/nowhere"}])
    team.pod("python", ["python3", "-c", PYTHON, "a b"], args=["last"])
    own = [{"name": "PYTHONPATH", "value": "/own"}]
    team.pod("own-path", ["env"], env=own)
    team.pod("declared", ["env"], labels={policy.RECORD: "env"})
    # The image has no shell, and is on every node.
    servers = team.kube.objects("v1", "Pod", "kube-system", "component=kube-apiserver")
    without_shell = servers[0]["spec"]["containers"][0]["image"]
    team.pod("shell-free", ["kube-apiserver", "--version"], image=without_shell)
    team.pod("opted-out", ["sh", "-c", SHOW], labels={policy.RECORD: "false"})
    waits = ["sh", "-c", "sleep 600"]
    sidecar = {"name": "sidecar", "image": team.image, "command": waits, "restartPolicy": "Always"}
    first = {"name": "first", "image": team.image, "command": ["sh", "-c", SHOW]}
    beside = {"name": "beside", "image": team.image, "command": ["sh", "-c", SHOW]}
    containers = {"initContainers": [sidecar, first], "beside": [beside]}
    many = team.pod("many", ["sh", "-c", SHOW], spec=containers)
    asked = {policy.RECORD: "true"}
    team.pod("restricted", ["sh", "-c", SHOW], team.other, labels=asked, securityContext=RESTRICTED)
    team.pod("not-asked", ["sh", "-c", SHOW], team.other, securityContext=RESTRICTED)
    phases = team.wait()
    assert phases == dict.fromkeys(phases, "Succeeded")

    assert f"zero a b $(NOT_A_VARIABLE) last path={FOLDER} nonce=" in team.log("shell")
    assert f"bash  path={FOLDER} nonce=" in team.log("bash")
    assert f"['a b', 'last'] path={FOLDER}" in team.log("python")
    assert f"PYTHONPATH={FOLDER}:/own\n" in team.log("own-path")
    assert f"PYTHONPATH={FOLDER}\n" in team.log("declared")
    for name in ("shell-free", "opted-out"):
        assert FOLDER not in team.log(name), name
    assert [each["command"] for each in many["spec"]["initContainers"]] == [waits, first["command"]]
    assert f"path={FOLDER}" not in team.log("many", container="first")
    assert f"path={FOLDER} nonce={many['metadata']['uid']}" in team.log("many", container="beside")
    assert f"path={FOLDER}" in team.log("restricted", team.other)
    assert FOLDER not in team.log("not-asked", team.other)


def _until_active(team: Team) -> None:
    """Wait until the API server applies the policy, which it reads by a watch."""
    body = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none", "command": ["sh"]}]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "namespace": team.name},
        "spec": body,
    }
    deadline = time.monotonic() + 20
    while not policy.is_recorded(team.kube.apply(pod, dry_run=True)["spec"]["containers"][0]):
        assert time.monotonic() < deadline
        time.sleep(0.2)
