"""What a queue's pod template adds to the pods of jobs, and pods that Kubernetes takes from their nodes."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from test_torchrun_controller import LONG, MET, QUICK
from torchrun_team import Controller, Team

from harness.core.kubernetes import Object, condition
from harness.torchrun_controller.api import names

pytestmark = [pytest.mark.controller, pytest.mark.nightly, pytest.mark.timeout(1200)]
STEPS = [{"name": "STEPS", "value": "20"}]
NEVER = {"restartPolicy": "Never"}
SECONDS = 300.0


def template(**spec: Any) -> Object:
    return {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 3, **spec}}}


def warnings(team: Team, job: str) -> dict[str, str]:
    """Return the messages of a job's Warnings, by reason."""
    found = team.kube.objects("v1", "Event", team.namespace)
    return {
        event["reason"]: event["message"]
        for event in found
        if event["involvedObject"].get("kind") == names.JOB_KIND
        and event["involvedObject"].get("name") == job
        and event["type"] == "Warning"
    }


def until_warned(team: Team, job: str, text: str, *reasons: str) -> None:
    """Wait for a Warning of a job with this text, for one of these reasons."""

    def done(found: dict[str, Object]) -> str | None:
        messages = warnings(team, job)
        return None if any(text in messages.get(reason, "") for reason in reasons) else str(messages)

    team.kube.wait(f"Event of {job}", "v1", "Event", done, seconds=SECONDS, namespace=team.namespace)


def test_init_containers_and_helpers_are_named(team: Team, controller: Controller) -> None:
    """Contract: an init container that fails, hangs or lacks its image, and a helper that crashes, are in
    the job's message and Events; a helper that never ends does not keep a job from its end.
    """

    def initial(command: str, image: str = team.image) -> Object:
        return template(
            initContainers=[{"name": "warm-cache", "image": image, "command": ["sh", "-c", command]}]
        )

    def helper(command: str) -> Object:
        named = {"name": "exporter", "image": team.image, "command": ["sh", "-c", command]}
        return template(containers=[{"name": "trainer"}, named])

    queues = {
        "fails": initial("echo cache server says 403 >&2; exit 3"),
        "hangs": initial("sleep 600"),
        "no-image": initial("true", "registry.invalid/warm-cache:1"),
        "serves": helper("exec sleep infinity"),
        "crashes": helper("echo no licence >&2; exit 7"),
    }
    for name, spec in queues.items():
        team.queue(name, nodeResources={"cpus": "100m", "memory": "512Mi"}, **spec)
        steps = LONG if name == "crashes" else []
        restarts = 1 if name == "fails" else 0
        team.job(name, jobQueue=name, env=steps, reliability={"maxRestarts": restarts})
    failed = team.until("fails", "Failed", SECONDS)["status"]
    assert failed["restarts"] == 1
    text = "init container warm-cache: Error, exit code 3: cache server says 403"
    assert text in failed["message"]
    until_warned(team, "fails", text, "RankFailed")
    until_warned(team, "no-image", "init container warm-cache: ErrImagePull", "PodsNotStarting")
    # The trainer can start between two runs of the helper.
    crash = "sidecar exporter: CrashLoopBackOff after Error, exit code 7: no licence"
    until_warned(team, "crashes", crash, "PodsNotStarting", "SidecarFailing")
    team.until("serves", "Succeeded", SECONDS)
    assert team.printed("serves") == MET
    until_warned(team, "hangs", "init container warm-cache has been running for", "PodsNotStarting")
    hangs = team.until("hangs", "Pending")["status"]["message"]
    assert "init container warm-cache has been running for" in hangs
    for name in ("hangs", "no-image", "crashes"):
        team.change(name, cancel=True)


def test_a_helper_does_not_keep_a_failed_rank(team: Team, controller: Controller) -> None:
    """Contract: a rank that fails beside a helper that never ends is Failed."""
    helper = {"name": "exporter", "image": team.image, "command": ["sleep", "infinity"]}
    team.queue("beside", **template(containers=[{"name": "trainer"}, helper]))
    team.job("beside", jobQueue="beside", env=[{"name": "FAILING_RANK", "value": "1"}], reliability=NEVER)
    assert condition(team.until("beside", "Failed", SECONDS), "Failed")["reason"] == "RankFailed"


