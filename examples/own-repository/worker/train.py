"""Fit a linear model. Each rank has its own data. The ranks average gradients and log to one Pluto run.

The modules ground_truth and multinode are part of the harness, in /workspace of its worker image.
"""

import os
import sys
from pathlib import Path

from ground_truth import Recorder, client_state  # import before Pluto's client captures stdout
from multinode import init_distributed, wait_for_sync, wait_for_uploader

STEPS = 10
LEARNING_RATE = float(os.environ.get("LEARNING_RATE", "0.05"))


def main() -> int:
    rank, world, device = init_distributed()
    os.environ["PLUTO_DIR"] = f"/tmp/pluto/rank{rank}"  # noqa: S108 - one per process, never shared
    Path(os.environ["PLUTO_DIR"]).mkdir(parents=True, exist_ok=True)

    import pluto
    import torch
    import torch.distributed as dist

    truth = Recorder.from_env(rank)
    job = os.environ.get("KONDUKTOR_JOB_NAME", "local")
    run = pluto.init(project=os.environ.get("PLUTO_PROJECT", "e2e"), name=f"{job}-rank{rank}")

    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(rank)).to(device)
    y = x @ torch.arange(8.0, device=device).unsqueeze(1)
    weights = torch.zeros(8, 1, device=device, requires_grad=True)
    for step in range(STEPS):
        loss = torch.nn.functional.mse_loss(x @ weights, y)
        (gradient,) = torch.autograd.grad(loss, weights)
        mean = loss.detach().clone()
        dist.all_reduce(gradient)
        dist.all_reduce(mean)
        with torch.no_grad():
            weights -= LEARNING_RATE * gradient / world
        metrics = {f"loss/rank{rank}": loss.item(), "loss/mean": mean.item() / world}
        for name, value in metrics.items():
            truth.record(name, step, value)
        run.log(metrics, step=step)

    truth.flush()
    wait_for_uploader(rank, 40.0)  # finish() would kill an uploader that is still starting
    run.finish()
    wait_for_sync(rank, 40.0)  # finish() does not wait if WORLD_SIZE > 1
    truth.client(client_state.read(os.environ["PLUTO_DIR"]))
    truth.end()
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
