"""Run on each node of a distributed job: log this node's metrics to the run that all nodes share.

This is an ordinary worker. It uses Pluto's client, but nothing from the harness.
"""

import os
import sys
import time

import pluto
import torch
import torch.distributed as dist

STEPS = 30


def main() -> int:
    rank, nodes = int(os.environ["RANK"]), int(os.environ["NUM_NODES"])
    run_id = os.environ["PLUTO_RUN_ID"]
    if not os.environ.get("PLUTO_API_TOKEN"):
        print(f"[Node {rank}] PLUTO_API_TOKEN is not set", flush=True)
        return 1
    print(f"[Node {rank}] {nodes} nodes, run {run_id}", flush=True)
    dist.init_process_group("gloo")

    run = pluto.init(
        project=os.environ.get("PLUTO_PROJECT", "multinode"),
        name=f"training-node{rank}",
        run_id=run_id,  # the same on every node
        config={"rank": rank, "num_nodes": nodes},
    )
    ids = [None] * nodes
    dist.all_gather_object(ids, run.id)
    if len(set(ids)) != 1:
        print(f"[Node {rank}] the nodes have different runs: {ids}", flush=True)
        return 1

    generator = torch.Generator().manual_seed(rank)
    weights = torch.zeros(8)
    for step in range(STEPS):
        x = torch.randn(64, 8, generator=generator)
        error = x @ weights - x @ torch.arange(8.0)
        gradient = 2 * error @ x / len(x)
        dist.all_reduce(gradient)
        weights -= 0.05 * gradient / nodes
        speed = 1000 + 100 * rank + step
        run.log({f"loss/node{rank}": (error**2).mean(), f"throughput/node{rank}": speed, "step": step})
        time.sleep(0.2)

    run.finish()
    dist.barrier()
    dist.destroy_process_group()
    print(f"[Node {rank}] done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
