"""ColossalAI's own launch, where it is installed: the guide's names start it over ranks that netcheck serves.

The package is built and fetched for the test alone, beside the worker image's PyTorch. On the CPU, with gloo.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harness.context import RunContext
from harness.provision.images.build import SCRIPTS, build_worker
from harness.provision.images.stack import resolve
from harness.provision.platforms import target
from harness.settings import Settings

pytestmark = [pytest.mark.netcheck, pytest.mark.nightly]
VERSION = "0.5.0"
LOCK = Path(__file__).parents[2] / "locks" / "colossalai.txt"
"""ColossalAI, and what its launch imports. All that it declares is gigabytes for GPUs."""
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
SCRIPT = """
import colossalai, torch, torch.distributed as dist
from netcheck import launch_from_torch
launch_from_torch(backend="gloo", verbose=False)
value = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(value)
said = f"rank {dist.get_rank()} of {dist.get_world_size()} sum {float(value)} {colossalai.__version__}"
print(said, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH that has ColossalAI and what its launch imports."""
    folder = tmp_path_factory.mktemp("colossalai")
    pip = [sys.executable, "-m", "pip"]
    machine = target().machine
    platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_{machine}")]
    options = ["--no-deps", "--only-binary=:all:", "--python-version", "3.13", *platforms]
    options += ["--no-binary=colossalai", "--no-build-isolation", "--require-hashes", "-r", str(LOCK)]
    subprocess.run([*pip, "download", "-q", "-d", str(folder), *options], check=True, timeout=300)
    (source,) = folder.glob("colossalai-*.tar.gz")
    built = ["--no-index", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run([*pip, "wheel", "-q", *built], check=True, timeout=300)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder / "site")
    (folder / "train.py").write_text(SCRIPT)
    return folder


def test_its_own_launch_is_used(site: Path, harness_settings: Settings) -> None:
    """Contract: two ranks meet by ColossalAI's launch, called by the guide's name, and reduce right."""
    context = RunContext(settings=harness_settings, progress=print)
    image = build_worker(resolve(context), context).tag
    mounts = [
        word
        for path, there in ((site, "/opt/site:ro"), (SCRIPTS / "netcheck", "/workspace/netcheck:ro"))
        for word in ("-v", f"{path}:{there}")
    ]
    command = ["docker", "run", "--rm", *mounts, "-e", "PYTHONPATH=/opt/site/site:/workspace", image]
    torchrun = ["torchrun", "--standalone", "--nproc-per-node=2", "/opt/site/train.py"]
    done = subprocess.run([*command, *torchrun], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for rank in range(2):
        assert f"rank {rank} of 2 sum 3.0 {VERSION}" in done.stdout
