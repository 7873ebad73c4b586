"""A worker as users write it, with gloo and Pluto. CASE is what goes wrong in rank CASE_RANK at step 10."""

import datetime
import os
import signal
import sys
import time

import pluto
import torch
import torch.distributed as dist

CASE, CASE_RANK = os.environ.get("CASE", ""), int(os.environ.get("CASE_RANK", "1"))
STEPS = 30
if CASE == "no-group":
    rank, world = 0, 1
else:
    dist.init_process_group(
        "gloo", timeout=datetime.timedelta(seconds=20 if CASE in ("silent", "uneven", "busy") else 1800)
    )
    rank, world = dist.get_rank(), dist.get_world_size()


class Items(torch.utils.data.Dataset[torch.Tensor]):
    """A data set whose items do not fit into the memory of a pod."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        kept = [bytearray(os.urandom(1 << 20)) * 256 for _ in range(64)]
        return torch.tensor(len(kept))


def fail() -> None:
    """Do what the case has rank 1 do."""
    if CASE in ("raise", "back"):
        raise RuntimeError("CUDA error: device-side assert triggered")
    if CASE == "leave-buffered":
        print("the batch of rank 1 is not finite")
        os._exit(1)
    if CASE.startswith("loader"):
        print("first batch", next(iter(torch.utils.data.DataLoader(Items(), num_workers=1, batch_size=1))))
    if CASE in ("silent", "silent-for-long"):
        time.sleep(3600)
    if CASE == "exit-1":
        sys.exit(1)
    if CASE == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)


def bars() -> None:
    """Print a bar that never ends its line, bars that move the cursor, and a text without an end of line."""
    for step in range(20000):
        sys.stderr.write(
            f"\r\x1b[32mepoch 1\x1b[0m {step / 200:5.1f}%|{'#' * (step // 1000):<20}| {step}/20000"
        )
    sys.stderr.write("\n")
    for step in range(3000):
        sys.stdout.write(f"\x1b[Ainner {step}\r")
    print("no newline at the end of this text", end="", flush=True)


def save() -> None:
    """Be busy after the last batch, as with the upload of a checkpoint."""
    time.sleep(3600)


def train() -> None:
    again = CASE == "back" and os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
    run = pluto.init(
        project=os.environ.get("PLUTO_PROJECT", "e2e"), name="plain", run_id=os.environ["PLUTO_RUN_ID"]
    )
    fewer = 15 if CASE in ("uneven", "busy") and rank == CASE_RANK else 0
    for step in range(5 if again else 0, STEPS - fewer):
        run.log({f"loss/rank{rank}": again + 1.0 / (step + 1)}, step=step)
        if rank == CASE_RANK and step == 10 and not again:
            fail()
        if CASE in ("silent", "silent-for-long", "uneven", "busy"):
            dist.all_reduce(torch.ones(1))
        time.sleep(0.2)
    if CASE == "bars":
        bars()
    if CASE == "busy" and rank == CASE_RANK:
        save()
    run.finish()
    print("rank", rank, "of", world, "done", flush=True)


train()
