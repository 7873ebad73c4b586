"""The main job against a server outside the cluster that has hosted Pluto's public API alone.

The server is made of this project's own routes (hosted_server.py), on the host. Hosted Pluto itself cannot be
reached from here.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from tenacity import retry, stop_after_delay, wait_fixed

from harness.core import processes
from harness.evidence.io.reader import Bundle
from harness.fixtures.plugin import Launch
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.settings import Settings

KEY = f"mlpi_{secrets.token_hex(12)}"


@pytest.fixture
def hosted_url(cluster: Ready, tmp_path: Path, unused_tcp_port: int) -> Iterator[str]:
    """Start the server at the address where pods reach this machine: the gateway of the kind network."""
    inspected = subprocess.run(
        ["docker", "network", "inspect", "kind"], check=True, capture_output=True, text=True
    )
    configs = json.loads(inspected.stdout)[0]["IPAM"]["Config"]
    gateway = next(c["Gateway"] for c in configs if ":" not in c["Subnet"])
    program = str(Path(__file__).with_name("hosted_server.py"))
    server = subprocess.Popen(
        [sys.executable, program, gateway, str(unused_tcp_port), str(tmp_path / "tracker.db")],
        env={**os.environ, "TRACKER_API_KEY": KEY},
    )
    url = f"http://{gateway}:{unused_tcp_port}"
    try:
        _wait_until_it_answers(url)
        yield url
    finally:
        server.terminate()
        server.wait(20)


@retry(stop=stop_after_delay(20), wait=wait_fixed(0.1), reraise=True)
def _wait_until_it_answers(url: str) -> None:
    httpx.get(f"{url}/healthz", trust_env=False).raise_for_status()


def test_a_healthy_job_passes_by_the_public_read_api(launch: Launch, job: JobFile, hosted_url: str) -> None:
    """Without attachments, the points show who logged. The key is in no file of the bundle."""
    outcome = launch(job, tracker="hosted", tracker_url=hosted_url, pluto_api_key=SecretStr(KEY))
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    summary = Bundle.open(outcome.bundle).summary
    assert summary is not None
    assert (summary.source, summary.attachments) == ("hosted", None)
    _without_the_key(outcome.bundle)


def _without_the_key(bundle: Path) -> None:
    files = [path for path in bundle.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


@pytest.mark.nightly
@pytest.mark.parametrize("variable", ["PLUTO_API_TOKEN", "PLUTO_API_KEY"])
def test_the_known_command_passes_with_a_token_alone(
    harness_settings: Settings, hosted_url: str, tmp_path: Path, variable: str
) -> None:
    """run_multinode_test.sh with a token logs to the hosted server and reads it by its public API."""
    own = {variable: KEY, "HARNESS_TRACKER_URL": hosted_url, "HARNESS_RUNS_DIR": str(tmp_path / "runs")}
    own |= {"HARNESS_CLUSTER_NAME": harness_settings.cluster_name}
    own |= {"HARNESS_WORKERS": str(harness_settings.workers)}
    own |= {"KEEP_CLUSTER": "true"} if harness_settings.keep_cluster else {}
    done = subprocess.run(
        [str(Path(__file__).with_name("run_multinode_test.sh")), "--json"],
        env=processes.environment(own, without=("PLUTO_", "KEEP_CLUSTER", "HARNESS_TRACKER")),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "PASS"
    bundle = Bundle.open(Path(verdict["bundle"]))
    assert bundle.summary is not None
    assert (bundle.summary.source, bundle.summary.attachments) == ("hosted", None)
    _without_the_key(bundle.path)


def test_the_server_has_no_audit(hosted_url: str) -> None:
    """What only the harness's own tracker keeps cannot have been read."""
    headers = {"Authorization": f"Bearer {KEY}"}
    for path in ("api/audit/runs", "api/audit/attachments", "api/audit/writers", "openapi.json"):
        assert httpx.get(f"{hosted_url}/{path}", headers=headers, trust_env=False).status_code == 404
