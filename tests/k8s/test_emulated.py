"""The tracker and worker images for arm64, built and run in QEMU's user emulation on another processor.

It needs Debian's arch-test, and the emulator that Debian's qemu-user-binfmt registers for aarch64. Node
images are not run here: systemd and the kubelet need a kernel of their platform.
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
from harness.provision.images.build import ImageRef, build_tracker, build_worker
from harness.provision.images.debian import Bases, bases
from harness.settings import Settings
from harness.tracker.client.audit import EmbeddedAudit

EMULATOR = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
CLIENT = Path(__file__).parents[1] / "integration" / "tracker_client.py"
KEY = "key-of-this-test"
PORT = 18471
SECONDS = 600
STEPS = 20
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not EMULATOR.exists(), reason="no emulator of aarch64 is registered with binfmt_misc"),
]


@pytest.fixture(scope="module")
def context(harness_settings: Settings) -> RunContext:
    return RunContext(settings=harness_settings, progress=print)


@pytest.fixture(scope="module", autouse=True)
def arm64() -> Iterator[None]:
    """Have Docker and the harness use arm64, as DOCKER_DEFAULT_PLATFORM does for a user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(platforms.DEFAULT, "linux/arm64")
        yield


@pytest.fixture(scope="module")
def debian(context: RunContext) -> Bases:
    return bases(versions.load(context.settings).worker.debian, context)


@pytest.fixture(scope="module")
def tracker(debian: Bases, context: RunContext) -> Iterator[str]:
    """The URL of a tracker that runs in the emulator."""
    image = build_tracker(debian, context)
    options = ["--network", "host", "--env", f"TRACKER_API_KEY={KEY}", image.tag, "--port", str(PORT)]
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
        assert architecture(image) == "arm64"
        yield url
    finally:
        output("docker", "rm", "--force", container)


@pytest.fixture(scope="module")
def worker(debian: Bases, context: RunContext) -> ImageRef:
    return build_worker(debian, context, exact=True)


def output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def architecture(image: ImageRef) -> str:
    return output("docker", "image", "inspect", "--format", "{{.Architecture}}", image.tag)


def test_the_client_logs_to_the_tracker(tracker: str, worker: ImageRef) -> None:
    """Contract: Pluto's client of the worker image reaches the tracker, which stores every point."""
    assert architecture(worker) == "arm64"
    variables = {"PLUTO_API_KEY": KEY, "PLUTO_API_TOKEN": KEY, "PLUTO_DISABLE_TELEMETRY": "1"}
    variables |= {"PLUTO_PROJECT": "e2e", "PLUTO_RUN_ID": "emulated"}
    variables |= {f"PLUTO_URL_{name}": tracker for name in ("APP", "API", "INGEST", "PY")}
    options = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    options += ["--volume", f"{CLIENT}:/client.py:ro", "--network", "host", worker.tag]
    output("docker", "run", "--rm", *options, "python3", "/client.py", "log", "1", str(STEPS))
    with httpx.Client(base_url=tracker, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        audit = EmbeddedAudit(client)
        (run,) = audit.runs(external_id="emulated", project="e2e", job_name=None)
        found = {(point.metric, point.step) for point in audit.points([run.run_id])}
    assert found >= {("loss/node1", step) for step in range(STEPS)}


def test_the_ranks_python_has_torch(worker: ImageRef) -> None:
    """Contract: PyTorch is the one of the platform, and so are the packages of the lock."""
    code = "import platform, torch, numpy, safetensors; print(platform.machine(), float(torch.ones(4).sum()))"
    assert output("docker", "run", "--rm", worker.tag, "python3", "-c", code).split() == ["aarch64", "4.0"]
