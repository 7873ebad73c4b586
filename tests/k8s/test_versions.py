"""`--replace` on a real cluster: jobs run with another client or konduktor, which the verdict names."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from importlib.metadata import distribution
from pathlib import Path

import pytest
from client_checkout import DROPPING, checkout
from harness_command import Harness, environment

from harness.context import RunContext
from harness.core.replacements import parse
from harness.evidence.io.reader import Bundle
from harness.fixtures.plugin import Launch
from harness.launch.konduktor.job_file import JobFile
from harness.provision.images import layered, replaced_image
from harness.provision.images.build import build_worker
from harness.provision.images.stack import resolve
from harness.settings import Settings

pytestmark = pytest.mark.versions
JOBSET = "v0.11.1"
"""A version other than the one in harness/versions.toml."""
LISTING = """
cd / && find etc usr workspace ! -path etc/hostname ! -name '*.pyc' -printf '%p %m %U:%G %l\n' | sort
find etc usr workspace -name '*.pyc' | sort
find usr/local/lib/python3* etc/pluto* -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum
"""


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """A checkout of the client that this environment has."""
    return checkout(tmp_path / "client")


def test_a_client_that_drops_a_point_is_named(launch: Launch, job: JobFile, client: Path) -> None:
    """Contract: the verdict names the point and the replaced client."""
    manager = client / "content" / "pluto" / "sync" / "process.py"
    manager.write_text(manager.read_text() + DROPPING)
    outcome = launch(job, replace={"pluto-ml": str(client)})
    verdict = outcome.verdict
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.client_rewrote", [1])
    assert "'loss/node1' (float) at step 7 of rank 1" in verdict.explanation
    assert f"package pluto-ml was replaced: {distribution('pluto-ml').version}" in verdict.explanation
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    (one,) = manifest.replaced
    assert (one.name, one.origin) == ("pluto-ml", str(client))


@pytest.mark.nightly
def test_another_version_of_each_package_passes(launch: Launch, job: JobFile) -> None:
    """Contract: the newest konduktor, and an older client, are what the evidence says."""
    outcome = launch(job, replace={"konduktor": "latest", "pluto-ml": "<0.0.29"})
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    replaced = {one.name: one.version for one in manifest.replaced}
    assert manifest.versions["konduktor"] == replaced["konduktor-nightly"]
    assert manifest.versions["pluto"] == replaced["pluto-ml"] < "0.0.29"


@pytest.mark.nightly
def test_another_version_of_jobset_has_cluster_of_its_own(tmp_path: Path) -> None:
    """Contract: the kept cluster is used again with the same version, and refused with another one."""
    env = environment(tmp_path, HARNESS_CLUSTER_NAME="versions-jobset", KEEP_CLUSTER="true")
    words = ["run", "jobs/multinode.yaml"]
    try:
        for line in ("cluster versions-jobset: ", "cluster versions-jobset: reused"):
            with Harness(*words, "--replace", f"jobset={JOBSET}", env=env) as harness:
                assert harness.end(2400) == 0, harness.stderr
            assert line in harness.stderr
            manifest = harness.bundle.manifest
            assert manifest is not None
            assert manifest.versions["jobset"].startswith(JOBSET)
            assert [one.name for one in manifest.replaced] == ["jobset"]
        with Harness(*words, env=env) as harness:
            assert harness.end(120) == 64
        assert f"has jobset {JOBSET}" in harness.stderr
    finally:
        with Harness("down", env=env) as down:
            assert down.end(120) == 0


@pytest.mark.nightly
def test_a_matrix_of_two_jobsets_has_two_clusters(tmp_path: Path) -> None:
    """Contract: each version has its own cluster, a version that does not exist affects only its own cell."""
    env = environment(tmp_path, HARNESS_CLUSTER_NAME="versions-two")
    vary = f"jobset={JOBSET},locked,v0.0.999"
    with Harness("matrix", "--vary", vary, "--job", "jobs/multinode.yaml", "--json", env=env) as harness:
        assert harness.end(2400) == 64, harness.stderr
    document = json.loads(harness.stdout)
    results = {cell["versions"]["jobset"]: cell["outcomes"][-1] for cell in document["cells"]}
    assert [each["result"] for each in results.values()] == ["PASS", "PASS", "not installable"]
    assert results[JOBSET]["versions"]["jobset"].startswith(JOBSET)
    assert f"cluster versions-two-jobset-{JOBSET}: " in harness.stderr
    clusters = subprocess.run(["kind", "get", "clusters"], capture_output=True, text=True, check=True)
    assert "versions-two" not in clusters.stdout


@pytest.mark.nightly
def test_added_layer_has_files_that_build_has(
    harness_settings: Settings, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: also where files and folders of the replaced package are removed."""
    shutil.rmtree(client / "content" / "pluto" / "compat")
    (client / "content" / "pluto" / "new.py").write_text(f"AT = {time.time_ns()}\n")  # no image has this yet
    context = RunContext(settings=harness_settings, progress=print)
    worker = build_worker(resolve(context), context)
    change = replaced_image.change_of([parse("pluto-ml", str(client))], context)
    added = replaced_image.with_change(worker, change, context)
    assert layered.archive(added.local, context).is_file()
    listed = files(added.tag)
    subprocess.run(["docker", "image", "rm", "--force", added.tag], check=True)
    monkeypatch.setattr(layered, "add", lambda *_: False)
    built = replaced_image.with_change(worker, change, context)
    assert built.image_id != added.image_id
    assert files(built.tag) == listed
    assert "/pluto/compat" not in listed
    assert "/pluto/compat" in files(worker.tag)


def files(tag: str) -> str:
    """Return the paths, modes, owners and digests of an image's files."""
    command = ["docker", "run", "--rm", "--network", "none", "--user", "0", "--entrypoint", "sh", tag, "-c"]
    return subprocess.run([*command, LISTING], check=True, capture_output=True, text=True).stdout
