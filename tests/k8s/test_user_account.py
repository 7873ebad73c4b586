"""A launch of the installed wheel by a user without root privileges, behind a proxy, with an ASCII locale."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from built_wheel import build
from proxy_server import proxy_server
from user_account import ASCII, account, obstacle

from harness.provision.cluster import Ready
from harness.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
def test_a_launch_of_a_user_without_root_privileges_passes(
    cluster: Ready, theirs: Settings, tmp_path: Path
) -> None:
    """Contract: the proxy gets no request. The bundle belongs to the user and has no password."""
    assert theirs.kubeconfig is not None
    with account() as user, proxy_server("me:secret-word") as proxy:
        harness = user.install(build(tmp_path)) / "harness"
        config = user.own(Path(shutil.copy(theirs.kubeconfig, user.home / "kube config")))
        job = user.own(Path(shutil.copy(ROOT / "manifests/indexed-job.yaml", user.home)))
        words = ["--kubeconfig", config, "--context", cluster.cluster.context, "--json"]
        done = user.run(
            [harness, "run", job, *words],
            timeout=420,
            HARNESS_WORKER_IMAGE=cluster.worker.tag,
            **ASCII,
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "https_proxy"), proxy.url),
        )
        output = done.stdout.decode() + done.stderr.decode()
        verdict = json.loads(done.stdout)
        assert (done.returncode, verdict["verdict"]) == (0, "PASS"), output
        assert proxy.asked + proxy.refused == []
        bundle = (user.home / "runs/latest").resolve()
        files = [path for path in bundle.rglob("*") if path.is_file()]
        assert (bundle / "verdict.json") in files
        assert {path.stat().st_uid for path in files} == {user.home.stat().st_uid}
        assert [str(path) for path in files if b"secret-word" in path.read_bytes()] == []
