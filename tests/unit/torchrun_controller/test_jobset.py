"""Queue + job → JobSet and claims."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from torchrun_objects import job, queue

from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import JobSpec, QueueSpec
from harness.torchrun_controller.objects import command
from harness.torchrun_controller.objects.jobset import claims, jobset
from harness.torchrun_controller.objects.pod_template import Resolved, resolve
from harness.torchrun_controller.plan.gpu_layout import Refused

Object = dict[str, Any]
GPU_NODES = {"gpus": 8, "cpus": 96, "memory": "512Gi", "gpuType": "h100-80gb"}


def resolved(one: Object, of: Object) -> Resolved:
    return resolve(
        one["metadata"]["name"],
        JobSpec.model_validate(one["spec"]),
        one["metadata"]["annotations"],
        QueueSpec.model_validate(of["spec"]),
    )


def made(one: Object, of: Object, local_queue: str | None = "cpu") -> Object:
    return jobset(one, resolved(one, of), local_queue)


def inner(document: Object) -> Object:
    return dict(document["spec"]["replicatedJobs"][0]["template"]["spec"])


def pod_of(document: Object) -> Object:
    return dict(inner(document)["template"]["spec"])


def trainer(document: Object) -> Object:
    return dict(pod_of(document)["containers"][0])


def test_ranks_have_names() -> None:
    """Contract: a headless Service gives every rank a name before it is ready (the original had none)."""
    document = made(job(), queue())
    assert document["spec"]["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    assert (inner(document)["parallelism"], inner(document)["completions"]) == (2, 2)
    assert f"--rdzv-endpoint={names.host('demo', 0)}:29500" in trainer(document)["command"][2]


def as_the_kubelet_reads(text: str, variables: dict[str, str]) -> str:
    """Return a word as Kubernetes expands it: $(NAME) where it is known, and $$ is one dollar."""

    def one(found: re.Match[str]) -> str:
        return "$" if found[1] is None else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)", one, text)


@pytest.mark.parametrize("theirs", ["echo $$ $HOME", "echo $(TORCHRUN_JOB) $(date)", "echo $$(HOME) $"])
@pytest.mark.parametrize("digest", ["", "d1"])
def test_a_command_reaches_the_shell_as_it_was_written(theirs: str, digest: str) -> None:
    """Contract: no dollar of it is lost to the kubelet, with a synced workspace too."""
    annotations = {names.WORKSPACE_ANNOTATION: digest} if digest else {}
    one = job(command=theirs, annotations=annotations)
    of = queue(storage={"workspace": {"enabled": True}})
    wanted = resolved(one, of)
    container = trainer(made(one, of))
    words = [as_the_kubelet_reads(word, {"TORCHRUN_JOB": "x", "HOME": "y"}) for word in container["command"]]
    script = command.script(wanted.name, wanted.spec, wanted.plan, wanted.distributed)
    assert words[-3:] == ["bash", "-c", script]
    assert theirs in script


def test_kueue_starts_it() -> None:
    """Contract: all pods are admitted together, or none: the JobSet is suspended and names its queue."""
    document = made(job(), queue())
    assert document["spec"]["suspend"] is True
    assert document["metadata"]["labels"][names.KUEUE_QUEUE_LABEL] == "cpu"
    assert made(job(), queue(), None)["spec"]["suspend"] is False


def test_a_failed_rank_ends_its_attempt() -> None:
    """Contract: no container and no Job repeats a rank alone; the JobSet restarts all, maxRestarts times."""
    document = made(job(reliability={"maxRestarts": 5}), queue())
    assert document["spec"]["failurePolicy"]["maxRestarts"] == 5
    assert inner(document)["backoffLimit"] == 0
    assert pod_of(document)["restartPolicy"] == "Never"
    never = made(job(reliability={"restartPolicy": "Never"}), queue())
    assert never["spec"]["failurePolicy"]["maxRestarts"] == 0


def test_nothing_in_it_deletes_or_repeats_by_itself() -> None:
    """Contract: no ttlSecondsAfterFinished below the job: what it deletes would be made again."""
    assert "ttlSecondsAfterFinished" not in yaml.safe_dump(made(job(), queue()))


def test_deadline_of_the_cluster_lies_behind_ours() -> None:
    """Contract: when the controller is gone the cluster ends the job, and does not restart it."""
    document = made(job(reliability={"activeDeadlineSeconds": 100}), queue())
    assert inner(document)["activeDeadlineSeconds"] > 100
    assert document["spec"]["failurePolicy"]["rules"][0] == {
        "name": "deadline",
        "action": "FailJobSet",
        "onJobFailureReasons": ["DeadlineExceeded"],
    }


def test_resources_are_the_share_of_the_node() -> None:
    """Contract: half of a node's GPUs come with half of its CPUs and memory, as requests and limits."""
    document = made(job(numNodes=None, numGPUs=4), queue(nodeResources=GPU_NODES))
    expected = {"cpu": "48000m", "memory": str(256 * 2**30), "nvidia.com/gpu": "4"}
    assert trainer(document)["resources"] == {"requests": expected, "limits": expected}
    assert document["metadata"]["labels"][names.GPU_TYPE_LABEL] == "h100-80gb"


