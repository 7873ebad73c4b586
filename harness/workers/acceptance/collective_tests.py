"""Run the tests of ddp_tests (collectives, stragglers and pairs) on one rank. Rank 0 judges the results."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from .collectives import ELEMENTS, NAMES, Exchange, bandwidth, need, percentiles
from .devices import Device
from .emit import Emitter
from .hang_detection import Watch, listed
from .limits import judged
from .pair_tests import Pairs
from .rank_results import OneRank

FREE_SHARE = 0.85
"""The fraction of a GPU's free memory that buffers may use. NCCL and the allocator need the rest."""
ITERATIONS = {"quick": 6, "full": 20}
STRAGGLER = {"cuda": 1.5, "cpu": 4.0}
"""A rank is slow if its work takes longer than the median time of all ranks, multiplied by this factor.

The factor is larger for CPUs, because several pods may share them.
"""
MIN_RANKS = 4
"""Minimum number of ranks for which a comparison with the median is meaningful."""


class Exchanges(OneRank):
    """One rank's tests. Rank 0 collects the results of all ranks, and emits the checks."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        device: Device,
        watch: Watch,
        emitter: Emitter,
        options: argparse.Namespace,
    ) -> None:
        super().__init__(rank, ranks, device, watch, emitter)
        self._limits = options.limits
        self._sizes = ELEMENTS[device.kind, options.mode]
        self._iterations = ITERATIONS[options.mode]
        self._rows: list[dict[str, Any]] = []
        self._pairs = Pairs(rank, ranks, device, watch, emitter, self._sizes[1], self._iterations)

    def all(self) -> None:
        """Run all tests on this rank. Exceptions from PyTorch propagate."""
        self._sizes = self._that_fit()
        for name in NAMES:
            self._collective(name)
        self._stragglers()
        self._pairs.all()

    def extra(self) -> dict[str, Any]:
        """Return the report's fields that are not checks."""
        shape = {"results": [_as_nccl_tests(row) for row in self._rows]}
        return {"collectives": self._rows, "pairs": self._pairs.rows, "nccl_tests": shape}

    # -- collectives ---------------------------------------------------------------------------------------
    def _collective(self, name: str) -> None:
        rows, emulated = [], False
        for elements in self._sizes:
            exchange = Exchange(name, elements, self.rank, self.ranks, self.device.torch)
            wrong_count, times = self._timed(exchange)
            emulated |= exchange.built
            results = self._gathered(f"{name}/{elements}", {"wrong": wrong_count, "times": times})
            if results is not None:
                rows.append(self._row(exchange, results))
        if self.rank == 0:
            self._rows += [row for row, _ in rows]
            self._judge(name, rows, emulated)

    def _that_fit(self) -> tuple[int, ...]:
        """Return the smallest size, and each larger size that fits into the free memory of all ranks."""
        import torch
        import torch.distributed as dist

        if self.device.kind == "cpu":
            return self._sizes
        free = torch.tensor([torch.cuda.mem_get_info(self.device.index)[0]], device=self.device.torch)
        self._watch.enter("the all_reduce that compares the ranks' free memory")
        dist.all_reduce(free, dist.ReduceOp.MIN)
        self._watch.leave()
        available = int(free) * FREE_SHARE
        return self._sizes[:1] + tuple(size for size in self._sizes[1:] if need(size) <= available)

    def _timed(self, exchange: Exchange) -> tuple[int, list[float]]:
        """Run all iterations.

        Return the number of wrong elements, and the duration of each timed iteration in seconds.
        """
        import torch.distributed as dist

        wrong_count, times = 0, []
        for iteration in range(self._iterations + 1):
            exchange.fresh(iteration)
            self._wait()
            self._watch.enter(f"the barrier before {exchange.name}")
            dist.barrier(device_ids=self.device.ids)
            self._watch.enter(f"{exchange.name} of {exchange.size} bytes, iteration {iteration}")
            start = time.perf_counter()
            exchange.run()
            self._wait()
            if iteration:  # The first iteration is not timed, because it also opens connections.
                times.append(time.perf_counter() - start)
            self._watch.leave()
            wrong_count += exchange.wrong()
        return wrong_count, times

    def _row(self, exchange: Exchange, results: Mapping[int, Any]) -> tuple[dict[str, Any], list[int]]:
        """Return the report's entry for one payload size, and the ranks that received wrong elements."""
        slowest = [max(results[rank]["times"][i] for rank in results) for i in range(self._iterations)]
        middle = median(slowest)
        algbw, busbw = bandwidth(exchange.name, exchange.size, middle, self.ranks)
        row = {
            "collective": exchange.name,
            "size": exchange.size,
            "dtype": "float32",
            "time": middle,
            "algbw": algbw,
            "busbw": busbw,
            "wrong": sum(one["wrong"] for one in results.values()),
            "percentiles": percentiles(slowest),
            "by_rank": {rank: median(one["times"]) for rank, one in results.items()},
        }
        return row, [rank for rank, one in results.items() if one["wrong"]]

    def _judge(self, name: str, rows: list[tuple[dict[str, Any], list[int]]], emulated: bool) -> None:
        wrong_count = sum(row["wrong"] for row, _ in rows)
        bad = tuple(sorted({rank for _, ranks in rows for rank in ranks}))
        note = "; emulated with another collective, because the backend lacks this one" if emulated else ""
        if wrong_count:
            text = (
                f"{listed(bad)} received wrong data from {name} over {self.ranks} ranks "
                f"(number of wrong elements: {wrong_count}){note}"
            )
        else:
            text = f"all elements are correct on all {self.ranks} ranks for each of {len(rows)} sizes{note}"
        self._say(f"ddp.{name}.correct", "FAIL" if wrong_count else "PASS", text, "collective.wrong", bad)
        row, id_ = rows[-1][0], f"ddp.{name}.busbw"
        if self.ranks < 2:
            self._say(id_, "PASS", "a single rank sends nothing, so there is no bandwidth to measure", "", ())
            return
        limit_row = self._limits.row(
            model=self.device.name, check=id_, ranks=self.ranks, nodes=self._nodes, payload=row["size"]
        )
        p = row["percentiles"]
        text = (
            f"{row['busbw']:.4g} GB/s at {row['size']} bytes over {self.ranks} ranks on {self._nodes} nodes "
            f"(p50 {p['p50'] * 1e3:.3g} ms, p99 {p['p99'] * 1e3:.3g} ms)"
        )
        self._emitter.say(judged(id_, "DDP", row["busbw"], "GB/s", limit_row, "collective.slow", text))

    # -- stragglers ----------------------------------------------------------------------------------------
    def _stragglers(self) -> None:
        """Compare how long each rank takes for the same work. This work requires no communication."""
        seconds_of = self._gathered("work", self._work())
        if seconds_of is None:
            return
        if self.ranks < MIN_RANKS:
            text = f"at least {MIN_RANKS} ranks are needed for a comparison; found {self.ranks}"
            self._say("ddp.stragglers", "PASS", text, "", ())
            return
        usual, share = median(seconds_of.values()), STRAGGLER[self.device.kind]
        slow = tuple(rank for rank, seconds in seconds_of.items() if seconds > share * usual)
        worst = max(seconds_of, key=lambda rank: seconds_of[rank])
        times = seconds_of[worst] / usual
        text = (
            f"rank {worst}, the slowest, takes {times:.2f} × the median time for the same work; "
            f"a rank that takes more than {share:g} × is slow"
        )
        self._say("ddp.stragglers", "FAIL" if slow else "PASS", text, "straggler.rank", slow)

    def _work(self) -> float:
        """Return the duration in seconds of the fastest of 12 matrix products.

        It is the one that other processes on the machine disturbed the least.
        """
        import torch

        side = 4096 if self.device.kind == "cuda" else 192
        a = torch.ones(side, side, device=self.device.torch)
        best = float("inf")
        for _ in range(12):
            self._wait()
            start = time.perf_counter()
            a @ a
            self._wait()
            best = min(best, time.perf_counter() - start)
        return best


def _as_nccl_tests(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report entry in nccl-tests' JSON format: time in µs, bandwidths in GB/s."""
    in_place = row["collective"] in ("all_reduce", "broadcast")
    figures = {
        "time": row["time"] * 1e6,
        "alg_bw": row["algbw"],
        "bus_bw": row["busbw"],
        "nwrong": row["wrong"],
    }
    return {
        "test": row["collective"],
        "size": row["size"],
        "count": row["size"] // 4,
        "type": "float",
        "redop": "sum" if "reduce" in row["collective"] else "none",
        "root": -1,
        ("in_place" if in_place else "out_of_place"): figures,
    }
