"""The main job against a tracker outside the cluster, read through hosted Pluto's public API alone.

The server is this project's own, on the host: that hosted Pluto answers the same was not seen here.
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

from harness.evidence.reader import Bundle
from harness.fixtures.plugin import Launch
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready

pytestmark = pytest.mark.e2e
KEY = f"mlpi_{secrets.token_hex(12)}"


@pytest.fixture
def hosted_url(cluster: Ready, tmp_path: Path, unused_tcp_port: int) -> Iterator[str]:
    """Start a tracker at the address where pods reach this machine: the gateway of the kind network."""
    inspected = subprocess.run(
        ["docker", "network", "inspect", "kind"], check=True, capture_output=True, text=True
    )
    configs = json.loads(inspected.stdout)[0]["IPAM"]["Config"]
    gateway = next(c["Gateway"] for c in configs if ":" not in c["Subnet"])
    command = [sys.executable, "-m", "harness.tracker", "--host", gateway, "--port", str(unused_tcp_port)]
    server = subprocess.Popen(
        [*command, "--db", str(tmp_path / "tracker.db")], env={**os.environ, "TRACKER_API_KEY": KEY}
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
    files = [path for path in outcome.bundle.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
