"""The workloads of `harness train`: what the pods run, which volumes they share, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from harness.cli.main import main
from harness.core.errors import HarnessError, UsageError
from harness.launch.labels import RESTARTS
from harness.launch.workloads import training, training_spec, training_volumes
from harness.launch.workloads.pod_options import PodOptions
from harness.launch.workloads.training_spec import TrainingSpec
from harness.provision.cluster import SharedFolder
from harness.settings import load

SHARED = SharedFolder(Path("/here"), "/there")


def container(workload: Any) -> dict[str, Any]:
    """Return the container that the ranks run in."""
    return dict(workload.document["spec"]["template"]["spec"]["containers"][0])


def used(asked: TrainingSpec, *, printed: bool = False, one_node: bool = False) -> dict[str, Any]:
    """Return the ranks' container with its volumes, which a launch or printed manifests add."""
    pod = training.workload(asked).document["spec"]["template"]["spec"]
    training.use(pod, training.Shared(asked.mounts(printed=printed), one_node), {"app": "train-llm"})
    return {**pod["containers"][0], "pod": pod}


@pytest.mark.parametrize("kind", ["statefulset", "job"])
@pytest.mark.parametrize(("replicas", "processes"), [(4, 1), (64, 8)])
def test_the_number_of_nodes_is_one_number(kind: Any, replicas: int, processes: int) -> None:
    """Contract: pods, NNODES, and what the harness expects are the same; ranks are pods × processes."""
    workload = training.workload(TrainingSpec(kind=kind, replicas=replicas, processes=processes))
    env = {one["name"]: one.get("value") for one in container(workload)["env"]}
    assert workload.members(None) == replicas  # type: ignore[arg-type] # it asks no cluster
    assert (env["NNODES"], workload.per_node) == (f"{replicas}", processes)
    spec = workload.document["spec"]
    assert {spec.get("replicas"), spec.get("completions"), spec.get("parallelism")} == {replicas, None} or (
        spec["replicas"] == replicas
    )


def test_scalable_pods_get_a_range_of_nodes() -> None:
    """Contract: a launch's as asked for; a printed StatefulSet's by default, and a printed Job's never."""
    env = {
        one["name"]: one.get("value")
        for one in container(training.workload(TrainingSpec(max_replicas=6)))["env"]
    }
    assert env["NNODES"] == "1:6"
    for asked, nodes in (
        (TrainingSpec(), "1:64"),
        (TrainingSpec(replicas=80), "1:80"),
        (TrainingSpec(max_replicas=6), "1:6"),
    ):
        assert f"name: NNODES\n          value: '{nodes}'" in training.manifests(asked) or (
            f"name: NNODES\n          value: {nodes}" in training.manifests(asked)
        )
    for asked in (TrainingSpec(kind="job"), TrainingSpec(smoke=True)):
        assert "value: '4'" in training.manifests(asked)


def test_a_stateful_set_is_as_the_guide_has_it() -> None:
    """Contract: names, port, Parallel, publishNotReadyAddresses, the pod's index, the three claims."""
    workload = training.workload(TrainingSpec())
    (service,) = workload.other_objects
    assert (service["metadata"]["name"], service["spec"]["ports"][0]["port"]) == ("train-rdzv", 29500)
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert workload.document["spec"]["podManagementPolicy"] == "Parallel"
    assert workload.document["spec"]["selector"] == {"matchLabels": {"app": "train-llm"}}
    rank = next(one for one in container(workload)["env"] if one["name"] == "NODE_RANK")
    assert "apps.kubernetes.io/pod-index" in rank["valueFrom"]["fieldRef"]["fieldPath"]
    paths = {mount["name"]: mount["mountPath"] for mount in used(TrainingSpec())["volumeMounts"]}
    assert paths == {**training_volumes.CLAIMS, "shm": "/dev/shm"}
    token = next(one for one in container(workload)["env"] if one["name"] == "HUGGINGFACE_HUB_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {
        "name": "hf-token",
        "key": "HUGGINGFACE_HUB_TOKEN",
        "optional": True,
    }


def test_restarts_are_said_to_torchrun_and_to_the_judges() -> None:
    workload = training.workload(TrainingSpec(kind="job", restarts=2, replicas=3))
    assert workload.document["metadata"]["annotations"] == {RESTARTS: "2"}
    assert {"name": "RESTARTS", "value": "2"} in container(workload)["env"]
    assert workload.document["spec"]["backoffLimit"] == 6


