"""Run the main job's worker with a witness: a file of its own on the node, of all that it means to log.

    torchrun … /workspace/witness.py BEHAVIOUR RANK

BEHAVIOUR is `healthy`, `unaided` (no ground truth of its own, as in a worker that knows nothing of the
harness), or a fault of faulty.py or faulty_client.py, which that rank has. The folder FOLDER is mounted from
the node, and nothing of the harness but its oracle reads it (harness/faults/oracle.py). A row is written
before the client gets it: rank, metric, step and value as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import faulty_client
import multinode

FOLDER = "/witness"
_main = multinode.main


class Unaided:
    """Stands in for the ground truth's recorder, and records nothing."""

    nonce = "0"

    @classmethod
    def from_env(cls, _: int) -> Unaided:
        return cls()

    def __getattr__(self, _: str) -> Callable[..., dict[str, Any]]:
        return lambda *_: {"count": "unrecorded"}


def witnessed(log: multinode.Log = multinode.plain_log) -> int:
    """Run the worker. Each step is in the file before `log` has it."""
    rank, folder = int(os.environ["RANK"]), f"{FOLDER}/{os.environ['HARNESS_NONCE']}"
    os.makedirs(folder, exist_ok=True)
    file = os.open(f"{folder}/{rank}-{os.getpid()}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def written_first(run: Any, metrics: dict[str, float], step: int) -> None:
        rows = (json.dumps([rank, name, step, value]) + "\n" for name, value in metrics.items())
        os.write(file, "".join(rows).encode())
        log(run, metrics, step)

    return int(_main(log=written_first))


def main(behaviour: str, victim: int) -> int:
    """Run the behaviour. Returns the exit code."""
    multinode.main = witnessed
    if behaviour == "unaided":
        multinode.Recorder = Unaided
    if behaviour in ("healthy", "unaided"):
        return witnessed()
    return int(faulty_client.strike(behaviour, victim))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
