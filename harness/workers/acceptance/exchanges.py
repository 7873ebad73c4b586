"""Run every collective, pair and comparison of ddp_tests as one rank, and judge them on rank 0."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from .check import Check, Verdict
from .circle import rounds
from .collectives import NAMES, Exchange, bandwidth, percentiles
from .devices import Device
from .emit import Emitter
from .limits import judged
from .progress import Watch, listed
from .slow_pairs import MIN_NODES, MOST_NODES, SLOW, suspects

ELEMENTS = {
    ("cpu", "quick"): (1 << 14, 1 << 18),
    ("cpu", "full"): (1 << 14, 1 << 18, 1 << 22),
    ("cuda", "quick"): (1 << 18, 1 << 24, 1 << 28),
    ("cuda", "full"): (1 << 18, 1 << 22, 1 << 26, 1 << 28, 1 << 30, 1 << 31),
}
"""float32 elements of a rank's largest buffer. Limits are about 1 GiB and more, which is 2²⁸ of them."""
ITERATIONS = {"quick": 6, "full": 20}
STRAGGLER = {"cuda": 1.5, "cpu": 4.0}
"""Times the median of all ranks from which on a rank's own work is slow. Pods without GPUs share cores."""
MIN_RANKS = 4
"""With fewer ranks a median says nothing of one of them."""
TELL_SECONDS = 60.0


