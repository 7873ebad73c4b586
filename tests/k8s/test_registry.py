"""The main job with images from registries: the source way's images and manifests, published on this machine.

The code that takes published images is the same for every registry, so all of it runs here: references by
digest, manifests by URL and sha256, the pull by Docker, by the image build and by the nodes. Only the public
registries can show their TLS, their rate limits, and that harness/versions.toml names what they hold.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import bcrypt
import pytest
from local_registry import Registry, registry_program, serving

from harness import run as running
from harness.context import RunContext
from harness.core import processes
from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes.objects import items
from harness.fixtures.plugin import record
from harness.launch.konduktor.job_file import JobFile
from harness.launch.konduktor.workload import KonduktorWorkload
from harness.launch.workloads import acceptance
from harness.provision.cluster import Ready
from harness.provision.existing import ExistingCluster
from harness.provision.images import versions
from harness.provision.images.mirror import teach
from harness.provision.images.stack import Stack, resolve
from harness.provision.kind.cluster import KindCluster
from harness.provision.source.shell import build_command
from harness.report.finalize import Outcome
from harness.settings import Settings

pytestmark = [pytest.mark.registry, pytest.mark.nightly]

PUSH_SECONDS = 900
CONTROLLERS = ("jobset", "kueue")
PRIVATE, USER, PASSWORD = "private.test", "reader", "p4ssword-of-a-registry"


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Published:
    """The local registry and file server, in place of docker.io, registry.k8s.io and github.com."""

    lock: str
    """A versions.toml that names everything here."""
    references: dict[str, str]
    """Purpose → reference by digest: `localhost:PORT/harness/…@sha256:…`."""
    to_push: Registry
    to_nodes: Registry
    files: Path
    """The folder that the HTTP server serves."""

    def path(self, name: str) -> str:
        """Return the reference without its registry, as a registry's log shows it."""
        return self.references[name].partition("/")[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for gigabytes. pytest would keep its own folders of the last three sessions."""
    path = tmp_path_factory.mktemp("published")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def published(folder: Path, harness_settings: Settings) -> Iterator[Published]:
    """Push the source way's node, JobSet, Kueue and base images, and serve its manifests by HTTP."""
    by_source = harness_settings.model_copy(update={"images": "source", "versions_file": None})
    source = resolve(RunContext(settings=by_source, progress=progress))
    images = {
        "node": source.node_image,
        "torch_base": source.torch_base,
        "python_base": source.python_base,
        **dict(zip(CONTROLLERS, source.node_images, strict=True)),
    }
    program, data, files = registry_program(harness_settings.cache_dir), folder / "data", folder / "files"
    files.mkdir()
    for name in CONTROLLERS:
        shutil.copy(getattr(source, f"{name}_manifest"), files / f"{name}.yaml")
    with (
        serving(program, data, "127.0.0.1", readonly=False) as to_push,
        serving(program, data, "0.0.0.0", readonly=True) as to_nodes,
        file_server(files) as url,
        ThreadPoolExecutor(len(images)) as pool,
    ):
        pushed = pool.map(lambda item: push(*item, to_push.port), images.items())
        references = dict(zip(images, pushed, strict=True))
        lock = lock_of(source, references, files, url, to_nodes.port, harness_settings)
        try:
            yield Published(lock, references, to_push, to_nodes, files)
        finally:
            for reference in references.values():
                processes.run(["docker", "rmi", reference], timeout=60, check=False)


def push(name: str, image: str, port: int) -> str:
    """Push a local image and return its reference by digest. Docker then forgets the image, so that it must
    pull it.

    A label makes a digest that was never there, because Docker asks no registry for a manifest that it still
    has.
    """
    repository = f"localhost:{port}/harness/{name.replace('_', '-')}"
    recipe = f"FROM {image}\nLABEL published={secrets.token_hex(8)}\n"
    start = time.monotonic()
    processes.run([*build_command(), "-t", f"{repository}:test", "-"], timeout=120, stdin=recipe)
    try:
        output = processes.run(["docker", "push", f"{repository}:test"], timeout=PUSH_SECONDS).stdout
    finally:
        processes.run(["docker", "rmi", f"{repository}:test"], timeout=60)
    digest = re.search(r"digest: (sha256:[0-9a-f]{64})", output)
    assert digest, output
    progress(f"pushed {image} in {time.monotonic() - start:.0f} s")
    return f"{repository}@{digest[1]}"


@contextmanager
def file_server(files: Path) -> Iterator[str]:
    """Start an HTTP server on loopback and yield its base URL."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(files))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def lock_of(
    source: Stack, references: dict[str, str], files: Path, url: str, nodes_port: int, settings: Settings
) -> str:
    """Return the text of harness/versions.toml with other references. Its [worker] is the project's."""
    registry = references["node"].partition("/")[0]
    lines = ["[registry]", f'kubernetes = "{source.kubernetes}"']
    lines += [f'{name} = "{references[name]}"' for name in ("node", "torch_base", "python_base")]
    for name in CONTROLLERS:
        lines += [
            f"[registry.{name}]",
            f'version = "{source.versions[name]}"',
            f'image = "{references[name]}"',
            f'manifest = "{url}/{name}.yaml"',
            f'sha256 = "{hashlib.sha256((files / f"{name}.yaml").read_bytes()).hexdigest()}"',
        ]
    lines += ["[registry.mirrors]", f'"{registry}" = "http://{{gateway}}:{nodes_port}"']
    worker = versions.load(settings.model_copy(update={"versions_file": None})).worker
    lines += ["[worker]", *(f'{name} = "{value}"' for name, value in worker.model_dump().items())]
    return "\n".join([*lines, ""])


def by_registry(settings: Settings, folder: Path, name: str, lock: str) -> Settings:
    """Return settings of a cluster of its own, with a cache that holds no manifest and no saved image yet."""
    cache = folder / name / "cache"
    cache.mkdir(parents=True)
    packages = settings.cache_dir.absolute() / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    (cache / "packages").symlink_to(packages)
    file = folder / name / "versions.toml"
    file.write_text(lock)
    changes = {
        "images": "registry",
        "versions_file": file,
        "cache_dir": cache,
        "cluster_name": f"{settings.cluster_name}-{name}",
        "workers": 2,
    }
    return settings.model_copy(update=changes)


@pytest.fixture(scope="module")
def ready(published: Published, folder: Path, harness_settings: Settings) -> Iterator[Ready]:
    """Create a cluster from the published images.

    A cluster that was kept is made anew: its registry is gone.
    """
    settings = by_registry(harness_settings, folder, "registry", published.lock)
    KindCluster(settings).down(progress)
    start = time.monotonic()
    with running.cluster(RunContext(settings=settings, progress=progress)) as up:
        progress(f"up by the registry way in {time.monotonic() - start:.0f} s")
        tracker = up.kube.get("apps/v1", "Deployment", "tracker", "harness-system")
        yield up
    assert tracker is not None
    # Their tags are of this registry's port, so nobody asks for them again.
    images = [up.worker.tag, tracker["spec"]["template"]["spec"]["containers"][0]["image"]]
    processes.run(["docker", "rmi", *images], timeout=60, check=False)


def test_the_main_job_passes(
    ready: Ready,
    job: JobFile,
    harness_settings: Settings,
    record_property: Callable[[str, object], None],
) -> None:
    """A healthy job passes the same checks, and every node runs the published node image."""
    outcome = running.launch(job, RunContext(settings=harness_settings, progress=progress), ready)
    record(outcome, record_property)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    assert all(check.result == "PASS" for check in outcome.verdict.checks)
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    assert manifest.versions["images"] == "registry"


def test_docker_pulled_the_node_and_base_images_by_digest(ready: Ready, published: Published) -> None:
    """Every node is a container of the pulled reference, and the registry served all three images."""
    for name in ready.kind.nodes():
        seen = processes.run(["docker", "inspect", "--format", "{{.Config.Image}}", name], timeout=30)
        assert seen.stdout.strip() == published.references["node"]
    given = {reference for _, reference in published.to_push.pulls()}
    assert {published.path(name) for name in ("node", "torch_base", "python_base")} <= given


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_a_node_pulled_the_controller_by_digest(ready: Ready, published: Published, controller: str) -> None:
    """The kubelet reports that digest, the pod runs it, and the registry served it to the node of the pod."""
    namespace, reference = f"{controller}-system", published.references[controller]
    pulled = f'Successfully pulled image "{reference}"'

    def missing_pull(events: dict[str, dict[str, object]]) -> str | None:
        messages = [str(event.get("message")) for event in events.values() if event.get("reason") == "Pulled"]
        return None if any(pulled in message for message in messages) else f"pulled: {messages}"

    ready.kube.wait(f"an event {pulled!r}", "v1", "Event", missing_pull, seconds=30, namespace=namespace)
    (pod,) = ready.kube.objects("v1", "Pod", namespace)
    assert pod["status"]["containerStatuses"][0]["imageID"] == reference
    assert (pod["status"]["hostIP"], published.path(controller)) in published.to_nodes.pulls()


@pytest.fixture
def theirs(ready: Ready, folder: Path, harness_settings: Settings, tmp_path: Path) -> Settings:
    """Settings of a user who owns that cluster and has pushed the harness's images for it."""
    kubeconfig = Path(shutil.copy(ready.kind.kubeconfig, tmp_path / "kubeconfig"))
    tracker = ready.kube.get("apps/v1", "Deployment", "tracker", "harness-system")
    assert tracker is not None
    changes = {
        "images": "registry",
        "versions_file": folder / "registry/versions.toml",
        "cache_dir": folder / "registry/cache",
        "kubeconfig": kubeconfig,
        "worker_image": ready.worker.tag,
        "tracker_image": tracker["spec"]["template"]["spec"]["containers"][0]["image"],
        "keep_cluster": False,
    }
    return harness_settings.model_copy(update=changes)


def test_preflight_installs_what_a_cluster_lacks_and_that_alone(
    ready: Ready, published: Published, theirs: Settings, job: JobFile
) -> None:
    """Preflight names Kueue, queue and tracker as missing. --install adds them and keeps JobSet.

    Then a job passes.
    """

    def lacking() -> set[str]:
        return {
            need.what for need in ExistingCluster(theirs).inspect(KonduktorWorkload(job))[1] if need.problem
        }

    def jobset() -> object:
        found = ready.kube.get("apps/v1", "Deployment", "jobset-controller-manager", "jobset-system")
        return found and (found["metadata"]["uid"], found["metadata"]["generation"])

    assert theirs.kubeconfig is not None
    kubectl = [theirs.kubectl_bin, "--kubeconfig", str(theirs.kubeconfig), "delete", "--wait"]
    processes.run([*kubectl, "clusterqueues,resourceflavors", "--all"], timeout=60)
    processes.run([*kubectl, "-f", str(published.files / "kueue.yaml")], timeout=180)
    processes.run([*kubectl, "namespace", "harness-system"], timeout=90)
    assert lacking() == {"kueue", "queue", "tracker"}
    before = jobset()
    context = RunContext(settings=theirs, progress=progress)
    ExistingCluster(theirs).install(context)
    assert lacking() == set()
    assert jobset() == before
    outcome = running.run(job, context)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation


@pytest.fixture
def private(
    ready: Ready, published: Published, folder: Path, harness_settings: Settings
) -> Iterator[tuple[str, str]]:
    """Push a worker image to a registry with a password, and create a Secret for it in the cluster."""
    public = push("worker", ready.worker.tag, published.to_push.port)
    users = folder / "users"
    users.write_text(f"{USER}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(5)).decode()}\n")
    program = registry_program(harness_settings.cache_dir)
    login = {"username": USER, "password": PASSWORD}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "private", "namespace": "default"},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": json.dumps({"auths": {PRIVATE: login}})},
    }
    ready.kube.apply(secret)
    with serving(program, folder / "data", "0.0.0.0", readonly=True, users=users) as registry:
        teach(ready.kind.nodes(), {PRIVATE: f"http://{{gateway}}:{registry.port}"}, progress)
        yield f"{PRIVATE}/{public.partition('/')[2]}", "default/private"


