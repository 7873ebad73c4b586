"""A cluster that is started from a template is one as kind creates it, and no key of it opens another."""

from __future__ import annotations

import base64
import difflib
import json
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from harness_command import containers, environment, harness

from harness.core.kubernetes import Kube
from harness.provision.kind.pause_resume import FIRST_START
from harness.provision.kind.template import LABEL, REPOSITORY

pytestmark = pytest.mark.nightly
ALIKE = ("HostConfig", "Config")
_OWN_FIELDS = {"Hostname", "Image", "Labels", "Env", "PortBindings", "Binds", "Volumes"}
"""Fields of an inspected container that hold names; what is in them is compared without them."""
_KEYS = (
    "grep -rlsE 'PRIVATE KEY|client-key-data|BEGIN CERTIFICATE' "
    "/etc/kubernetes /var/lib/kubelet /kind /root /run/harness*"
)
_TOKENS = "find /var/lib/kubelet/pods -path '*kubernetes.io~projected*' -name token"


@dataclass
class Made:
    """A cluster that a test made, by its name."""

    name: str
    env: dict[str, str]
    said: str

    @property
    def kubeconfig(self) -> Path:
        return Path(self.env["HARNESS_STATE_DIR"]) / "clusters" / self.name / "kubeconfig"

    @property
    def nodes(self) -> list[str]:
        return [f"{self.name}-control-plane", f"{self.name}-worker"]

    @property
    def image(self) -> str:
        """Return the name of the image of its nodes."""
        command = ["docker", "inspect", "--format", "{{.Config.Image}}", self.nodes[0]]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def inside(self, node: str, script: str) -> str:
        command = ["docker", "exec", node, "bash", "-c", script]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def new_cluster(name: str, folder: Path, **more: str) -> Made:
    folder.mkdir()
    env = environment(folder, **{"HARNESS_FRESH": "false", **more})
    with harness("up", "--cluster-name", name, "--workers", "1", env=env) as up:
        assert up.end() == 0, up.stderr
    return Made(name, env, up.stderr)


def removed(name: str, folder: Path) -> None:
    with harness("down", "--cluster-name", name, env=environment(folder)) as down:
        assert down.end() == 0, down.stderr
    assert containers(name) == []
    assert not list((folder / "state" / "clusters").iterdir()), "files of the cluster were left"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Made, Made, Made]]:
    """A cluster that kind created, and two copies. Their names are as unlike as names can be."""
    folder = tmp_path_factory.mktemp("clusters")
    names = ("a", "harness-copied", "kind.v1")
    try:
        new_cluster(names[0], folder / "first")  # makes the template where there is none
        removed(names[0], folder / "first")
        created = new_cluster(names[0], folder / names[0], HARNESS_FRESH="true")
        yield created, new_cluster(names[1], folder / names[1]), new_cluster(names[2], folder / names[2])
    finally:
        for name in names:
            if (folder / name).exists() and containers(name):
                removed(name, folder / name)


def test_which_was_copied(three: tuple[Made, Made, Made]) -> None:
    created, *copies = three
    assert "no template is used (as asked)" in created.said
    assert all("starting 1 control plane and 1 worker from the template" in copy.said for copy in copies)
    assert not any("could not be started from its template" in copy.said for copy in copies)


# -- the containers -----------------------------------------------------------------------------------------
def inspected(cluster: Made, node: str) -> dict[str, Any]:
    """Return what Docker says of a node, with the names in it replaced."""
    text = subprocess.run(["docker", "inspect", node], capture_output=True, text=True, check=True).stdout
    document = json.loads(text)[0]
    port = (document["HostConfig"]["PortBindings"] or {}).get("6443/tcp", [{}])[0].get("HostPort", "no port")
    state = re.escape(cluster.env["HARNESS_STATE_DIR"])
    kept = {part: document[part] for part in ALIKE} | {
        "mounts": sorted((m["Type"], m["Destination"], m["RW"]) for m in document["Mounts"]),
        "networks": sorted(document["NetworkSettings"]["Networks"]),
    }
    kept["Config"]["Env"].sort()
    kept["HostConfig"]["Binds"].sort()
    kept["Config"].pop("Image")
    kept["Config"]["Labels"].pop(LABEL, None)
    body = re.sub(state, "STATE", json.dumps(kept)).replace(f'"{port}"', '"PORT"')
    found: dict[str, Any] = json.loads(
        re.sub(rf"\b{re.escape(cluster.name)}\b(?=-|\"|/volumes)", "NAME", body)
    )
    return found


