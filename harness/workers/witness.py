"""Run the main job's worker, and write every point to a file on the node before the worker logs it.

    torchrun … /workspace/witness.py BEHAVIOUR RANK

BEHAVIOUR is `healthy`, `unaided`, or the name of a fault in faulty.py or faulty_client.py. With `unaided`,
the worker records no ground truth, like a worker that does not use the harness. A fault occurs only on rank
RANK.

The files are in a folder that is mounted from the node. Only the harness's oracle reads them
(harness/faults/random/oracle.py). Each line is a JSON list [rank, metric, step, value]. It is written before
the client receives the value.
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
    """A replacement for the ground-truth recorder that records nothing."""

    nonce = "0"

    @classmethod
    def from_env(cls, _: int) -> Unaided:
        return cls()

    def __getattr__(self, _: str) -> Callable[..., dict[str, Any]]:
        return lambda *_: {"count": "unrecorded"}


def witnessed(log: multinode.Log = multinode.plain_log) -> int:
    """Run the worker. Before each call of `log`, write the step's rows to the file."""
    rank, folder = int(os.environ["RANK"]), f"{FOLDER}/{os.environ['HARNESS_NONCE']}"
    os.makedirs(folder, exist_ok=True)
    file = os.open(f"{folder}/{rank}-{os.getpid()}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def written_first(run: Any, metrics: dict[str, float], step: int) -> None:
        rows = (json.dumps([rank, name, step, value]) + "\n" for name, value in metrics.items())
        os.write(file, "".join(rows).encode())
        log(run, metrics, step)

    return int(_main(log=written_first))


def main(behaviour: str, victim: int) -> int:
    """Run the worker with the given behaviour, and return its exit code."""
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
