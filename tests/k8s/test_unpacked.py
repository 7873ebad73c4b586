"""Images that nodes link: no layer is copied, pods see what they should, and all else is imported."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.context import RunContext
from harness.provision.cluster import Ready
from harness.provision.images import unpacked
from harness.provision.images.containerd_import import LocalImage, node_name
from harness.provision.images.load import load_images
from harness.provision.images.stack import resolve
from harness.settings import Settings

FOLDERS = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs"


def run(*command: str, given: str | None = None) -> str:
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def tag() -> Iterator[str]:
    """A name for images of the test. Docker's own are removed; a node keeps what it has."""
    name = f"harness-linked:{secrets.token_hex(4)}"
    yield name
    run("docker", "rmi", "--force", name)


def build(tag: str, base: str, text: str) -> LocalImage:
    """Build an image that has a file of its own, and lacks one of its base."""
    dockerfile = f"FROM {base}\nRUN echo {text} >/linked && rm /etc/debian_version\n"
    run("docker", "build", "--network", "host", "--provenance=false", "-q", "-t", tag, "-", given=dockerfile)
    return LocalImage.of(tag)


def seen(node: str, tag: str) -> str:
    """Return what a container of the image sees, by a file: `ctr run` may lose the end of an output."""
    folder = run("docker", "exec", node, "mktemp", "-d").strip()
    look = "cat /linked; test -e /etc/debian_version || echo removed; test -e /etc/os-release && echo base"
    container = ["ctr", "-n", "k8s.io", "run", "--rm", "--snapshotter", "overlayfs"]
    container += ["--mount", f"type=bind,src={folder},dst=/seen,options=rbind:rw", node_name(tag)]
    run("docker", "exec", node, *container, secrets.token_hex(4), "sh", "-c", f"{{ {look}; }} >/seen/text")
    return run("docker", "exec", node, "cat", f"{folder}/text")


def links(node: str) -> set[str]:
    """Return where the snapshots of a node lead that are links."""
    return set(
        run("docker", "exec", node, "sh", "-c", f"find {FOLDERS} -maxdepth 0 -type l -printf '%l\\n'").split()
    )


def test_nodes_share_what_was_unpacked_once(
    cluster: Ready, harness_settings: Settings, tag: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also when another image takes the name: pods of the first still have their files."""
    context = RunContext(settings=harness_settings, progress=print)
    nodes, base = cluster.kind.nodes(), resolve(context).python_base
    before = {node: links(node) for node in nodes}
    first, second = (f"{text} of {tag}" for text in ("first", "second"))  # Docker keeps what it built before
    build(tag, base, first)
    load_images([tag], nodes, context)
    assert {seen(node, tag) for node in nodes} == {f"{first}\nremoved\nbase\n"}
    assert all(links(node) - before[node] for node in nodes), (
        "a snapshot that was collected meanwhile is none"
    )
    holder = f"holder-{secrets.token_hex(4)}"
    kept = ["ctr", "-n", "k8s.io", "run", "--detach", "--snapshotter", "overlayfs", node_name(tag), holder]
    run("docker", "exec", nodes[0], *kept, "sleep", "600")
    try:
        build(tag, base, second)
        load_images([tag], nodes, context)
        assert {seen(node, tag) for node in nodes} == {f"{second}\nremoved\nbase\n"}
        inside = ["ctr", "-n", "k8s.io", "tasks", "exec", "--exec-id", "look", holder, "cat", "/linked"]
        assert run("docker", "exec", nodes[0], *inside) == f"{first}\n"
    finally:
        run("docker", "exec", nodes[0], "ctr", "-n", "k8s.io", "tasks", "rm", "--force", holder)
        run("docker", "exec", nodes[0], "ctr", "-n", "k8s.io", "containers", "rm", holder)
    assert "is imported" not in capfd.readouterr().out


def test_containerd_ends_by_itself(cluster: Ready, harness_settings: Settings, tag: str) -> None:
    """Docker kills what does not end when asked: ten seconds later, and what was not written is lost."""
    context = RunContext(settings=harness_settings, progress=print)
    ends = ["--filter", f"container={unpacked.volume(context)}", "--filter", "event=die"]
    shown = ["docker", "events", *ends, "--format", '{{index .Actor.Attributes "exitCode"}}']
    with subprocess.Popen(shown, stdout=subprocess.PIPE, text=True) as events:
        build(tag, resolve(context).python_base, "ended")
        load_images([tag], cluster.kind.pools()[:1], context)
        events.terminate()
        stream = events.stdout
        assert stream is not None
        codes = stream.read().split()
    assert codes
    assert set(codes) == {"0"}


def test_what_cannot_be_linked_is_imported(
    cluster: Ready,
    harness_settings: Settings,
    tag: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A node that does not find the unpacked image gets all of it."""
    context = RunContext(settings=harness_settings, progress=print)
    (node,) = cluster.kind.pools()[:1]
    build(tag, resolve(context).python_base, "imported")
    before = links(node)
    monkeypatch.setattr(unpacked, "script", lambda _image: f"{unpacked.MOUNT}/images/not-there.sh")
    load_images([tag], [node], context)
    assert "because its unpacked layers could not be linked" in capfd.readouterr().out
    assert links(node) <= before
    assert seen(node, tag) == "imported\nremoved\nbase\n"


def test_a_volume_that_was_made_anew_is_another_one(harness_settings: Settings, tmp_path: Path) -> None:
    """A template leads to layers by their folders, and another volume has the same layer in another one."""
    settings = harness_settings.model_copy(update={"cache_dir": tmp_path})
    context = RunContext(settings=settings, progress=print)
    first = unpacked.created_at(context)
    assert unpacked.created_at(context) == first
    run("docker", "volume", "rm", unpacked.volume(context))
    time.sleep(1.1)  # Docker tells whole seconds
    assert unpacked.created_at(context) != first
    run("docker", "volume", "rm", unpacked.volume(context))