@pytest.mark.parametrize("node", [0, 1])
def test_containers_are_as_kind_makes_them(three: tuple[Made, Made, Made], node: int) -> None:
    created, *copies = three
    expected = inspected(created, created.nodes[node])
    for copy in copies:
        assert inspected(copy, copy.nodes[node]) == expected


def test_kind_takes_a_copy_for_one_of_its_own(three: tuple[Made, Made, Made], tmp_path: Path) -> None:
    def kind(*arguments: str) -> str:
        command = ["kind", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    copy = three[1]
    assert {each.name for each in three} <= set(kind("get", "clusters").split())
    assert set(kind("get", "nodes", "--name", copy.name).split()) == set(copy.nodes)
    configuration = yaml.safe_load(kind("get", "kubeconfig", "--name", copy.name))
    assert configuration["current-context"] == f"kind-{copy.name}"
    archive = subprocess.run(
        ["tar", "-c", "-C", Path(__file__).parent, Path(__file__).name],
        capture_output=True,
        check=True,
    )
    tag = f"harness-test-{copy.name}:1"
    subprocess.run(["docker", "import", "-", tag], input=archive.stdout, check=True)
    try:
        kind("load", "docker-image", tag, "--name", copy.name)
    finally:
        subprocess.run(["docker", "image", "rm", tag], check=True)
    assert all(tag in copy.inside(node, "ctr -n k8s.io images ls -q") for node in copy.nodes)
    kind("export", "logs", "--name", copy.name, str(tmp_path))
    assert (tmp_path / copy.nodes[0] / "kubelet.log").stat().st_size > 0


# -- what is in them ----------------------------------------------------------------------------------------
RULES = (
    (r"(?<=-)[0-9a-f]{8,10}-[0-9a-z]{5}$|(?<=-)[0-9a-z]{5}$", "a pod's or a slice's random name"),
    (r"(?<=-)[0-9a-f]{8,10}$", "the digest of a Deployment's template"),
    (r"^10\.96\.\d+\.\d+$", "the address of a Service"),
    (r"^apiserver-[0-9a-z]{26}$", "the API server's lease, named after its node"),
)
"""What may differ in the names of two clusters' objects, and why."""
_OWN_KINDS = "events|leases|certificatesigningrequests|componentstatuses|visibility.kueue"
"""Made and removed as time goes by. A worker asks kubeadm for a certificate, a copy's has it."""


_ANEW = {
    *("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "status"),
    *(
        "jws-kubeconfig-abcdef",
        "caBundle",
        "clusterIP",
        "clusterIPs",
        "podCIDR",
        "podCIDRs",
        "ownerReferences",
    ),
}
"""Fields that the API server or a controller sets anew in each cluster, and the status."""
UNLIKE = {
    "IPAddress": "whose address it is is random",
    "Pod": "names, places and times are random",
    "Secret": "each cluster's own",
    "EndpointSlice": "follow the pods",
    "Endpoints": "follow the pods",
    "ReplicaSet": "follow their Deployment",
    "ControllerRevision": "follow their DaemonSet",
}
"""Kinds whose objects are compared by their names alone, and why."""


def objects(cluster: Made) -> dict[tuple[str, str, str], Any]:
    """Return every object by kind, namespace and name. What is random or the cluster's own is replaced."""

    def kubectl(*arguments: str) -> str:
        command = ["kubectl", "--kubeconfig", str(cluster.kubeconfig), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    kinds = kubectl("api-resources", "--verbs=list", "-o", "name").split()
    listed = ",".join(kind for kind in kinds if not re.search(_OWN_KINDS, kind))
    found = {}
    for each in json.loads(kubectl("get", listed, "-A", "-o", "json"))["items"]:
        metadata = each["metadata"]
        name = re.sub(
            rf"(^|-){re.escape(cluster.name)}-(?=control-plane|worker)", r"\1NAME-", metadata["name"]
        )
        for pattern, _ in RULES:
            name = re.sub(pattern, "X", name)
        found[each["kind"], metadata.get("namespace", ""), name] = plain(each, cluster)
    return found


def plain(thing: Any, cluster: Made) -> Any:
    """Return an object without the fields of _ANEW, and with names, addresses and keys replaced."""
    if isinstance(thing, dict):
        return {key: plain(value, cluster) for key, value in thing.items() if key not in _ANEW}
    if isinstance(thing, list):
        return [plain(each, cluster) for each in thing]
    if not isinstance(thing, str):
        return thing
    text = re.sub(rf"(^|\b|-){re.escape(cluster.name)}-(?=control-plane|worker)", r"\1NAME-", thing)
    text = text.replace(f"clusterName: {cluster.name}", "clusterName: NAME").replace(
        f"docker/{cluster.name}/", "docker/NAME/"
    )
    text = re.sub(r"172\.\d+\.\d+\.\d+|10\.(96|244)\.\d+\.\d+", "ADDRESS", text)
    return re.sub(r"[A-Za-z0-9+/=\n-]{200,}|-----BEGIN[^-]+-----[^-]+-----END[^-]+-----", "KEY", text)


def test_objects_are_those_of_a_created_one(three: tuple[Made, Made, Made]) -> None:
    created, *copies = three
    expected = objects(created)
    assert len(expected) > 300
    for copy in copies:
        found = objects(copy)
        assert set(found) == set(expected)
        unlike = {key: (each, expected[key]) for key, each in found.items() if each != expected[key]}
        for key, pair in unlike.items():
            texts = [json.dumps(each, indent=1, sort_keys=True).splitlines() for each in pair]
            print(key, *difflib.unified_diff(*texts, lineterm="", n=2), sep="\n")
        found_other = [key for key in unlike if key[0] not in UNLIKE]
        assert found_other == [("Deployment", "kube-system", "coredns")], "asked every second, template.eager"


def inspected_address(node: str) -> str:
    command = ["docker", "inspect", "--format", "{{.NetworkSettings.Networks.kind.IPAddress}}", node]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def files(cluster: Made, node: str) -> dict[str, str]:
    """Return what is in each file of the node's configuration, with names, addresses and keys replaced."""
    kubelet = "/var/lib/kubelet/*.yaml /var/lib/kubelet/*.env"
    where = f"/etc/kubernetes /kind {kubelet} /etc/containerd /etc/cni /etc/systemd -type f"
    actions = r"-printf '%m %p\n' -exec base64 -w0 {} \; -exec echo \;"
    script = f"find {where} -not -path '/kind/template/*' {actions}"
    lines = cluster.inside(node, script).splitlines()
    addresses = [inspected_address(each) for each in cluster.nodes]
    found = {}
    for named, content in zip(lines[::2], lines[1::2], strict=True):
        text = base64.b64decode(content).decode(errors="replace")
        for number, address in enumerate(addresses):
            text = text.replace(address, f"ADDRESS-{number}")
        text = re.sub(rf"\b{re.escape(cluster.name)}(?=-|\"|$|/|@|\n)", "NAME", text)
        text = re.sub(r"(-----BEGIN [A-Z ]+-----)[^-]+", r"\1", text)
        found[named] = re.sub(
            r"(certificate-authority|client-certificate|client-key)-data: .*", r"\1-data", text
        )
    return found


DIFFERENT = {
    "/etc/kubernetes/kubelet.conf": "kubeadm names user and context of a worker with a token otherwise",
    "/kind/old-ipv6": "an IPv6 address of Docker's network",
    "/kind/product_uuid": "random",
    "/kind/kubeadm.conf": "compared as YAML: kind quotes and orders otherwise",
}
"""Files that differ, and why."""


@pytest.mark.parametrize("node", [0, 1])
def test_files_are_those_of_a_created_one(three: tuple[Made, Made, Made], node: int) -> None:
    created, *copies = three
    expected = files(created, created.nodes[node])
    for copy in copies:
        found = files(copy, copy.nodes[node])
        assert set(found) == set(expected)
        for named, text in found.items():
            path = named.partition(" ")[2]
            if path == "/kind/kubeadm.conf":
                assert list(yaml.safe_load_all(text)) == list(yaml.safe_load_all(expected[named]))
            elif path not in DIFFERENT and "/pki/" not in path:
                assert text == expected[named], path


def processes_of(cluster: Made, node: str) -> set[str]:
    listed = cluster.inside(node, "ps -eo comm= | sort -u")
    return {name.strip() for name in listed.splitlines()} - {
        "bash",
        "ps",
        "sort",
        "sleep",
        "kubectl",
        "runc",
        "grep",
    }


@pytest.mark.parametrize("node", [0, 1])
def test_processes_are_those_of_a_created_one(three: tuple[Made, Made, Made], node: int) -> None:
    """CoreDNS and the tracker may be on either node."""
    either = {"coredns", "python3"}
    created, *copies = three
    for copy in copies:
        assert (
            processes_of(copy, copy.nodes[node]) - either
            == processes_of(created, created.nodes[node]) - either
        )


# -- what is each cluster's own ----------------------------------------------------------------------------
def test_no_two_nodes_are_the_same_machine(three: tuple[Made, Made, Made]) -> None:
    """Programs that identify nodes by their machine id would otherwise confuse two nodes."""
    nodes = [
        n for cluster in three for n in Kube(cluster.kubeconfig, f"kind-{cluster.name}").objects("v1", "Node")
    ]
    machine_ids = {node["status"]["nodeInfo"]["machineID"] for node in nodes}
    assert len(machine_ids) == len(nodes) == 6


def test_the_api_server_is_where_the_cluster_is(three: tuple[Made, Made, Made]) -> None:
    """An address of the cluster that the template was made from would get half of what pods ask."""
    for cluster in three:
        slices = Kube(cluster.kubeconfig, f"kind-{cluster.name}").objects(
            "discovery.k8s.io/v1", "EndpointSlice", "default"
        )
        addresses = [a for each in slices for endpoint in each["endpoints"] for a in endpoint["addresses"]]
        assert addresses == [inspected_address(cluster.nodes[0])]


def test_a_copy_whose_nodes_get_other_addresses_serves_again(three: tuple[Made, Made, Made]) -> None:
    """As after a restart of the machine, where Docker starts containers in another order."""
    copy = three[2]
    before = [inspected_address(node) for node in copy.nodes]
    time.sleep(FIRST_START.total_seconds())  # a container that starts within that time is new
    subprocess.run(["docker", "stop", "--time", "2", *copy.nodes], check=True, capture_output=True)
    for node in reversed(copy.nodes):
        subprocess.run(["docker", "start", node], check=True, capture_output=True)
    assert [inspected_address(node) for node in copy.nodes] == before[::-1]
    with harness(
        "run", "--cluster-name", copy.name, "--workers", "1", "jobs/multinode.yaml", env=copy.env
    ) as run:
        assert run.end() == 0, run.stdout + run.stderr


# -- keys ---------------------------------------------------------------------------------------------------
def answered(kind_cluster: Made, headers: dict[str, str], pair: tuple[str, str] | None = None) -> int:
    """Return how a cluster's API server answers to a question that every identity of a cluster may ask."""
    cluster = yaml.safe_load(kind_cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
    with httpx.Client(verify=False, cert=pair, trust_env=False) as client:
        asked = {"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}
        url = f"{cluster['server']}/apis/authentication.k8s.io/v1/selfsubjectreviews"
        return client.post(url, headers=headers, json=asked).status_code


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """Yield the client certificates with their keys in the text of a file."""
    if "client-key-data" in text:
        user = yaml.safe_load(text)["users"][0]["user"]
        data = (user["client-certificate-data"], user["client-key-data"])
        yield tuple(base64.b64decode(each).decode() for each in data)  # type: ignore[misc]
    elif "PRIVATE KEY" in text and "BEGIN CERTIFICATE" in text:
        yield text, text


def test_no_key_opens_another_cluster(three: tuple[Made, Made, Made], tmp_path: Path) -> None:
    tried = {"token": 0, "certificate": 0}
    for mine, other in ((three[1], three[2]), (three[2], three[1]), (three[1], three[0])):
        for node in mine.nodes:
            for path in mine.inside(node, _TOKENS).split():
                bearer = {"Authorization": f"Bearer {mine.inside(node, f'cat {path}').strip()}"}
                assert answered(mine, bearer) == 201, path
                assert answered(other, bearer) == 401, path
                tried["token"] += 1
            texts = {path: mine.inside(node, f"cat {path}") for path in mine.inside(node, _KEYS).split()}
            for path, text in list(texts.items()):
                if path.endswith(".crt") and path.removesuffix("crt") + "key" in texts:
                    texts[path] = text + texts[path.removesuffix("crt") + "key"]
            for path, text in texts.items():
                for certificate, key in pairs(text):
                    names = tmp_path / "certificate", tmp_path / "key"
                    for name, content in zip(names, (certificate, key), strict=True):
                        name.write_text(content)
                    pair = (str(names[0]), str(names[1]))
                    assert answered(other, {}, pair) == 401, path
                    if path.endswith(".conf"):
                        assert answered(mine, {}, pair) == 201, path
                    tried["certificate"] += 1
    assert tried["token"] >= 9, tried
    assert tried["certificate"] >= 30, tried


def test_nothing_secret_is_in_the_template(three: tuple[Made, Made, Made]) -> None:
    """Every file of the layer that the node image has not, without its compression."""
    image = three[1].image
    assert image.startswith(REPOSITORY)
    secrets = []
    for cluster in three:
        kube = Kube(cluster.kubeconfig, f"kind-{cluster.name}")
        for secret in kube.objects("v1", "Secret"):
            if secret["type"] == "bootstrap.kubernetes.io/token":  # it is the same in all clusters of kind
                continue
            values = [base64.b64decode(value) for value in (secret.get("data") or {}).values()]
            secrets += [value for value in values if len(value) > 20]
    assert len(secrets) >= 12
    where = "/kind /var/lib/containerd /etc/kubernetes /var/lib/kubelet /var/lib/etcd"
    script = f"find {where} -type f | xargs -r cat"
    command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "sh", image, "-c", script]
    content = subprocess.run(command, capture_output=True, check=True).stdout
    assert len(content) > 1_000_000
    for value in (*secrets, b"PRIVATE KEY"):
        assert value not in content, value[:30]


# -- where no template can be used --------------------------------------------------------------------------
def test_a_template_that_is_cut_off_is_replaced(three: tuple[Made, Made, Made], tmp_path: Path) -> None:
    """The cluster is created, and one line says why. The next one is copied from a new template."""
    image, name = three[1].image, "pluto-e2e-cut"
    cut = f"FROM {image}\nRUN rm -r /kind/template/etcd\n"
    command = ["docker", "build", "--provenance=false", "-q", "-t", image, "-"]
    subprocess.run(command, input=cut, capture_output=True, text=True, check=True)
    try:
        first = new_cluster(name, tmp_path / "first")
        assert "could not be started from its template (" in first.said
        assert "/kind/template/etcd" in first.said
    finally:
        removed(name, tmp_path / "first")
    second = new_cluster(name, tmp_path / "second")
    removed(name, tmp_path / "second")
    assert "starting 1 control plane" in second.said
    assert "could not be started from its template" not in second.said
