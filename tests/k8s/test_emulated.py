"""The tracker's image and the worker image for arm64, in QEMU's user emulation on another processor.

It needs arch-test, and the emulator for aarch64 that Debian's qemu-user-static or qemu-user-binfmt registers.
Both images are built from source. The base with PyTorch takes half an hour to build in the emulator, and then
remains in Docker. Nodes are not run here, because their systemd needs a kernel of its platform.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from mounting import lay_out

from harness.context import RunContext
from harness.evidence.io.ground_truth import TruthCollector
from harness.evidence.schema.ground_truth import TruthEnd
from harness.launch.mounts import recorder
from harness.provision import platforms
from harness.provision.images import versions
from harness.provision.images.build import build_tracker, build_worker
from harness.provision.images.debian import Bases, bases
from harness.settings import Settings
from harness.tracker.client.audit import EmbeddedAudit

EMULATOR = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
KEY = "key-of-this-test"
NONCE = "0123abcd"
PORT = 18471
SECONDS = 1500
RANKS = 2
STEPS = 5
PROGRAM = f"""
import os
import sys
import time

os.environ["PLUTO_DIR"] = "/tmp/pluto" + os.environ["RANK"]
sys.path.insert(0, "/workspace")

import pluto
import torch
import torch.distributed as dist
from ground_truth import client_state

dist.init_process_group("gloo")
rank = dist.get_rank()
run = pluto.init(name=f"node{{rank}}")
for step in range({STEPS}):
    total = torch.ones(1) * (rank + step)
    dist.all_reduce(total)
    run.log({{f"total/node{{rank}}": float(total)}}, step=step)
until = time.monotonic() + {SECONDS / 3}
while time.monotonic() < until:
    state = client_state.read(os.environ["PLUTO_DIR"]) or {{}}
    if state.get("sent") and not state["unsent"]:
        break
    time.sleep(0.2)
run.finish()
dist.barrier()
dist.destroy_process_group()
"""
"""With WORLD_SIZE > 1, finish() ends the client's upload process, which starts slowly in the emulator.

Whether the emulator reports a CPU frequency depends on the kernel that it runs on. Where it reports none, the
client needs the recorder, as on most arm64 virtual machines.
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
def images(context: RunContext) -> Bases:
    """The bases for arm64. The one with PyTorch runs torchrun and DDP while it is built."""
    return bases(versions.load(context.settings).worker.debian, context)


@pytest.fixture(scope="module")
def tracker(images: Bases, context: RunContext) -> Iterator[str]:
    """The URL of a tracker that runs in the emulator."""
    image = build_tracker(images, context).tag
    assert architecture(image) == "arm64"
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


def architecture(image: str) -> str:
    return output("docker", "image", "inspect", "--format", "{{.Architecture}}", image)


def test_ranks_of_the_worker_image_log_to_the_tracker(
    tracker: str, images: Bases, context: RunContext, tmp_path: Path
) -> None:
    """Contract: torchrun's ranks reduce over gloo, and the tracker stores every point that they log."""
    image = build_worker(images, context, exact=True).tag
    assert architecture(image) == "arm64"
    (tmp_path / "program.py").write_text(PROGRAM)
    folder = lay_out(recorder.MOUNTED, tmp_path / "recorder")
    variables = {"PLUTO_API_KEY": KEY, "PLUTO_API_TOKEN": KEY, "PLUTO_DISABLE_TELEMETRY": "1", "HOME": "/tmp"}
    variables |= {"PLUTO_PROJECT": "e2e", "PLUTO_RUN_ID": "emulated", "PYTHONPATH": recorder.FOLDER}
    variables |= {f"PLUTO_URL_{name}": tracker for name in ("APP", "API", "INGEST", "PY")}
    variables |= {"HARNESS_NONCE": NONCE, "HARNESS_CPU_FREQUENCY": "0", "OMP_NUM_THREADS": "1"}
    options = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    options += ["--volume", f"{folder}:{recorder.FOLDER}:ro", "--volume", f"{tmp_path}:/program:ro"]
    options += ["--network", "host", "--workdir", "/tmp"]
    command = ["torchrun", f"--nproc_per_node={RANKS}", "--master_addr=127.0.0.1", "/program/program.py"]
    log = output("docker", "run", "--rm", *options, image, *command)
    collector = TruthCollector(NONCE)
    for line in log.splitlines():
        collector.feed(line)
    records = collector.result()
    assert sorted(records) == [*range(RANKS)]
    for lines in records.values():
        assert [line.count for line in lines if isinstance(line, TruthEnd)] == [STEPS]
    with httpx.Client(base_url=tracker, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        audit = EmbeddedAudit(client)
        (run,) = audit.runs(external_id="emulated", project="e2e", job_name=None)
        found = {(point.metric, point.step) for point in audit.points([run.run_id])}
    sent = {(f"total/node{rank}", step) for rank in range(RANKS) for step in range(STEPS)}
    assert found >= sent, log
