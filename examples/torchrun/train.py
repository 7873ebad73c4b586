"""A small data-parallel training program for all examples. Each rank has its own data."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# The controller sets this variable to `distributed.backend`, which is nccl by default, or gloo without GPUs.
dist.init_process_group(os.environ.get("TORCHRUN_BACKEND", "gloo"))
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(16, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(int(os.environ.get("STEPS", "20"))):
    inputs = torch.randn(32, 16, device=device)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 5 == 0:
        print(f"step {step} loss {loss.item():.4f}", flush=True)
print(f"rank {rank} of {world}: done", flush=True)
dist.destroy_process_group()