def test_a_job_on_cpus_asks_for_no_gpu() -> None:
    """Contract: numGPUs: 0 runs on a GPU queue without one."""
    document = made(job(numGPUs=0), queue(nodeResources=GPU_NODES))
    assert "nvidia.com/gpu" not in trainer(document)["resources"]["requests"]


def test_shared_memory_is_for_each_gpu() -> None:
    """Contract: shmSizePerGPU times the GPUs of the pod."""
    document = made(
        job(numNodes=None, numGPUs=32), queue(nodeResources=GPU_NODES, storage={"shmSizePerGPU": "8Gi"})
    )
    assert {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "65536Mi"}} in pod_of(document)[
        "volumes"
    ]


def test_kai_scheduler_of_an_example_is_not_waited_for() -> None:
    """Contract: where Kueue admits, no pod waits for a scheduler that is not there; another one is kept."""
    of = queue(scheduling={"scheduler": "kai-scheduler", "priorityClassName": "gpu-priority"})
    assert "schedulerName" not in pod_of(made(job(), of))
    assert pod_of(made(job(), of))["priorityClassName"] == "gpu-priority"
    assert pod_of(made(job(), queue(scheduling={"scheduler": "mine"})))["schedulerName"] == "mine"
    one = job()
    kai = pod_of(jobset(one, resolved(one, of), None, kai=True))
    assert kai["schedulerName"] == "kai-scheduler"