def test_fields_of_a_template_reach_the_pods(team: Team, controller: Controller) -> None:
    """Contract: jobs run with each field of a pod template that is permitted here; ranks in the host
    network find each other by their names.
    """
    runtime = f"{team.namespace}-runc"
    metadata = {"name": runtime}
    api = "node.k8s.io/v1"
    team.kube.apply({"apiVersion": api, "kind": "RuntimeClass", "metadata": metadata, "handler": "runc"})
    config = json.dumps({"auths": {"registry.invalid": {"auth": base64.b64encode(b"a:b").decode()}}})
    team.kube.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "pull", "namespace": team.namespace},
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": config},
        }
    )
    exists = {"key": "kubernetes.io/hostname", "operator": "Exists"}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [exists]}]}
    mounted = {"name": "scratch", "mountPath": "/scratch"}
    spec = {
        "runtimeClassName": runtime,
        "imagePullSecrets": [{"name": "pull"}],
        "dnsConfig": {"options": [{"name": "ndots", "value": "3"}], "searches": ["example.invalid"]},
        "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "securityContext": {"runAsUser": 1000, "runAsNonRoot": True, "fsGroup": 2000},
        "volumes": [{"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}}],
        "containers": [
            {
                "name": "trainer",
                "volumeMounts": [mounted],
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }
    host = {"hostNetwork": True, "hostIPC": True}
    try:
        team.queue("fields", **template(**spec))
        team.queue("host", privileges=["hostNetwork", "hostIPC"], **template(**host))
        team.queue("not-granted", **template(**host))
        user = "[ $(id -u) = 1000 ] && id -G | grep -w 2000"
        setup = f"{user} && touch /scratch/x && grep example.invalid /etc/resolv.conf"
        team.job("fields", jobQueue="fields", setupCommand=setup, reliability=NEVER)
        team.job("host", jobQueue="host", reliability=NEVER)
        team.job("not-granted", jobQueue="not-granted")
        for name in ("fields", "host"):
            team.until(name, "Succeeded", SECONDS)
            assert team.printed(name) == MET
        [pod, _] = team.pods("fields")
        for field in ("runtimeClassName", "imagePullSecrets", "dnsConfig", "affinity"):
            assert pod["spec"][field] == spec[field]
        [pod, _] = team.pods("host")
        assert (pod["spec"]["dnsPolicy"], pod["spec"]["hostIPC"]) == ("ClusterFirstWithHostNet", True)
        waits = team.until("not-granted", "Pending")["status"]["message"]
        assert "add hostIPC, hostNetwork to the queue's privileges" in waits
    finally:
        team.kube.delete(api, "RuntimeClass", runtime)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_eviction_does_not_count(team: Team, controller: Controller, rank: int) -> None:
    """Contract: with maxRestarts 0, an evicted rank restarts all ranks, and the job succeeds; message and
    Event name the node and the reason.
    """
    name = f"evicted-{rank}"
    team.queue(podTemplate=QUICK["podTemplate"])
    team.job(name, env=STEPS, reliability={"maxRestarts": 0})
    team.until(name, "Running", SECONDS)
    index = "batch.kubernetes.io/job-completion-index"
    [pod] = [each for each in team.pods(name) if each["metadata"]["labels"][index] == str(rank)]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"]}}
    pods = team.kube.resource("v1", "Pod")
    pods.subresources["eviction"].create(
        body=eviction, name=pod["metadata"]["name"], namespace=team.namespace
    )
    ended = team.until(name, "Succeeded", SECONDS)
    assert ended["status"]["restarts"] == 1
    assert team.printed(name) == MET
    message = f"was evicted from node {pod['spec']['nodeName']} (EvictionByEvictionAPI"
    until_warned(team, name, message, "Disrupted")