def test_gpus_are_asked_for_and_used() -> None:
    """Contract: the limit, the device and the ranks of each pod; without GPUs the CPU, by name."""
    workload = training.workload(TrainingSpec(gpus=8, processes=8))
    assert container(workload)["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert "--device cuda" in container(workload)["args"][0]
    assert "--device cpu" in container(training.workload(TrainingSpec()))["args"][0]


def test_the_smoke_test_has_the_guides_flags() -> None:
    assert training_spec.SMOKE in container(training.workload(TrainingSpec(smoke=True)))["args"][0]


@pytest.mark.parametrize(
    ("asked", "backend", "endpoint", "brings"),
    [
        ({}, "c10d", "", False),
        ({"rdzv": "etcd"}, "etcd-v2", "train-etcd:2379", True),
        ({"rdzv": "etcd", "rdzv_endpoint": "etcd.infra:2379"}, "etcd-v2", "etcd.infra:2379", False),
    ],
)
def test_where_the_nodes_meet(asked: dict[str, Any], backend: str, endpoint: str, brings: bool) -> None:
    """Contract: in node 0, in an etcd that comes with the manifests, or in one that is there."""
    given = TrainingSpec(**asked)
    variables = {one["name"]: one.get("value") for one in container(training.workload(given))["env"]}
    assert (variables["RDZV_BACKEND"], variables["RDZV_ENDPOINT"]) == (backend, endpoint)
    names = {each["metadata"]["name"] for each in yaml.safe_load_all(training.manifests(given))}
    assert ("train-etcd" in names) == brings


@pytest.mark.parametrize(
    ("uri", "served"),
    [
        ("http://mlflow:5000", True),
        ("https://user@host/mlflow", True),
        ("databricks", True),
        ("databricks://profile", True),
        ("mlflow.team.svc:5000", False),
        ("localhost:5000", False),
        ("/mnt/filesystem/mlruns", False),
        ("./mlruns", False),
        ("file:///mnt/mlruns", False),
        ("sqlite:////out/mlflow.db", False),
        ("postgresql://db/mlflow", True),
    ],
)
def test_a_folder_is_no_mlflow_for_several_nodes(tmp_path: Path, uri: str, served: bool) -> None:
    """Contract: refused in one sentence, before a launch and before anything is printed."""
    variable = PodOptions(env={"MLFLOW_TRACKING_URI": uri})
    workload = variable.applied(training.workload(TrainingSpec()))
    if served:
        workload.check(load())
        assert uri in training.manifests(TrainingSpec(), variable)
        return
    for refused in (lambda: workload.check(load()), lambda: training.manifests(TrainingSpec(), variable)):
        with pytest.raises(UsageError, match="the URL of an MLflow server is expected"):
            refused()


def test_memory_limits_a_pod() -> None:
    """Contract: the limit is what was asked for, with GPUs beside it; without a word 8Gi on CPUs alone."""
    limits = container(training.workload(TrainingSpec(memory="1536Mi")))["resources"]["limits"]
    assert limits == {"memory": "1536Mi"}
    limits = container(training.workload(TrainingSpec(memory="64Gi", gpus=8, processes=8)))["resources"][
        "limits"
    ]
    assert limits == {"memory": "64Gi", "nvidia.com/gpu": 8}
    assert container(training.workload(TrainingSpec()))["resources"]["limits"] == {"memory": "8Gi"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"run": "a/b"}, "--run: expected a folder name without slashes or a leading dot"),
        ({"volumes": ".."}, "--volumes: expected a folder name without slashes or a leading dot"),
        ({"options": ("--run", "x")}, "must not include --run, because"),
        ({"options": ("--run-name=x",)}, "must not include --run-name, because"),
        ({"options": ("--dat=/x",)}, "remove --data-dir from the options"),
        ({"options": ("--no-such", "1")}, "after `--`: unrecognized arguments: --no-such 1"),
        ({"options": ("--epochs", "many")}, "argument --epochs: invalid int value: 'many'"),
        ({"options": ("--width", "30")}, "--width must be a multiple of --heads"),
        ({"options": ("--out-dir=/x",)}, "must not include --out-dir, because"),
        ({"storage_class": "a", "claims_namespace": "b"}, "use only one of --storage-class"),
        ({"storage_class": "a", "volumes": "b"}, "--volumes applies only to kind"),
        ({"memory": "much"}, "--memory: expected a quantity such as 8Gi"),
        ({"memory": "0"}, "--memory: expected a quantity such as 8Gi"),
        ({"rdzv": "etcd", "rdzv_endpoint": "etcd"}, "expected HOST:PORT of an etcd"),
        ({"rdzv_endpoint": "etcd:2379"}, "with --rdzv c10d"),
        ({"max_replicas": 3}, "expected at least 4, as in --replicas; found 3"),
        ({"max_replicas": 8, "kind": "job"}, "applies only to --kind statefulset"),
        ({"max_replicas": 8, "smoke": True}, "--smoke writes none"),
        ({"max_replicas": 8, "same_as": ("x", "y")}, "--same-as cannot be combined with --max-replicas"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainingSpec(**asked)


def test_data_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").touch()
    with pytest.raises(
        UsageError,
        match=r"expected val\.jsonl \(also \.gz or \.zst\), or shards in a folder val; found train\.jsonl",
    ):
        TrainingSpec(data=tmp_path)


GOOD = json.dumps({"text": "a document that is long enough to train on, with all its letters. " * 3}) + "\n"


def texts_in(folder: Path, train: str = GOOD, val: str = GOOD) -> Path:
    """Write the two files of a data set."""
    (folder / "train.jsonl").write_text(train)
    (folder / "val.jsonl").write_text(val)
    return folder


@pytest.mark.parametrize(("option", "value"), [("data", "texts"), ("volumes", "kept")])
def test_manifests_do_not_leave_out_folders_of_kind_silently(option: str, value: str, tmp_path: Path) -> None:
    given = {"data": texts_in(tmp_path)} if option == "data" else {"volumes": value}
    with pytest.raises(
        UsageError,
        match=f"--{option} applies only to a launch on kind, but printed manifests use volume claims",
    ):
        training.manifests(TrainingSpec(**given))


@pytest.mark.parametrize(("gpus", "refused"), [(None, True), (1, False)])
def test_an_interface_that_gloo_cannot_have_is_refused(
    gpus: int | None, refused: bool, tmp_path: Path
) -> None:
    """Contract: before a launch and before anything is printed. Ranks on GPUs meet by NCCL."""
    variable, asked = PodOptions(env={"GLOO_SOCKET_IFNAME": "^lo,docker"}), TrainingSpec(gpus=gpus)
    workload = variable.applied(training.workload(asked))
    if not refused:
        workload.check(load(runs_dir=tmp_path))
        assert "^lo,docker" in training.manifests(asked, variable)
        return
    for refusing in (
        lambda: workload.check(load(runs_dir=tmp_path)),
        lambda: training.manifests(asked, variable),
    ):
        with pytest.raises(UsageError, match=r"GLOO_SOCKET_IFNAME: .* found '\^lo', which NCCL accepts"):
            refusing()


def test_data_of_a_smoke_test_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--data cannot be combined with --smoke"):
        TrainingSpec(data=texts_in(tmp_path), smoke=True)


def test_a_cluster_of_ones_own_needs_volumes(tmp_path: Path) -> None:
    """Contract: refused before anything is made, with the two ways to name them."""
    config = tmp_path / "kubeconfig"
    config.write_text("{}")
    settings = load(kubeconfig=config)
    with pytest.raises(UsageError, match="training needs a volume that all pods share") as refused:
        training.workload(TrainingSpec()).check(settings)
    assert "--storage-class" in str(refused.value.hint)
    training.workload(TrainingSpec(storage_class="nfs")).check(settings)
    training.workload(TrainingSpec(smoke=True)).check(settings)
    training.workload(TrainingSpec()).check(load())


def test_the_smoke_test_mounts_no_claim() -> None:
    """Contract: it needs no volume of anybody, and its pods can still write below /out."""
    mounted = used(TrainingSpec(smoke=True))
    assert {one["mountPath"] for one in mounted["volumeMounts"]} == {"/dev/shm", "/out"}
    assert not [one for one in mounted["pod"]["volumes"] if "persistentVolumeClaim" in one]


def test_only_outputs_of_user_are_mounted_for_writing() -> None:
    """Contract: data and models are read-only for the kubelet too, in a launch and in printed manifests."""
    models = ("--model-local-dir", "/models/gpt2")
    for asked, printed in [(TrainingSpec(claims_namespace="a"), False), (TrainingSpec(options=models), True)]:
        made = used(asked, printed=printed)
        mounted = {one["name"]: one.get("readOnly", False) for one in made["volumeMounts"]}
        assert mounted == {"shm": False, "datasets-pvc": True, "outputs-pvc": False, "models-pvc": True}
        volumes = {
            one["name"]: one["persistentVolumeClaim"].get("readOnly", False)
            for one in made["pod"]["volumes"]
            if one["name"] != "shm"
        }
        assert volumes == {name: mounted[name] for name in training_volumes.CLAIMS}
        texts = next(one for one in asked_env(asked) if one["name"] == "TRAINING_SOURCE")
        assert printed or texts["value"] == "0"


def asked_env(asked: TrainingSpec) -> list[dict[str, Any]]:
    """Return the environment of the ranks."""
    return list(container(training.workload(asked))["env"])


def test_made_texts_have_a_folder_of_their_own() -> None:
    """Contract: --synthetic mounts a folder of the outputs as /data, and no claim for data."""
    for asked, printed in [
        (TrainingSpec(claims_namespace="a", synthetic=True), False),
        (TrainingSpec(storage_class="nfs"), False),
        (TrainingSpec(synthetic=True), True),
    ]:
        mounted = {one["mountPath"]: one for one in used(asked, printed=printed)["volumeMounts"]}
        assert mounted["/data"]["name"] == "outputs-pvc"
        assert mounted["/data"]["subPath"] == training_spec.GENERATED_TEXTS
        assert not mounted["/data"].get("readOnly")
        assert asked.generates_texts(printed=printed)
    (made,) = training_volumes.of_class("nfs", TrainingSpec(storage_class="nfs").mounts(), "e2e-1")
    assert (made["metadata"]["name"], made["spec"]["accessModes"]) == ("outputs-pvc", ["ReadWriteMany"])


def test_pods_of_a_volume_for_one_node_share_it() -> None:
    """Contract: the scheduler puts all pods on one node, and nothing spreads them."""
    pod = used(TrainingSpec(), one_node=True)["pod"]
    (term,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == {"app": "train-llm"}
    assert "topologySpreadConstraints" not in pod


def test_claims_on_kind_are_folders_of_the_launch() -> None:
    made = list(training_volumes.of_folder(SHARED, "e2e-1", "e2e-1", "1"))
    volumes = {
        one["spec"]["claimRef"]["name"]: one["spec"] for one in made if one["kind"] == "PersistentVolume"
    }
    assert volumes.keys() == training_volumes.CLAIMS.keys()
    assert volumes["outputs-pvc"]["hostPath"]["path"] == "/there/e2e-1/outputs-pvc"
    wanted = [one["spec"]["volumeName"] for one in made if one["kind"] == "PersistentVolumeClaim"]
    assert wanted == [one["metadata"]["name"] for one in made if one["kind"] == "PersistentVolume"]


def test_a_kind_cluster_without_a_shared_folder_is_refused() -> None:
    """Contract: each node would make a folder of its own, and every pod would see another disk."""
    there = SimpleNamespace(shared_folder=None, namespace="e2e-1", nonce="1")
    with pytest.raises(HarnessError, match="created without one") as refused:
        training.workload(TrainingSpec()).submit(there, lambda *_: None)  # type: ignore[arg-type]
    assert refused.value.cause == "cluster.mismatch"


class Claims:
    """A cluster with claims: their names and the access modes of their volumes."""

    def __init__(self, **modes: str) -> None:
        self.modes = {f"{name}-pvc": mode for name, mode in modes.items()}

    def get(self, _: str, kind: str, name: str, *__: str) -> dict[str, Any] | None:
        """Return a claim, its volume or a storage class."""
        if name not in self.modes:
            return None
        if kind != "PersistentVolume":
            return {"spec": {"volumeName": name}}
        spec = {"nfs": {"server": "s", "path": "/p"}, "capacity": {"storage": "1Ti"}}
        theirs = {
            "claimRef": {"uid": "x"},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "n",
        }
        return {"spec": {**spec, **theirs, "accessModes": self.modes[name].split()}}

    def objects(self, *_: str) -> list[dict[str, Any]]:
        """Return the storage classes."""
        return [{"metadata": {"name": "local-path"}}]

    def read(self, replicas: int = 2, **asked: Any) -> list[training_volumes.Claimed]:
        """Return what a training finds."""
        used = TrainingSpec(claims_namespace="team", **asked).mounts()
        return training_volumes.read(self, "team", used, replicas)  # type: ignore[arg-type] # all that it asks


def test_claims_of_a_namespace_are_used_and_never_owned() -> None:
    """Contract: the same volume a second time, to be retained; nothing of the first claim is in it."""
    found = Claims(datasets="ReadWriteMany", outputs="ReadWriteMany").read()
    objects = list(training_volumes.of_namespace(found, "e2e-1", "1"))
    volume = objects[0]["spec"]
    assert (volume["nfs"], volume["persistentVolumeReclaimPolicy"]) == (
        {"server": "s", "path": "/p"},
        "Retain",
    )
    assert volume["claimRef"] == {"namespace": "e2e-1", "name": "datasets-pvc"}
    assert volume["storageClassName"] == ""


@pytest.mark.parametrize(
    ("modes", "asked", "taken"),
    [
        ({"datasets": "ReadOnlyMany", "outputs": "ReadWriteMany"}, {}, ["ReadOnlyMany", "ReadWriteMany"]),
        ({"datasets": "ReadWriteOnce", "outputs": "ReadWriteMany"}, {}, ["ReadWriteOnce", "ReadWriteMany"]),
        (
            {"datasets": "ReadWriteOnce ReadOnlyMany", "outputs": "ReadWriteMany"},
            {},
            ["ReadOnlyMany", "ReadWriteMany"],
        ),
        ({"outputs": "ReadWriteMany"}, {"synthetic": True}, ["ReadWriteMany"]),
        (
            {"datasets": "ReadOnlyMany", "outputs": "ReadWriteOnce"},
            {"replicas": 1},
            ["ReadOnlyMany", "ReadWriteOnce"],
        ),
        (
            {"datasets": "ReadOnlyMany", "outputs": "ReadWriteMany", "models": "ReadOnlyMany"},
            {},
            ["ReadOnlyMany", "ReadWriteMany", "ReadOnlyMany"],
        ),
    ],
)
def test_readers_need_no_volume_for_many_writers(
    modes: dict[str, str], asked: dict[str, Any], taken: list[str]
) -> None:
    """Contract: data and models may be read-only or of one node; models-pvc may be missing."""
    found = Claims(**modes).read(**asked)
    assert [one.mode for one in found] == taken
    assert training_volumes.on_one_node(found) == ("ReadWriteOnce" in taken)


@pytest.mark.parametrize(
    ("modes", "asked", "message"),
    [
        (
            {"outputs": "ReadWriteMany"},
            {},
            "expected a bound claim datasets-pvc, but this claim does not exist",
        ),
        (
            {"datasets": "ReadOnlyMany", "outputs": "ReadWriteOnce"},
            {},
            "needs the access mode ReadWriteMany, because 2 pods write to it; found ReadWriteOnce",
        ),
        (
            {"datasets": "ReadOnlyMany", "outputs": "ReadOnlyMany"},
            {"replicas": 1},
            "outputs-pvc needs the access mode ReadWriteMany or ReadWriteOnce, because one pod writes",
        ),
        (
            {"datasets": "ReadWriteOncePod", "outputs": "ReadWriteMany"},
            {},
            "datasets-pvc needs the access mode ReadOnlyMany or ReadWriteMany or ReadWriteOnce",
        ),
        (
            {"datasets": "ReadOnlyMany", "outputs": "ReadWriteMany"},
            {"options": ("--model-local-dir", "/models/gpt2")},
            "expected a bound claim models-pvc, but this claim does not exist",
        ),
    ],
)
def test_claim_that_cannot_serve_is_named_with_its_mode(
    modes: dict[str, str], asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Claims(**modes).read(**asked)


def test_an_unknown_storage_class_is_refused() -> None:
    with pytest.raises(UsageError, match="no such StorageClass; existing ones: local-path"):
        training_volumes.prove_class(Claims(), "nfs")  # type: ignore[arg-type] # all that it asks


def test_the_manifests_are_printed_for_kubectl(capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: plain YAML; a pod that is done stays; nothing makes texts on a volume of the user's."""
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--print-manifests", "--replicas", "3", "--", "--epochs", "5"])
    output = capsys.readouterr().out
    service, workload = yaml.safe_load_all(output)
    assert (service["kind"], workload["kind"], workload["spec"]["replicas"]) == ("Service", "StatefulSet", 3)
    text = workload["spec"]["template"]["spec"]["containers"][0]
    assert "--epochs 5" in text["args"][0]
    assert {"name": "TRAINING_HOLD", "value": "1"} in text["env"]
    assert {"name": "TRAINING_SOURCE", "value": "0"} in text["env"]