def test_job_says_otherwise() -> None:
    """Contract: the job's image, environment and scheduling replace the queue's, by name."""
    of = queue(
        env=[{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
        scheduling={"nodeSelector": {"zone": "a"}, "priorityClassName": "low"},
        overrides={"images": ["torch:2"], "priorityClasses": ["high"]},
    )
    one = job(image="torch:2", env=[{"name": "B", "value": "2"}], scheduling={"priorityClassName": "high"})
    document = made(one, of)
    values = {item["name"]: item.get("value") for item in trainer(document)["env"]}
    assert (trainer(document)["image"], values["A"], values["B"]) == ("torch:2", "1", "2")
    assert pod_of(document)["priorityClassName"] == "high"
    assert pod_of(document)["nodeSelector"] == {"zone": "a"}


@pytest.mark.parametrize(
    ("fields", "of", "reason"),
    [
        ({"image": "torch:2"}, {"overrides": {"images": ["torch:3"]}}, "OverrideNotAllowed"),
        ({"env": [{"name": "PET_NNODES", "value": "9"}]}, {}, "ReservedEnv"),
        ({}, {"image": None}, "NoImage"),
        (
            {},
            {"storage": {"checkpoints": {"enabled": True, "size": "1Gi", "accessMode": "ReadWriteOnce"}}},
            "AccessMode",
        ),
        ({}, {"storage": {"datasets": {"enabled": True}}}, "ClaimSize"),
    ],
)
def test_a_job_that_cannot_run_is_refused(fields: Object, of: Object, reason: str) -> None:
    """Contract: what cannot run is refused by its reason, before anything is made."""
    with pytest.raises(Refused) as refused:
        made(job(**fields), queue(**of))
    assert refused.value.reason == reason


def test_a_template_gives_gpus() -> None:
    """Contract: the trainer's GPUs are the node's where nodeResources has none."""
    gpus = {"nvidia.com/gpu": 4}
    spec = {
        "containers": [
            {"name": "trainer", "image": "a", "resources": {"limits": gpus, "requests": gpus}},
        ],
        "tolerations": [{"key": "gpu"}],
    }
    of = queue(podTemplate={"spec": spec}, nodeResources={})
    document = made(job(numNodes=3), of)
    assert trainer(document)["image"] == "a"
    assert "--nproc-per-node=4" in trainer(document)["command"][2]
    assert trainer(document)["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert pod_of(document)["tolerations"] == [{"key": "gpu"}]


def test_claims_of_one_node() -> None:
    """Contract: the workspace goes with the job; datasets and checkpoints have no owner, and stay."""
    storage = {
        "workspace": {"enabled": True, "sizePerGPU": "10Gi"},
        "datasets": {"enabled": True, "size": "1Gi"},
        "checkpoints": {"enabled": True, "sizePerGPU": "50Gi"},
    }
    one, of = job(numNodes=None, numGPUs=8), queue(nodeResources=GPU_NODES, storage=storage)
    found = {claim["metadata"]["name"]: claim for claim in claims(one, resolved(one, of))}
    assert found.keys() == {"demo-workspace", "cpu-datasets", "demo-checkpoints"}
    sizes = {name: claim["spec"]["resources"]["requests"]["storage"] for name, claim in found.items()}
    assert sizes == {"demo-workspace": "81920Mi", "cpu-datasets": "1024Mi", "demo-checkpoints": "409600Mi"}
    owned = [name for name, claim in found.items() if "ownerReferences" in claim["metadata"]]
    assert owned == ["demo-workspace"]
    mounts = {mount["name"]: mount for mount in trainer(made(one, of))["volumeMounts"]}
    assert mounts["datasets"].get("readOnly") is True
    assert "readOnly" not in mounts["checkpoints"]
    assert trainer(made(one, of))["workingDir"] == "/app"


def test_workspace_of_several_nodes() -> None:
    """Contract: no ReadWriteOnce claim holds several pods on one node: each pod has a folder of its own."""
    one, of = job(), queue(storage={"workspace": {"enabled": True}})
    assert claims(one, resolved(one, of)) == []
    assert {"name": "workspace", "emptyDir": {}} in pod_of(made(one, of))["volumes"]
    shared = queue(storage={"workspace": {"enabled": True, "accessMode": "ReadWriteMany"}})
    [claim] = claims(one, resolved(one, shared))
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_pods_wait_for_the_workspace_that_is_promised() -> None:
    """Contract: a job whose command line uploads code waits for its digest; another one does not wait."""
    digest = {names.WORKSPACE_ANNOTATION: "sha256:1"}
    pod = pod_of(made(job(annotations=digest), queue()))
    [waiting] = pod["initContainers"]
    assert "sha256:1" in waiting["command"]
    assert [mount["name"] for mount in waiting["volumeMounts"]] == ["workspace"]
    assert "initContainers" not in pod_of(made(job(), queue()))


@pytest.mark.parametrize(("parts", "looked_for"), [("1", 3), ("4", 6), ("8", 8), ("99999999", 8)])
def test_pods_look_for_the_code_that_the_cluster_keeps(parts: str, looked_for: int) -> None:
    """Contract: each part is optional, so that none stops a pod, and the trainer does not see them. There
    are some more than there is code, because that of a later sync may be larger.
    """
    kept = {names.WORKSPACE_ANNOTATION: "sha256:1", names.PARTS_ANNOTATION: parts}
    pod = pod_of(made(job(annotations=kept), queue()))
    [volume] = [each for each in pod["volumes"] if each["name"] == "workspace-kept"]
    secrets = [source["secret"] for source in volume["projected"]["sources"]]
    assert [each["name"] for each in secrets] == [f"demo-workspace-{index}" for index in range(looked_for)]
    assert all(each["optional"] for each in secrets)
    [waiting] = pod["initContainers"]
    assert "workspace-kept" in {mount["name"] for mount in waiting["volumeMounts"]}
    [trainer] = pod["containers"]
    assert "workspace-kept" not in {mount["name"] for mount in trainer["volumeMounts"]}


def test_git_is_fetched_at_its_ref() -> None:
    """Contract: the ref is the ref, not the URL (the original's mistake)."""
    code = {"source": "git", "url": "https://git.example/a.git", "ref": "v1.2"}
    [fetch] = pod_of(made(job(workspaceStorage=code), queue()))["initContainers"]
    environment = {item["name"]: item["value"] for item in fetch["env"]}
    assert environment == {"URL": code["url"], "REF": "v1.2", "SHARED": "false"}


@pytest.mark.parametrize(
    "source", [{"source": "git", "url": "https://a.example/a"}, {"source": "s3", "url": "s3://b/c"}]
)
def test_one_pod_brings_what_all_share(source: Object) -> None:
    """Contract: pods with one volume for all do not fetch into it at once."""
    shared = {**source, "accessMode": "ReadWriteMany", "secretName": "keys"}
    of = queue(overrides={"secrets": ["keys"], "fields": ["workspaceStorage.accessMode"]})
    [fetch] = pod_of(made(job(workspaceStorage=shared), of))["initContainers"]
    assert {"name": "SHARED", "value": "true"} in fetch["env"]
    assert fetch["envFrom"] == [{"secretRef": {"name": "keys"}}]


def test_elastic_job_outlives_a_pod() -> None:
    """Contract: a lost pod comes back alone, and min nodes decide success."""
    document = made(job(numNodes=None, minNodes=2, maxNodes=4), queue())
    assert inner(document)["backoffLimit"] > 0
    assert inner(document)["successPolicy"] == {"rules": [{"succeededCount": 2}]}
    assert document["spec"]["failurePolicy"]["maxRestarts"] == 0


def test_the_jobset_is_owned_and_its_pods_are_labelled() -> None:
    """Contract: `kubectl get pods -l torchrun-job-name=demo`, and an owner in the same namespace."""
    document = made(job(labels={"team": "a"}), queue(overrides={"labels": ["team"]}))
    [reference] = document["metadata"]["ownerReferences"]
    assert (reference["uid"], reference["controller"]) == ("job-uid", True)
    labels = inner(document)["template"]["metadata"]["labels"]
    assert (labels[names.JOB_LABEL], labels["team"]) == ("demo", "a")


def test_a_host_network_pod_gets_cluster_first_dns() -> None:
    """Contract: with hostNetwork, names of Services need a dnsPolicy, which a template may leave out."""
    host = {"spec": {"hostNetwork": True, "containers": [{"name": "trainer"}]}}
    of = queue(podTemplate=host, privileges=["hostNetwork"])
    assert pod_of(made(job(), of))["dnsPolicy"] == "ClusterFirstWithHostNet"
    host["spec"]["dnsPolicy"] = "None"
    assert pod_of(made(job(), of))["dnsPolicy"] == "None"
    assert "dnsPolicy" not in pod_of(made(job(), queue()))


def test_job_has_token_of_account_that_its_queue_names() -> None:
    """Contract: the default account's token is only mounted if the template asks for it."""

    def token(**of: Any) -> object:
        return pod_of(made(job(), queue(**of))).get("automountServiceAccountToken")

    assert token() is False
    assert token(serviceAccountName="trainer") is None
    assert token(podTemplate={"spec": {"serviceAccountName": "trainer"}}) is None
    assert token(podTemplate={"spec": {"automountServiceAccountToken": True}}) is True
    for unset in (
        {"serviceAccountName": ""},
        {"serviceAccountName": None},
        {"automountServiceAccountToken": None},
    ):
        assert token(podTemplate={"spec": unset}) is False  # The API server treats null and "" as unset.


def test_other_containers_leave_their_last_lines_behind() -> None:
    """Contract: what an init container or a helper printed last is in its pod's status when it fails."""
    template = {
        "spec": {
            "initContainers": [{"name": "warm-cache"}, {"name": "own", "terminationMessagePolicy": "File"}],
            "containers": [{"name": "trainer"}, {"name": "exporter"}],
        }
    }
    spec = pod_of(made(job(), queue(podTemplate=template)))
    policies = {each["name"]: each.get("terminationMessagePolicy") for each in spec["initContainers"]}
    logs = "FallbackToLogsOnError"
    assert policies == {"warm-cache": logs, "own": "File", "exporter": logs}


def test_helpers_become_native_sidecars() -> None:
    """Contract: a helper ends with the trainer, and starts after the template's init containers and the
    workspace; a container with a restart policy of its own stays."""
    containers = [
        {"name": "trainer"},
        {"name": "exporter", "image": "b", "ports": [{"containerPort": 9400}]},
        {"name": "uploader", "restartPolicy": "Never"},
    ]
    template = {"spec": {"initContainers": [{"name": "warm-cache"}], "containers": containers}}
    of = queue(podTemplate=template, storage={"workspace": {"enabled": True}})
    spec = pod_of(made(job(annotations={names.WORKSPACE_ANNOTATION: "d1"}), of))
    assert [each["name"] for each in spec["containers"]] == ["trainer", "uploader"]
    assert [(each["name"], each.get("restartPolicy")) for each in spec["initContainers"]] == [
        ("warm-cache", None),
        ("workspace", None),
        ("exporter", "Always"),
    ]
    assert spec["initContainers"][2]["ports"] == [{"containerPort": 9400}]
    assert "initContainers" not in pod_of(made(job(), queue()))


@pytest.mark.parametrize(
    ("reliability", "size", "action", "restarts"),
    [
        ({}, {}, "FailJob", True),
        ({"maxRestarts": 0}, {}, "FailJob", True),
        ({"restartPolicy": "Never"}, {}, "FailJob", False),
        ({}, {"numNodes": None, "minNodes": 1, "maxNodes": 2}, "Ignore", True),
        ({"restartPolicy": "Never"}, {"numNodes": None, "minNodes": 1, "maxNodes": 2}, "FailJob", False),
    ],
)
def test_disruptions_do_not_count(reliability: Object, size: Object, action: str, restarts: bool) -> None:
    """Contract: an eviction, a drain or a preemption restarts all ranks and does not count; an elastic job
    replaces the pod; a job that must not be restarted ends."""
    document = made(job(reliability=reliability, **size), queue())
    [rule] = inner(document)["podFailurePolicy"]["rules"]
    assert rule == {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ignoring = {
        "name": "disruption",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    assert (ignoring in document["spec"]["failurePolicy"]["rules"]) == restarts


@pytest.mark.parametrize("field", ["hostname", "hostnameOverride", "subdomain", "setHostnameAsFQDN"])
def test_a_template_cannot_name_the_hosts(field: str) -> None:
    """Contract: with one name for all pods no rank would find another, for five minutes."""
    of = queue(podTemplate={"spec": {field: True if field.startswith("set") else "x"}})
    with pytest.raises(Refused, match=f"the pod template sets {field}: remove the setting") as refused:
        made(job(), of)
    assert refused.value.reason == "HostName"


@pytest.mark.parametrize("policy", [None, "ClusterFirst"])
def test_pods_in_host_network_use_cluster_s_dns(policy: str | None) -> None:
    """Contract: ClusterFirst would be the node's DNS there, in which no rank has a name; others stay."""
    of = {"hostNetwork": True, **({"dnsPolicy": policy} if policy else {})}

    def spec(of: Object) -> Object:
        return pod_of(made(job(), queue(podTemplate={"spec": of}, privileges=["hostNetwork"])))

    assert spec(of)["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert spec({**of, "dnsPolicy": "None"})["dnsPolicy"] == "None"
    assert "dnsPolicy" not in spec({})
