"""One rank that logs as the trainers do, without torch: training_rank.py RANK WORLD FOLDER STEPS EVERY LIMIT

It makes a checkpoint each EVERY steps (a file with the step, after `settle`), begins at the newest one, and
waits LIMIT seconds at most for a tracker. E2E_STEP_SECONDS is a pause at each step. It kills itself at step
DIE_AT, or before it has saved step DIE_BEFORE_SAVED, when all is acknowledged. What it logs is a function of
rank and step: `expected` has all of it. It prints `logged STEP` for each.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def values(rank: int, step: int) -> dict[str, float]:
    """Return the values that a rank logs at a step."""
    own = {f"rank{rank}/train/loss": rank + 1 / (step + 1), f"rank{rank}/data/sum": float(2**53 - step)}
    return own | ({"train/loss": 1 / (step + 1)} if rank == 0 else {})


def validation(step: int) -> dict[str, float]:
    """Return the additional values that rank 0 logs at the last step before a checkpoint."""
    return {"val/loss": 2 / (step + 1)}


def expected(world: int, steps: int, every: int) -> dict[str, dict[int, float]]:
    """Return the final value of each metric at each step, after all ranks have ended."""
    found: dict[str, dict[int, float]] = {}
    for step in range(steps):
        logged = [values(rank, step) for rank in range(world)]
        if (step + 1) % every == 0 or step + 1 == steps:
            logged.append(validation(step))
        for name, value in (pair for each in logged for pair in each.items()):
            found.setdefault(name, {})[step] = value
    return found


def main() -> int:
    from training.trackers import Trackers

    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    steps, every, seconds = int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6])
    saved = folder / f"checkpoint-{rank}"
    step = int(saved.read_text()) if saved.exists() else 0

    def share(value: Any) -> Any:
        shared = folder / "trackers" / "id"
        while not shared.is_file():
            time.sleep(0.01)
        return shared.read_text() if value is None else value

    def say(text: str) -> None:
        os.write(1, f"rank {rank}: {text}\n".encode())

    config = {"steps": 100, "lr": 3e-3}
    trackers = Trackers("a", rank, world, config, folder, step, share, say, seconds)
    for now in range(step, steps):
        trackers.log(now, values(rank, now))
        os.write(1, f"logged {now}\n".encode())
        time.sleep(float(os.environ.get("E2E_STEP_SECONDS", "0.01")))
        if now == int(os.environ.get("DIE_AT", "-1")):
            os.kill(os.getpid(), signal.SIGKILL)
        if (now + 1) % every == 0 or now + 1 == steps:
            if rank == 0:
                trackers.log(now, validation(now))
            unsent = trackers.settle()
            if now + 1 == int(os.environ.get("DIE_BEFORE_SAVED", "-1")):
                os.kill(os.getpid(), signal.SIGKILL)
            saved.write_text(str(now + 1))
            say(f"saved {now + 1} with {unsent} values unsent")
    unsent = trackers.finish(ok=True, artifacts={"config.json": "{}", "best/manifest.json": '{"step": 20}'})
    say(f"ended with {unsent} values unsent")
    return 1 if unsent else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
