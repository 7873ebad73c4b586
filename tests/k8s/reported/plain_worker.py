"""A worker as users write it, with gloo and Pluto. CASE names what goes wrong in rank 1."""

import os
import time

import pluto
import torch
import torch.distributed as dist

CASE = os.environ.get("CASE", "")
if CASE == "no-group":
    rank, world = 0, 1
else:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()


def fail(step: int) -> None:
    """Do what the case has rank 1 do at this step."""
    if rank != 1 or step != 10:
        return
    if CASE == "raise":
        raise RuntimeError("CUDA error: device-side assert triggered")
    if CASE == "leave-buffered":
        print("RuntimeError: the batch of rank 1 is not finite")
        os._exit(1)
    if CASE == "loader-killed":
        loader = torch.utils.data.DataLoader(Greedy(), num_workers=1, batch_size=1)
        print("first batch", next(iter(loader)))


class Greedy(torch.utils.data.Dataset[torch.Tensor]):
    """A data set whose items do not fit into the pod's memory."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        kept = [bytearray(os.urandom(1 << 20)) * 256 for _ in range(64)]
        return torch.tensor(len(kept))


def train() -> None:
    torch.manual_seed(0)
    run = pluto.init(
        project=os.environ.get("PLUTO_PROJECT", "e2e"), name="plain", run_id=os.environ["PLUTO_RUN_ID"]
    )
    for step in range(30):
        run.log({f"loss/rank{rank}": 1.0 / (step + 1)}, step=step)
        fail(step)
        time.sleep(0.2)
    run.finish()
    print("rank", rank, "of", world, "done", flush=True)


train()