class Exchanges:
    """What one rank does. Rank 0 reads what the others tell it, and says the checks."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        device: Device,
        watch: Watch,
        emitter: Emitter,
        options: argparse.Namespace,
    ) -> None:
        self.rank, self.ranks, self.device = rank, ranks, device
        self._watch, self._emitter, self._limits = watch, emitter, options.limits
        self._key = (device.kind, options.mode)
        self._iterations = ITERATIONS[options.mode]
        self._nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
        self._node = int(os.environ.get("GROUP_RANK", "0"))
        self._rows: list[dict[str, Any]] = []
        self._pairs: list[dict[str, Any]] = []

    def all(self) -> None:
        """Do everything. Raises what PyTorch raises."""
        for name in NAMES:
            self._collective(name)
        self._stragglers()
        self._slow_pairs()

    def extra(self) -> dict[str, Any]:
        """Return what the report has beside the checks."""
        shape = {"results": [_as_nccl_tests(row) for row in self._rows]}
        return {"collectives": self._rows, "pairs": self._pairs, "nccl_tests": shape}

    # -- collectives ---------------------------------------------------------------------------------------
    def _collective(self, name: str) -> None:
        rows, built = [], False
        for elements in ELEMENTS[self._key]:
            exchange = Exchange(name, elements, self.rank, self.ranks, self.device.torch)
            wrong, times = self._timed(exchange)
            built |= exchange.built
            said = self._gathered(f"{name}/{elements}", {"wrong": wrong, "times": times})
            if said is not None:
                rows.append(self._row(exchange, said))
        if self.rank == 0:
            self._rows += [row for row, _ in rows]
            self._judge(name, rows, built)

    def _timed(self, exchange: Exchange) -> tuple[int, list[float]]:
        """Return the wrong elements of every iteration, and seconds: not of the first, which connects."""
        import torch.distributed as dist

        wrong, times = 0, []
        for iteration in range(self._iterations + 1):
            exchange.fresh(iteration)
            self._wait()
            self._watch.enter(f"the barrier before {exchange.name}")
            dist.barrier()
            self._watch.enter(f"{exchange.name} of {exchange.size} bytes, iteration {iteration}")
            began = time.perf_counter()
            exchange.run()
            self._wait()
            if iteration:
                times.append(time.perf_counter() - began)
            self._watch.leave()
            wrong += exchange.wrong()
        return wrong, times

    def _row(self, exchange: Exchange, said: Mapping[int, Any]) -> tuple[dict[str, Any], list[int]]:
        """Return the row of one size, and the ranks that got wrong elements."""
        slowest = [max(said[rank]["times"][i] for rank in said) for i in range(self._iterations)]
        middle = median(slowest)
        algbw, busbw = bandwidth(exchange.name, exchange.size, middle, self.ranks)
        row = {
            "collective": exchange.name,
            "size": exchange.size,
            "dtype": "float32",
            "time": middle,
            "algbw": algbw,
            "busbw": busbw,
            "wrong": sum(one["wrong"] for one in said.values()),
            "percentiles": percentiles(slowest),
            "by_rank": {rank: median(one["times"]) for rank, one in said.items()},
        }
        return row, [rank for rank, one in said.items() if one["wrong"]]

    def _judge(self, name: str, rows: list[tuple[dict[str, Any], list[int]]], built: bool) -> None:
        wrong = sum(row["wrong"] for row, _ in rows)
        bad = tuple(sorted({rank for _, ranks in rows for rank in ranks}))
        how = "; put together from all-to-all, which this backend has" if built else ""
        if wrong:
            text = f"{listed(bad)} got {wrong} wrong elements of {name} over {self.ranks} ranks{how}"
        else:
            text = f"every element of {len(rows)} sizes is right on all {self.ranks} ranks{how}"
        self._say(f"ddp.{name}.correct", "FAIL" if wrong else "PASS", text, "collective.wrong", bad)
        row, id_ = rows[-1][0], f"ddp.{name}.busbw"
        known = self._limits.row(
            model=self.device.name, check=id_, ranks=self.ranks, nodes=self._nodes, payload=row["size"]
        )
        p = row["percentiles"]
        text = (
            f"{row['busbw']:.4g} GB/s at {row['size']} bytes over {self.ranks} ranks on {self._nodes} nodes "
            f"(p50 {p['p50'] * 1e3:.3g} ms, p99 {p['p99'] * 1e3:.3g} ms)"
        )
        self._emitter.say(judged(id_, "DDP", row["busbw"], "GB/s", known, "collective.slow", text))

    # -- who is slow ---------------------------------------------------------------------------------------
    def _stragglers(self) -> None:
        """Compare what each rank needs for the same work of its own: nobody waits for anybody in it."""
        said = self._gathered("work", self._work())
        if said is None:
            return
        if self.ranks < MIN_RANKS:
            text = f"{self.ranks} ranks are too few to compare; from {MIN_RANKS} on one can stand apart"
            self._say("ddp.stragglers", "PASS", text, "", ())
            return
        usual, share = median(said.values()), STRAGGLER[self.device.kind]
        slow = tuple(rank for rank, seconds in said.items() if seconds > share * usual)
        worst = max(said, key=lambda rank: said[rank])
        times = said[worst] / usual
        text = f"the same work takes rank {worst} {times:.2f} × the median of all; {share:g} × is slow"
        self._say("ddp.stragglers", "FAIL" if slow else "PASS", text, "straggler.rank", slow)

    def _work(self) -> float:
        """Return the seconds of a matrix product: the best of many, which other work disturbs least."""
        import torch

        side = 4096 if self.device.kind == "cuda" else 192
        a = torch.ones(side, side, device=self.device.torch)
        best = float("inf")
        for _ in range(12):
            self._wait()
            began = time.perf_counter()
            a @ a
            self._wait()
            best = min(best, time.perf_counter() - began)
        return best

    def _slow_pairs(self) -> None:
        """Let each node exchange with each other one alone, in rounds whose pairs share no node."""
        if not 1 < self._nodes <= MOST_NODES:
            return
        mine: dict[str, Any] = {}
        for number, pairs in enumerate(rounds(self._nodes)):
            mine |= {f"{a}-{b}": (self._pair(a, b), number) for a, b in pairs if self._node in (a, b)}
        said = self._gathered("pairs", mine)
        if said is None:
            return
        rates: dict[tuple[int, int], float] = {}
        of_round = {}
        for one in said.values():
            for name, (rate, number) in one.items():
                a, b = map(int, name.split("-"))
                if rate is not None:
                    rates[a, b] = min(rate, rates.get((a, b), rate))
                of_round[a, b] = number
        self._judge_pairs(rates, of_round)

    def _pair(self, a: int, b: int) -> float | None:
        """Return GB/s of one pair; None on ranks that only wait. The first rank of each node exchanges."""
        import torch
        import torch.distributed as dist

        self._watch.enter(f"the barrier before nodes {a} and {b}")
        dist.barrier()
        self._watch.leave()
        if int(os.environ.get("LOCAL_RANK", "0")):
            return None
        count = ELEMENTS[self._key][1]
        data, best = torch.ones(count, device=self.device.torch), float("inf")
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        peer = (b if self._node == a else a) * local
        for _ in range(self._iterations):
            self._watch.enter(f"send and receive of nodes {a} and {b}")
            began = time.perf_counter()
            steps = [dist.send, dist.recv] if self._node == a else [dist.recv, dist.send]
            for step in steps:
                step(data, peer)
            self._wait()
            best = min(best, (time.perf_counter() - began) / 2)
            self._watch.leave()
        return count * 4 / best / 1e9

    def _judge_pairs(self, rates: dict[tuple[int, int], float], of_round: dict[tuple[int, int], int]) -> None:
        share = SLOW[self.device.kind]
        seen = suspects(rates, share) if self._nodes >= MIN_NODES else None
        slow = {*seen.links, *seen.open} if seen else set()
        slow |= {pair for pair in rates if seen and set(pair) & set(seen.nodes)}
        for (a, b), number in sorted(of_round.items()):
            rate = rates.get((a, b))
            verdict = "UNKNOWN" if rate is None else "FAIL" if (a, b) in slow else "PASS"
            self._pairs.append({"a": a, "b": b, "busbw": rate, "verdict": verdict, "round": number})
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        least = min(rates, key=lambda pair: rates[pair])
        text = f"{len(rates)} pairs of nodes; the slowest, {least}, gives {rates[least]:.4g} GB/s"
        if seen is None:
            self._say("ddp.pairs", "PASS", f"{text}; with {self._nodes} nodes none can stand apart", "", ())
            return
        text += f", the faster half {seen.usual:.4g}; below {share:g} of that is slow"
        if seen.nodes:
            ranks = tuple(node * local for node in seen.nodes)
            self._say(
                "ddp.pairs",
                "FAIL",
                f"node of {listed(ranks)} is slow with all others; {text}",
                "straggler.rank",
                ranks,
            )
        elif seen.links:
            a, b = seen.links[0]
            ranks = tuple(sorted({n * local for link in seen.links for n in link}))
            words = (
                f"the link of ranks {a * local} and {b * local} is slow, and each is fast with others; {text}"
            )
            self._say("ddp.pairs", "FAIL", words, "link.slow", ranks)
        elif seen.open:
            self._say(
                "ddp.pairs", "UNKNOWN", f"slow pairs that no single node or link explains; {text}", "", ()
            )
        else:
            self._say("ddp.pairs", "PASS", text, "", ())

    # -- telling -------------------------------------------------------------------------------------------
    def _gathered(self, name: str, own: Any) -> dict[int, Any] | None:
        """Tell rank 0; return on rank 0 what every rank told. Raises RuntimeError when one tells nothing."""
        self._watch.tell(f"result/{name}/{self.rank}", own)
        if self.rank:
            return None
        found = {}
        for rank in range(self.ranks):
            found[rank] = self._watch.told(f"result/{name}/{rank}", TELL_SECONDS)
            if found[rank] is None:
                raise RuntimeError(f"rank {rank} told nothing of {name} within {TELL_SECONDS:.0f} s")
        return found

    def _say(self, id_: str, verdict: Verdict, text: str, cause: str, ranks: tuple[int, ...]) -> None:
        named = cause if verdict in ("FAIL", "WARN") else None
        self._emitter.say(Check(id=id_, tag="DDP", verdict=verdict, text=text, cause=named, ranks=ranks))

    def _wait(self) -> None:
        if self.device.kind == "cuda":
            import torch

            torch.cuda.synchronize()


def _as_nccl_tests(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as nccl-tests' JSON has it: time in µs, bandwidths in GB/s."""
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
