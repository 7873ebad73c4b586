"""One rank that logs as the trainers do, without torch: training_rank.py RANK WORLD FOLDER STEPS EVERY LIMIT

It makes a checkpoint each EVERY steps (a file with the step, after `settle`), begins at the newest one, and
waits LIMIT seconds at most for a tracker. E2E_STEP_SECONDS is a pause at each step. DIE_AT is a step at which
it kills itself. What it logs is a function of rank and step, and it prints `logged STEP` for each.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from training.trackers import Trackers


def main() -> int:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    steps, every = int(sys.argv[4]), int((sys.argv[5:] or ["10"])[0])
    seconds = float((sys.argv[6:] or ["60"])[0])
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
        values = {f"rank{rank}/train/loss": rank + 1 / (now + 1), f"rank{rank}/data/sum": float(2**53 - now)}
        if rank == 0:
            values |= {"train/loss": 1 / (now + 1)}
        trackers.log(now, values)
        os.write(1, f"logged {now}\n".encode())
        time.sleep(float(os.environ.get("E2E_STEP_SECONDS", "0.01")))
        if now == int(os.environ.get("DIE_AT", "-1")):
            os.kill(os.getpid(), signal.SIGKILL)
        if (now + 1) % every == 0 or now + 1 == steps:
            if rank == 0:
                trackers.log(now, {"val/loss": 2 / (now + 1)})
            unsent = trackers.settle()
            saved.write_text(str(now + 1))
            say(f"saved {now + 1} with {unsent} values unsent")
    unsent = trackers.finish(ok=True)
    say(f"ended with {unsent} values unsent")
    return 1 if unsent else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
