"""`launch_from_torch` of the networking guide without ColossalAI: ranks in containers that meet, or do not.

Each case that fails ends within COLOSSALAI_MASTER_READY_TIMEOUT and names its cause. PyTorch alone waits for
half an hour, and says "connection timed out". On the CPU, with gloo.
"""

from __future__ import annotations

import subprocess

import pytest

from harness.context import RunContext
from harness.provision.images.build import SCRIPTS, build_worker
from harness.provision.images.stack import resolve
from harness.settings import Settings

pytestmark = [pytest.mark.netcheck, pytest.mark.nightly]
READY = 6
SCRIPT = """
import atexit, time
import torch, torch.distributed as dist
from netcheck import launch_from_torch
ends = []
atexit.register(lambda: print(f"gloo had time: {time.monotonic() - ends[0] > 0.1}", flush=True))
began = time.monotonic()
try:
    launch_from_torch(verbose=True)
except RuntimeError as error:
    print(f"after {time.monotonic() - began:.0f} s: {error}", flush=True)
    raise SystemExit(1)
value = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(value)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} sum {float(value)}", flush=True)
ends.append(time.monotonic())
"""
ALONE = "export MASTER_ADDR={addr} MASTER_PORT=29500 WORLD_SIZE={world}; "
RANK = "RANK={rank} python3 /tmp/train.py & "


@pytest.fixture(scope="module")
def image(harness_settings: Settings) -> str:
    context = RunContext(settings=harness_settings, progress=print)
    return build_worker(resolve(context), context).tag


def run(image: str, command: str, ready: int = 60) -> tuple[int, str]:
    """Run a shell command beside the script /tmp/train.py. Return its exit code and its output."""
    mount = ["-v", f"{SCRIPTS / 'netcheck'}:/workspace/netcheck:ro"]
    variables = {"PYTHONPATH": "/workspace", "COLOSSALAI_MASTER_READY_TIMEOUT": str(ready), "SCRIPT": SCRIPT}
    given = [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
    inside = f'echo "$SCRIPT" >/tmp/train.py; {command}'
    words = ["docker", "run", "--rm", "--hostname", "job-0", *mount, *given, image, "bash", "-c", inside]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def test_ranks_that_meet_have_a_process_group(image: str) -> None:
    """Contract: the group stays, so that the guide's test_distributed.py goes on with it, and gloo's threads
    have time to let go of its tensors: Python that ends at once is aborted now and then (pytorch#179291).
    """
    code, output = run(image, "torchrun --standalone --nproc-per-node=2 /tmp/train.py")
    assert code == 0, output
    assert "netcheck: 2 ranks have joined (gloo)" in output
    assert all(f"rank {rank} of 2 sum 3.0" in output for rank in range(2))
    assert output.count("gloo had time: True") == 2


def test_ranks_without_torchrun_meet_too(image: str) -> None:
    ranks = "".join(RANK.format(rank=rank) for rank in range(3))
    code, output = run(image, ALONE.format(addr="job-0", world=3) + ranks + "wait")
    assert code == 0, output
    assert all(f"rank {rank} of 3 sum 6.0" in output for rank in range(3)), output


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ALONE.format(addr="a.b", world=4) + "RANK=1 python3 /tmp/train.py",
            "after 6 s: dns.no_record: rank 0",
        ),
        (
            ALONE.format(addr="a.b", world=4) + "RANK=0 python3 /tmp/train.py",
            "after 6 s: dns.no_record: MASTER_",
        ),
        (
            ALONE.format(addr="job-0", world=4) + "RANK=3 python3 /tmp/train.py",
            "after 6 s: tcp.refused: rank 0 was not reached within 6 s: job-0: ",
        ),
        (
            ALONE.format(addr="job-0", world=8)
            + "".join(RANK.format(rank=rank) for rank in range(4))
            + "wait -n",
            "peer.never_came: ranks 4, 5, 6, 7 of 8 did not register within 6 s",
        ),
        (
            ALONE.format(addr="job-0", world=4) + "NODE_RANK=1 python3 /tmp/train.py",
            "after 0 s: variables.rank: RANK not set",
        ),
        (
            ALONE.format(addr="job-0:29500", world=4) + "RANK=1 python3 /tmp/train.py",
            "after 0 s: variables.master_addr: MASTER_ADDR='job-0:29500'",
        ),
    ],
    ids=["no-name", "no-name-on-rank-0", "no-rank-0", "half-came", "no-torchrun", "address-with-port"],
)
def test_ranks_that_do_not_meet_name_cause_in_time(image: str, command: str, message: str) -> None:
    """Situations of public reports: pytorch #80772 and #52848, ColossalAI #1074 and #6349."""
    code, output = run(image, command, READY)
    assert code == 1, output
    assert message in output
