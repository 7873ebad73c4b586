"""The tracker's pages on a kept cluster: `harness tracker open` and a real browser, `harness tracker key`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from harness.evidence.io.reader import Bundle
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.provision.controllers import tracker as embedded
from harness.report.finalize import Outcome
from harness.settings import Settings
from tests.browser import Page

HARNESS = Path(sys.executable).with_name("harness")


@pytest.fixture(scope="module")
def named(cluster: Ready, harness_settings: Settings) -> list[str]:
    return ["--cluster-name", harness_settings.cluster_name]


@pytest.fixture
def opened(
    launch: Callable[..., Outcome], job: JobFile, named: list[str], cluster: Ready
) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The command that forwards the port, the link that it printed, and the project of the run."""
    bundle = Bundle.open(launch(job).bundle)
    assert bundle.manifest is not None
    expected = bundle.manifest.expected
    assert expected is not None
    with embedded.find(cluster.kind.kube()).client(cluster.kind.kube()) as client:
        query = {"projectName": expected.project, "externalId": expected.run_id}
        (run,) = client.get("api/audit/runs", params=query).json()["runs"]
    printed = f"{embedded.URL}/o/harness/projects/{expected.project}/r{run['runId']}"
    command = [str(HARNESS), "tracker", "open", printed, *named]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        link = process.stdout.readline().strip()
        try:
            yield process, link, expected.project
        finally:
            process.kill()


def test_the_link_of_a_kept_cluster_opens_the_run(
    opened: tuple[subprocess.Popen[str], str, str], named: list[str], cluster: Ready
) -> None:
    """Contract: the run's page with its ranks, once by the link; a key of a project for that project alone;
    Ctrl-C ends the forwarding.
    """
    process, link, project = opened
    address = "http://" + urlsplit(link).netloc
    key = embedded.find(cluster.kind.kube()).key
    assert key not in link
    with Page() as page:
        page.go(link)
        assert "once" not in page.ask("location.href")
        assert page.ask("document.querySelector('#status').innerText") == "completed"
        page.until("document.querySelectorAll('.chart svg .curve').length >= 2")
        page.go(page.ask("location.href") + "/ranks")
        text = page.ask("document.querySelector('#unified').innerText")
        assert "2 processes attached to this run; 1 of them created it" in text
        assert "Ranks 0, 1: no rank between them is missing" in text
        assert page.errors == []
    assert httpx.get(link, trust_env=False).status_code == 403
    command = [str(HARNESS), "tracker", "key", project, *named]
    mine = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    assert key not in mine
    with httpx.Client(
        base_url=address, headers={"Authorization": f"Bearer {mine}"}, trust_env=False
    ) as client:
        assert client.get("/api/runs/list", params={"projectName": project}).json()["runs"]
        assert client.get("/api/runs/list", params={"projectName": "another"}).status_code == 403
        assert client.get("/api/audit/runs").status_code == 403
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, "")
    with pytest.raises(httpx.ConnectError):
        httpx.get(address, trust_env=False)
