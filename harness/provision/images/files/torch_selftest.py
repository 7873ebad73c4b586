"""Runs under torchrun while a base image is built: gloo all-reduce, DDP, an optimizer step, another store."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.ones(4) * (rank + 1)
dist.all_reduce(total)
expected = world * (world + 1) / 2
assert total.tolist() == [expected] * 4, total
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(total).sum().backward()
    optimizer.step()
dist.barrier()
print(f"rank {rank} of {world}: all-reduce and DDP agree")
dist.destroy_process_group()
