"""Define the base class for tests over many ranks. Each rank sends its results to rank 0."""

from __future__ import annotations

import os
from typing import Any

from .check import Check, Verdict
from .devices import Device
from .emit import Emitter
from .hang_detection import Watch

RESULT_SECONDS = 60.0


class OneRank:
    """One rank in a test. This is the base class of Exchanges (collectives) and Pairs (pairs of nodes)."""

    def __init__(self, rank: int, ranks: int, device: Device, watch: Watch, emitter: Emitter) -> None:
        self.rank, self.ranks, self.device = rank, ranks, device
        self._watch, self._emitter = watch, emitter
        self._nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
        self._node = int(os.environ.get("GROUP_RANK", "0"))

    def _gathered(self, name: str, own: Any) -> dict[int, Any] | None:
        """Send a value to rank 0. On rank 0, return the values of all ranks. On other ranks, return None.

        Raises RuntimeError if a rank does not send its value within RESULT_SECONDS seconds.
        """
        self._watch.publish(f"result/{name}/{self.rank}", own)
        if self.rank:
            return None
        values = {}
        for rank in range(self.ranks):
            values[rank] = self._watch.wait_for(f"result/{name}/{rank}", RESULT_SECONDS)
            if values[rank] is None:
                raise RuntimeError(f"rank {rank} sent no result for {name} within {RESULT_SECONDS:.0f} s")
        return values

    def _say(self, id_: str, verdict: Verdict, text: str, cause: str, ranks: tuple[int, ...]) -> None:
        check_cause = cause if verdict in ("FAIL", "WARN") else None
        self._emitter.say(
            Check(id=id_, tag="DDP", verdict=verdict, text=text, cause=check_cause, ranks=ranks)
        )

    def _wait(self) -> None:
        if self.device.kind == "cuda":
            import torch

            torch.cuda.synchronize()