def test_a_private_image_needs_its_secret(theirs: Settings, private: tuple[str, str], job: JobFile) -> None:
    """Without the Secret the pull is refused, and that is the cause.

    With it the job passes. No file has the key.
    """
    reference, secret = private
    image = theirs.model_copy(update={"worker_image": reference})
    refused = running.run(job, RunContext(settings=image, progress=progress))
    assert (refused.verdict.verdict, refused.verdict.cause) == ("FAIL", "image.pull_denied")
    assert PRIVATE in refused.verdict.explanation
    allowed = image.model_copy(update={"image_pull_secret": secret})
    outcome = running.run(job, RunContext(settings=allowed, progress=progress))
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    pods = Bundle.open(outcome.bundle).pods().values()
    ran = {
        status["imageID"] for pod in pods for status in items(pod.last.object, "status", "containerStatuses")
    }
    assert ran == {reference}
    leaks = [path for path in outcome.bundle.rglob("*") if path.is_file() and PASSWORD in path.read_text()]
    assert leaks == []


def test_acceptance_with_a_private_image_needs_its_secret(theirs: Settings, private: tuple[str, str]) -> None:
    """Contract: the pods of `harness accept` pull by the same Secret; without it the pull is refused."""
    reference, secret = private
    workload = acceptance.nodes(acceptance.AcceptanceSpec(device="cpu", image=reference))
    refused = running.run(workload, RunContext(settings=theirs, progress=progress))
    assert (refused.verdict.verdict, refused.verdict.cause) == ("FAIL", "image.pull_denied")
    allowed = theirs.model_copy(update={"image_pull_secret": secret})
    outcome = running.run(workload, RunContext(settings=allowed, progress=progress))
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation


def test_an_unpinned_manifest_ends_the_run_before_a_cluster(
    published: Published, folder: Path, job: JobFile, harness_settings: Settings
) -> None:
    """A manifest with one byte more is refused. The error says what was expected and what was seen."""
    other = (published.files / "kueue.yaml").read_bytes() + b"\n"
    (published.files / "other.yaml").write_bytes(other)
    lock = published.lock.replace("/kueue.yaml", "/other.yaml")
    settings = by_registry(harness_settings, folder, "mismatch", lock)
    outcome: Outcome = running.run(job, RunContext(settings=settings, progress=progress))
    assert outcome.verdict.cause == "controllers.manifest", outcome.verdict.explanation
    assert hashlib.sha256(other).hexdigest() in outcome.verdict.explanation
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    assert manifest.stages[-1].name == "images"
    cluster = KindCluster(settings)
    assert (cluster.state(), cluster.exists()) == (None, False)
