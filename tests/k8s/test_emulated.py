"""The tracker's image and the packages of the ranks for arm64, in QEMU's user emulation on another processor.

It needs Debian's arch-test, and the emulator that Debian's qemu-user-binfmt registers for aarch64. Not run
here: PyTorch, whose installation takes very long in the emulator, and nodes, whose systemd needs a kernel of
its platform.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from harness.context import RunContext
from harness.provision import platforms
from harness.provision.images import versions
from harness.provision.images.build import WORKER, build_tracker
from harness.provision.images.debian import Bases, base
from harness.provision.images.packages import packages
from harness.settings import Settings
from harness.tracker.client.audit import EmbeddedAudit

EMULATOR = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
KEY = "key-of-this-test"
PORT = 18471
SECONDS = 900
STEPS = 20
CLIENT = f"""
import psutil, pluto
psutil.cpu_freq = lambda percpu: None
run = pluto.init(name="node1", settings={{"sync_process_shutdown_timeout": {SECONDS / 3}}})
for step in range({STEPS}):
    run.log({{"loss/node1": 1 / (step + 1)}}, step=step)
run.finish()
"""
"""Pluto's client 0.0.29 fails in init() on a machine whose kernel reports no CPU frequency, as on many arm64
machines and in this emulator: psutil returns [], and the client takes the minimum of it. finish() gives up on
points that are not sent within 30 s, which is too short for the emulator.
"""
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not EMULATOR.exists(), reason="no emulator of aarch64 is registered with binfmt_misc"),
]


@pytest.fixture(scope="module")
def context(harness_settings: Settings) -> Iterator[RunContext]:
    """Settings for arm64, which DOCKER_DEFAULT_PLATFORM selects for Docker and for the harness."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(platforms.DEFAULT, "linux/arm64")
        yield RunContext(settings=harness_settings, progress=print)


@pytest.fixture(scope="module")
def python_base(context: RunContext) -> str:
    return base("python", versions.load(context.settings).worker.debian, context)


@pytest.fixture(scope="module")
def tracker(python_base: str, context: RunContext) -> Iterator[str]:
    """The URL of a tracker that runs in the emulator."""
    image = build_tracker(Bases("", python_base), context).tag
    assert output("docker", "image", "inspect", "--format", "{{.Architecture}}", image) == "arm64"
    options = ["--network", "host", "--env", f"TRACKER_API_KEY={KEY}", image, "--port", str(PORT)]
    container = output("docker", "run", "--detach", *options, "--db", "/tmp/tracker.db")
    url = f"http://127.0.0.1:{PORT}"
    deadline = time.monotonic() + SECONDS
    try:
        while True:
            try:
                httpx.get(url, timeout=30)
                break
            except httpx.HTTPError:
                assert time.monotonic() < deadline, output("docker", "logs", container)
                time.sleep(0.5)
        yield url
    finally:
        output("docker", "rm", "--force", container)


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_the_client_logs_to_the_tracker(tracker: str, python_base: str, context: RunContext) -> None:
    """Contract: Pluto's client, from the worker's lock, reaches the tracker, which stores every point."""
    assert output("docker", "run", "--rm", python_base, "uname", "-m") == "aarch64"
    python = versions.load(context.settings).worker.python
    installed = packages(WORKER.lock, python, platforms.ARM64, context)
    variables = {"PLUTO_API_KEY": KEY, "PLUTO_API_TOKEN": KEY, "PLUTO_DISABLE_TELEMETRY": "1", "HOME": "/tmp"}
    variables |= {"PLUTO_PROJECT": "e2e", "PLUTO_RUN_ID": "emulated", "PYTHONPATH": "/packages"}
    variables |= {f"PLUTO_URL_{name}": tracker for name in ("APP", "API", "INGEST", "PY")}
    options = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    options += ["--volume", f"{installed}:/packages:ro"]
    options += ["--network", "host", "--workdir", "/tmp", python_base]
    output("docker", "run", "--rm", *options, "python3", "-c", CLIENT)
    with httpx.Client(base_url=tracker, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        audit = EmbeddedAudit(client)
        (run,) = audit.runs(external_id="emulated", project="e2e", job_name=None)
        found = {(point.metric, point.step) for point in audit.points([run.run_id])}
    assert found >= {("loss/node1", step) for step in range(STEPS)}
