"""Measure the bandwidth between each pair of nodes. Rank 0 determines which nodes or links are slow."""

from __future__ import annotations

import os
import time
from typing import Any

from .devices import Device
from .emit import Emitter
from .hang_detection import Watch, listed
from .rank_results import OneRank
from .round_robin import rounds
from .slow_pairs import MIN_NODES, MOST_NODES, SLOW, suspects


class Pairs(OneRank):
    """One rank's pair tests. On rank 0, `rows` contains one row for each pair of nodes."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        device: Device,
        watch: Watch,
        emitter: Emitter,
        elements: int,
        iterations: int,
    ) -> None:
        super().__init__(rank, ranks, device, watch, emitter)
        self._elements, self._iterations = elements, iterations
        self.rows: list[dict[str, Any]] = []

    def all(self) -> None:
        """Exchange data between every pair of nodes, in rounds. Within a round, no two pairs share a node."""
        if not 1 < self._nodes <= MOST_NODES:
            return
        own_rates: dict[str, Any] = {}
        for number, pairs in enumerate(rounds(self._nodes)):
            own_rates |= {f"{a}-{b}": (self._pair(a, b), number) for a, b in pairs if self._node in (a, b)}
        by_rank = self._gathered("pairs", own_rates)
        if by_rank is None:
            return
        rates: dict[tuple[int, int], float] = {}
        of_round = {}
        for one in by_rank.values():
            for name, (rate, number) in one.items():
                a, b = map(int, name.split("-"))
                if rate is not None:
                    rates[a, b] = min(rate, rates.get((a, b), rate))
                of_round[a, b] = number
        self._judge(rates, of_round)

    def _pair(self, a: int, b: int) -> float | None:
        """Take part in the exchange between nodes `a` and `b`, and return its bandwidth in GB/s.

        Returns None if this rank is not the first one on its node, because only the first ranks exchange
        data.
        """
        import torch
        import torch.distributed as dist

        self._watch.enter(f"the barrier before the exchange between nodes {a} and {b}")
        dist.barrier(device_ids=self.device.ids)
        self._watch.leave()
        if int(os.environ.get("LOCAL_RANK", "0")):
            return None
        data, best = torch.ones(self._elements, device=self.device.torch), float("inf")
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        peer = (b if self._node == a else a) * local
        for _ in range(self._iterations):
            self._watch.enter(f"the exchange between nodes {a} and {b}")
            start = time.perf_counter()
            steps = [dist.send, dist.recv] if self._node == a else [dist.recv, dist.send]
            for step in steps:
                step(data, peer)
            self._wait()
            best = min(best, (time.perf_counter() - start) / 2)
            self._watch.leave()
        return self._elements * 4 / best / 1e9

    def _judge(self, rates: dict[tuple[int, int], float], of_round: dict[tuple[int, int], int]) -> None:
        share = SLOW[self.device.kind]
        suspicion = suspects(rates, share) if self._nodes >= MIN_NODES else None
        slow = {*suspicion.links, *suspicion.open} if suspicion else set()
        slow |= {pair for pair in rates if suspicion and set(pair) & set(suspicion.nodes)}
        for (a, b), number in sorted(of_round.items()):
            rate = rates.get((a, b))
            verdict = "UNKNOWN" if rate is None else "FAIL" if (a, b) in slow else "PASS"
            self.rows.append({"a": a, "b": b, "busbw": rate, "verdict": verdict, "round": number})
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        slowest = min(rates, key=lambda pair: rates[pair])
        text = f"pairs of nodes: {len(rates)}; the slowest, {slowest}, reaches {rates[slowest]:.4g} GB/s"
        if suspicion is None:
            self._say("ddp.pairs", "PASS", f"{text}; {self._nodes} nodes are too few to compare", "", ())
            return
        text += (
            f"; the median of the faster half is {suspicion.usual:.4g} GB/s, and a pair below {share:g} "
            "of "
            "it is slow"
        )
        if suspicion.nodes:
            ranks = tuple(node * local for node in suspicion.nodes)
            subject = f"{'the node' if len(ranks) == 1 else 'each node'} of {listed(ranks)}"
            self._say(
                "ddp.pairs",
                "FAIL",
                f"{subject} is slow with all other nodes; {text}",
                "straggler.rank",
                ranks,
            )
        elif suspicion.links:
            a, b = suspicion.links[0]
            ranks = tuple(sorted({n * local for link in suspicion.links for n in link}))
            words = (
                f"ranks {a * local} and {b * local} are slow together, "
                f"but each is fast with other ranks; {text}"
            )
            self._say("ddp.pairs", "FAIL", words, "link.slow", ranks)
        elif suspicion.open:
            self._say(
                "ddp.pairs", "UNKNOWN", f"no single node or link explains the slow pairs; {text}", "", ()
            )
        else:
            self._say("ddp.pairs", "PASS", text, "", ())
