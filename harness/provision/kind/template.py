"""Create, find and remove cluster templates.

A template is a node image that also contains a new cluster's etcd data and containerd images, but no keys. It
is created from a newly installed cluster, and later clusters are created from it (see from_template.py). It
contains no Nodes, Pods or Secrets of the first cluster, and no object with that cluster's name. Each new
cluster creates its own certificates, tokens and kubeconfigs.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

from harness.context import RunContext
from harness.core import processes
from harness.core.clock import CLOCK
from harness.core.errors import HarnessError
from harness.core.kubernetes import Object
from harness.core.locks import locked
from harness.provision.controllers import install as controllers
from harness.provision.images import unpacked
from harness.provision.images.containerd_import import LocalImage
from harness.provision.images.stack import Stack
from harness.provision.kind.nodes import KindNodes
from harness.settings import Settings

REPOSITORY, LABEL = "harness/template", "harness.template"
FILES = Path(__file__).with_name("files")
MAX_TEMPLATES: Final = 4
MAX_AGE = timedelta(days=7)
SECONDS = 60
FAILURES, MAX_FAILURES = "templates-failed.json", 2
"""FAILURES is a file in the cache with the number of consecutive failed starts of each template. A template
is no longer used once this number reaches MAX_FAILURES.
"""
NAMESPACES = (
    *("kube-node-lease", "kube-public", "kube-system"),
    *("harness-system", "jobset-system", "kueue-system"),
)
_OF_A_NAMESPACE = ("configmaps", "roles", "rolebindings", "serviceaccounts", "services/specs")
_COPIED_PREFIXES = (
    "apiextensions.k8s.io/customresourcedefinitions/",
    "apiregistration.k8s.io/apiservices/",
    "clusterrolebindings/",
    "clusterroles/",
    "flowschemas/",
    "ipaddresses/",
    "namespaces/",
    "priorityclasses/",
    "prioritylevelconfigurations/",
    "ranges/",
    "serviceaccounts/default/default",
    "servicecidrs/",
    "services/specs/default/kubernetes",
    "storageclasses/",
    *(f"{kind}/{namespace}/" for kind in _OF_A_NAMESPACE for namespace in NAMESPACES),
)
"""Prefixes, below /registry/, of the etcd keys that a template contains."""
_OMITTED_PREFIXES = (
    "certificatesigningrequests/",
    "controllerrevisions/kube-system/",
    "csinodes/",
    "daemonsets/kube-system/",
    "deployments/",
    "endpointslices/",
    "events/",
    "jobset.x-k8s.io/",
    "kueue.x-k8s.io/",
    "leases/",
    "masterleases/",
    "minions/",
    "mutatingwebhookconfigurations/",
    "networkpolicies/harness-system/",
    "peerserverleases/",
    "pods/",
    "replicasets/",
    "secrets/",
    "services/endpoints/",
    "validatingwebhookconfigurations/",
)
"""Prefixes, below /registry/, of the etcd keys that a template does not contain, because each cluster creates
these objects itself."""
_CLUSTER_SPECIFIC_KEYS = (
    "configmaps/kube-public/cluster-info",
    "configmaps/kube-system/extension-apiserver-authentication",
    "configmaps/kube-system/kube-proxy",
    "configmaps/kube-system/kubeadm-config",
)
"""The etcd keys of objects that contain the cluster's name, address or certificate authority. A template does
not contain them."""
_AUTHORITY = "kube-root-ca.crt"
_REGISTRY = "/registry/"


@dataclass(frozen=True)
class Template:
    """A cluster template, which is an image in the local Docker daemon."""

    image: str
    made: str
    """The time at which the template was created, in ISO 8601 format."""
    configurations: dict[str, str]
    """Maps each node role to the kubeadm.conf that kind wrote for it."""
    dns: Object
    """The CoreDNS Deployment, which is applied in each cluster that is created from the template."""

    @property
    def fresh(self) -> bool:
        """Return whether the template is younger than MAX_AGE."""
        return CLOCK.utc() - datetime.fromisoformat(self.made) < MAX_AGE


def tag(settings: Settings, stack: Stack, own: Sequence[LocalImage], context: RunContext) -> str:
    """Return the image reference of the template for these settings.

    Its tag is a digest of the template's contents, the code that creates clusters, and the identity of the
    volume of unpacked images.
    """
    from harness.provision.kind.configuration import configuration

    cluster_config = configuration(settings, stack.node_image, (), Path("/images"), Path("/volumes"))
    ids = [LocalImage.of(each).image_id for each in (stack.node_image, *stack.node_images)]
    parts = [
        json.dumps({**cluster_config, "name": "", "networking": {}}, sort_keys=True),
        *ids,
        *(image.image_id for image in own),
        *(hashlib.sha256(path.read_bytes()).hexdigest() for path in stack.controllers),
        processes.run([settings.kind_bin, "version"], timeout=30).stdout,
        unpacked.volume(context),
        unpacked.created_at(context),
        settings.tracker,
        _code_digest(),
    ]
    return f"{REPOSITORY}:{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"


def find(image: str) -> Template | None:
    """Return the template with this name, or None if there is no readable template."""
    command = ["docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{LABEL}"}}}}', image]
    result = processes.run(command, timeout=30, check=False)
    try:
        return (
            Template(image, **json.loads(base64.b64decode(result.stdout))) if result.returncode == 0 else None
        )
    except (ValueError, TypeError):
        return None


def attempts_exhausted(image: str, context: RunContext) -> bool:
    """Return whether the last MAX_FAILURES attempts to start a cluster from this template all failed."""
    return _failures(context).get(image, 0) >= MAX_FAILURES


def record_result(image: str, context: RunContext, *, well: bool) -> None:
    """Record whether a cluster was started successfully from a template (`well`). After a failure, remove the
    template."""
    before = _failures(context)
    after = {**before, image: 0 if well else before.get(image, 0) + 1}
    if not well:
        _docker("image", "rm", image, check=False)
    if after[image] != before.get(image, 0):
        path = context.settings.cache_dir / FAILURES
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(after))
        partial.replace(path)


def _failures(context: RunContext) -> dict[str, int]:
    try:
        counts: dict[str, int] = json.loads((context.settings.cache_dir / FAILURES).read_text())
    except (OSError, ValueError):
        return {}
    return counts


def make(
    image: str, kind: KindNodes, stack: Stack, own: Sequence[LocalImage], context: RunContext
) -> Template:
    """Create a template from a newly installed cluster, which keeps running. Raises HarnessError."""
    with locked(context.settings.cache_dir / "template.lock"):
        existing = find(image)
        if existing is not None and existing.fresh:
            return existing
        _docker("image", "rm", image, check=False)  # Remove a template that is too old.
        nodes = kind.nodes()
        entries = keys(_etcd(nodes[0]), names(controllers.deferred(stack.controllers)))
        roles = dict(zip(("control-plane", "worker"), nodes, strict=False))
        configurations = {role: _file(node, "/kind/kubeadm.conf") for role, node in roles.items()}
        dns = eager(kind.kube().get("apps/v1", "Deployment", "coredns", "kube-system"))
        template = Template(image, CLOCK.utc().isoformat(timespec="seconds"), configurations, dns)
        files = {
            name: _file(nodes[0], f"/var/lib/kubelet/{name}")
            for name in ("config.yaml", "instance-config.yaml")
        }
        links = [unpacked.script(each) for each in (*(LocalImage.of(i) for i in stack.node_images), *own)]
        _commit(template, stack.node_image, unpacked.volume(context), entries, files, links)
        _remove_old(image)
        return template


def keys(entries: Sequence[dict[str, str]], deferred: Sequence[str]) -> list[dict[str, str]]:
    """Return the entries of an etcd response that belong in a template.

    Each entry has a `key` and a `value`, both in base64. `deferred` contains the names of objects that are
    left out, because they are applied once their controllers are ready. Raises HarnessError for a key of an
    unknown kind, because a cluster without objects of this kind might differ from the original.
    """
    copied = []
    for each in entries:
        path = base64.b64decode(each["key"]).decode()
        relative_path = path.removeprefix(_REGISTRY)
        name = relative_path.rpartition("/")[2]
        if relative_path == path or name == "compact_rev_key":
            continue
        if relative_path in _CLUSTER_SPECIFIC_KEYS or name == _AUTHORITY or name in deferred:
            continue
        if relative_path.startswith(_COPIED_PREFIXES):
            copied.append({"key": each["key"], "value": each["value"]})
        elif not relative_path.startswith(_OMITTED_PREFIXES):
            raise HarnessError(
                f"etcd contains {path}, a kind of object that the harness does not know how to handle in a "
                "template"
            )
    return copied


def eager(dns: Object | None) -> Object:
    """Return the CoreDNS Deployment for clusters that are created from a template, with a readiness probe
    every second.

    A newly started kubelet sends the first probe after a random fraction of the probe's period, which is 10 s
    by default. Raises HarnessError if the cluster has no CoreDNS Deployment.
    """
    if dns is None:
        raise HarnessError("the cluster has no Deployment named coredns")
    metadata = {key: dns["metadata"][key] for key in ("name", "namespace", "labels")}
    spec = copy.deepcopy(dns["spec"])
    for container in spec["template"]["spec"]["containers"]:
        container["readinessProbe"]["periodSeconds"] = 1
    return {"apiVersion": dns["apiVersion"], "kind": dns["kind"], "metadata": metadata, "spec": spec}


def names(documents: Iterator[dict[str, Any]]) -> list[str]:
    """Return the names of the objects in `documents`."""
    return [str(document["metadata"]["name"]) for document in documents]


def puts(entries: Sequence[dict[str, str]], limit: int = 1_000_000) -> Iterator[str]:
    """Yield request bodies for etcd's /v3/kv/txn that together write all entries.

    Each body has at most 100 keys and, unless a single entry is larger, at most `limit` bytes of base64 text.
    """
    batch: list[dict[str, Any]] = []
    size = 0
    for each in entries:
        length = len(each["key"]) + len(each["value"])
        if batch and (size + length > limit or len(batch) == 100):
            yield json.dumps({"success": batch})
            batch, size = [], 0
        batch.append({"requestPut": each})
        size += length
    if batch:
        yield json.dumps({"success": batch})


@cache
def _code_digest() -> str:
    """Return a digest of the code that creates clusters. Different code might create different clusters."""
    digest = hashlib.sha256()
    for path in sorted(FILES.parents[1].glob("*/*.py")) + sorted(FILES.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _etcd(node: str) -> list[dict[str, str]]:
    """Return all keys and values from the etcd of the control plane that runs in the container `node`."""
    pki = "/etc/kubernetes/pki"
    client = f"--cert {pki}/apiserver-etcd-client.crt --key {pki}/apiserver-etcd-client.key"
    request = json.dumps({"key": _encoded(_REGISTRY), "range_end": _encoded("/registry0")})
    script = f"{_CURL} --cacert {pki}/etcd/ca.crt {client} https://127.0.0.1:2379/v3/kv/range -d '{request}'"
    response = processes.run(["docker", "exec", node, "sh", "-c", script], timeout=SECONDS).stdout
    entries: list[dict[str, str]] = json.loads(response)["kvs"]
    return entries


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _file(node: str, path: str) -> str:
    return processes.run(["docker", "exec", node, "cat", path], timeout=SECONDS).stdout


def _commit(
    template: Template,
    node_image: str,
    volume: str,
    entries: Sequence[dict[str, str]],
    files: dict[str, str],
    links: Sequence[str],
) -> None:
    """Create the template's image from a container.

    The container exits after 3 minutes even if this process is killed.
    """
    name = f"harness-template-{template.image.rpartition(':')[2]}"
    _docker("rm", "--force", name, check=False)
    mounts = ["--volume", f"{volume}:{unpacked.MOUNT}:ro", "--tmpfs", "/freeze:exec", "--network", "none"]
    run_options = ["--entrypoint", "sleep", node_image, str(3 * SECONDS)]
    _docker("run", "--detach", "--rm", "--privileged", "--name", name, *mounts, *run_options)
    try:
        _inside(name, (FILES / "containerd.sh").read_text(), *links)
        _inside(name, _START_ETCD + "".join(_put(body) for body in puts(entries)) + _STOP_ETCD)
        for path, text in files.items():
            _inside(name, f"cat >/kind/template/{path} <<'END'\n{text}END\n")
        configuration = json.loads(_docker("image", "inspect", "--format", "{{json .Config}}", node_image))
        start = {key.upper(): json.dumps(configuration.get(key) or []) for key in ("Entrypoint", "Cmd")}
        fields = {key: value for key, value in asdict(template).items() if key != "image"}
        label = _encoded(json.dumps(fields))
        changes = [*(f"{key} {value}" for key, value in start.items()), f"LABEL {LABEL}={label}"]
        _docker(
            "commit", *(part for change in changes for part in ("--change", change)), name, template.image
        )
    finally:
        _docker("rm", "--force", name, check=False)


_CURL = "curl -sS --fail --noproxy '*'"
"""The curl command, with an option that disables proxies. Docker's client can be configured to set proxy
variables in every container."""
_START_ETCD = f"""set -eu
mkdir -p /kind/template
address=http://127.0.0.1:2379
/freeze/etcd-program --data-dir /freeze/etcd --log-level error --max-request-bytes 16000000 \\
  --listen-client-urls $address --advertise-client-urls $address 2>/freeze/etcd-log &
