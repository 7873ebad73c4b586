"""konduktor's own environment, created from its lock file (or reused), and its program in this
environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from harness.context import RunContext
from harness.core.errors import ToolError
from harness.launch.konduktor.config import Submission, konduktor_config
from harness.launch.konduktor.launch_process import Konduktor
from harness.launch.konduktor.submit import reason
from harness.provision import konduktor as environment
from harness.provision.images import scripts
from harness.settings import load


@pytest.fixture(scope="module")
def konduktor() -> Path:
    return environment.konduktor_bin(RunContext(settings=load(), progress=print))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a separate home folder, because konduktor writes logs and a user hash to its
    home folder."""
    return {**os.environ, "HOME": str(tmp_path), "KONDUKTOR_DISABLE_USAGE_COLLECTION": "1"}


def test_it_is_the_nightly_that_the_lock_pins(
    konduktor: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    result = subprocess.run(
        [konduktor, "--version"],
        env=environ,
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=True,
        timeout=120,
    )
    pinned = re.search(r"^konduktor-nightly==(\S+)", environment.LOCK.read_text(), re.M)
    assert pinned is not None
    assert pinned[1] in result.stdout


def test_it_has_the_options_that_a_launch_uses(
    konduktor: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    """If a nightly version renames one of these options, this test fails before a launch does."""
    result = subprocess.run(
        [konduktor, "launch", "--help"],
        env=environ,
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=True,
        timeout=120,
    )
    for option in ("--detach-run", "--skip-image-check", "--yes", "--name", "--env"):
        assert option in result.stdout


def test_its_libraries_are_its_own(konduktor: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [
            konduktor.with_name("python"),
            "-c",
            "import kubernetes; print(kubernetes.__version__, kubernetes.__file__)",
        ],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=True,
        timeout=120,
    )
    version, path = result.stdout.split()
    assert int(version.split(".")[0]) < 31
    assert Path(path).is_relative_to(konduktor.parent.parent)


def test_a_second_call_runs_nothing_and_is_silent(konduktor: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(environment, "run", lambda *command, **_: pytest.fail(f"it ran {command}"))
    context = RunContext(settings=load(), progress=messages.append)
    assert environment.konduktor_bin(context) == konduktor
    assert messages == []


MERGE = """
import json, sys
from konduktor import config
pod, ours = json.load(sys.stdin)
config.merge_k8s_configs(pod, ours)
print(json.dumps(pod))
"""


def test_it_mounts_every_script_that_is_sent(konduktor: Path, environ: dict[str, str]) -> None:
    """Contract: konduktor's merge of pod configurations keeps the mount and the volume of each file, even in
    subfolders.

    konduktor merges mounts that have the same name.
    """
    mounts = scripts.mounts({"a.py": b"", "parts/b.py": b"", "parts/deep/c.txt": b""})
    ours = konduktor_config(Submission("e2e-1", "1", "", {}, files=mounts))["kubernetes"]["pod_config"]
    own = {"name": "dshm", "mountPath": "/dev/shm"}
    pod = {"spec": {"containers": [{"volumeMounts": [own]}], "volumes": [{"name": "dshm", "emptyDir": {}}]}}
    done = subprocess.run(
        [konduktor.with_name("python"), "-c", MERGE],
        input=json.dumps([pod, ours]),
        env=environ,
        text=True,
        capture_output=True,
        check=True,
        timeout=120,
    )
    merged = json.loads(done.stdout.splitlines()[-1])["spec"]
    assert merged["containers"][0]["volumeMounts"] == [own, *mounts]
    assert [volume["name"] for volume in merged["volumes"]] == ["dshm", *(m["name"] for m in mounts)]


def test_process_that_waited_fails_as_one_that_did_not(konduktor: Path, tmp_path: Path) -> None:
    """Contract: a konduktor process that was started before its files existed reads them like any other
    one."""
    failures = []
    for begun in (konduktor, None):
        with Konduktor(tmp_path, begun) as launching:
            launching.config.write_text(
                yaml.safe_dump(konduktor_config(Submission("ns", "0badcafe", "", {})))
            )
            launching.kubeconfig.write_text("{}")
            launching.job.write_text("name: x\nnum_nodes: not a number\n")
            with pytest.raises(ToolError) as failed:
                launching.launch(konduktor)
            failures.append(reason(failed.value.returncode, failed.value.output))
    assert failures[0] == failures[1]
    assert failures[0][0] == "launch.konduktor_failed"
    assert "not a number" in failures[0][1]