daemon=$!
for try in $(seq 300); do
  if {_CURL} $address/health >/dev/null 2>&1; then break; fi
  sleep 0.1
done
put() {{ {_CURL} --data-binary @- $address/v3/kv/txn >/dev/null; }}
"""
_STOP_ETCD = f"""{_CURL} -d '{{}}' $address/v3/maintenance/defragment >/dev/null
kill $daemon
wait $daemon || true
cp -a --sparse=always /freeze/etcd /kind/template/etcd
"""


def _put(body: str) -> str:
    return f"put <<'END'\n{body}\nEND\n"


def _inside(container: str, script: str, *arguments: str) -> None:
    processes.run(
        ["docker", "exec", "-i", container, "bash", "-s", "--", *arguments], stdin=script, timeout=SECONDS
    )


def _docker(*arguments: str, check: bool = True) -> str:
    return processes.run(["docker", *arguments], timeout=SECONDS, check=check).stdout


def _remove_old(newest: str) -> None:
    """Remove all templates except the newest MAX_TEMPLATES and those in use."""
    output = _docker(
        "image", "ls", "--filter", f"reference={REPOSITORY}", "--format", "{{.Repository}}:{{.Tag}}"
    )
    templates = [each for each in output.splitlines() if each != newest]  # Docker lists the newest first.
    for each in templates[MAX_TEMPLATES - 1 :]:
        _docker("image", "rm", each, check=False)
