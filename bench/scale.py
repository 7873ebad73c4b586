"""A bundle of 512 ranks × 10 000 points: how long its verdict, its report and a comparison take.

Makes two such bundles as a launch does (BundleWriter, logs with ground-truth frames included), of synthetic
rows. In the second one a rank logged one other value, and the run lacks one point of another rank. Then each
command runs in a process of its own: seconds and peak memory of the whole process. The floors: every byte of
the bundle read once, and one JSON line for each row decoded once by msgspec. Chromium opens the report and
scrolls it to its end. Ratios mean the same on another machine, seconds do not.

    python bench/scale.py [--ranks 512] [--points 10000] [--folder DIR]   prints the tables
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/unit")]

import msgspec  # noqa: E402
from bundles import CONTAINER, NONCE, RUN_ID, Job, at, healthy  # noqa: E402

from harness.core.errors import HarnessError  # noqa: E402
from harness.evidence import BundleWriter, Redactor  # noqa: E402
from harness.evidence.schema.ground_truth import TruthEnd, TruthRow, TruthStart  # noqa: E402
from harness.evidence.schema.tracker import Point, TrackerSummary  # noqa: E402
from harness.workers.ground_truth import truth_frames  # noqa: E402
from tests.browser import Page  # noqa: E402

PER_NODE, METRICS, PER_REQUEST, PER_FRAME = 8, 4, 100, 30
NAMES = ("loss", "grad_norm", "lr", "tokens_per_second")
PLAIN = 500
"""Other lines of each pod."""
EPOCH_MS = 1_795_237_210_000
BIN = Path(sys.executable).parent
SAMPLE = 200_000
"""Rows that are decoded for the floor of lines. Its seconds are given for all rows."""


def values_of(rank: int, points: int, other: bool) -> array[float]:
    """Return the values of a rank, the same in each bundle but for one value of rank 3 in the `other`."""
    drawn = random.Random(rank)
    values = array("d", [drawn.gauss(2.0, 1.0) for _ in range(points)])
    values[2::METRICS] = array("d", [1e-5 * (1 + place) for place in range(len(values[2::METRICS]))])
    if other and rank == 3:
        values[points // 2] += 1.0
    return values


def rows_of(rank: int, values: array[float], first: int, last: int) -> Iterator[tuple[str, int, float, int]]:
    """Yield (metric, step, value, time_ms): each step has one point of each metric."""
    for place in range(first, min(last, len(values))):
        yield (
            f"rank{rank}/{NAMES[place % METRICS]}",
            place // METRICS,
            values[place],
            EPOCH_MS + place // METRICS,
        )


def make(path: Path, ranks: int, points: int, other: bool) -> None:
    """Write one bundle."""
    job = healthy(nodes=ranks // PER_NODE, per_node=PER_NODE, steps=1)
    every = [values_of(rank, points, other) for rank in range(ranks)]
    for rank, values in enumerate(every):
        digest = hashlib.sha256()
        for metric, step, value, _ in rows_of(rank, values, 0, points):
            digest.update(truth_frames.row_bytes(metric, step, value))
        job.truth[rank] = [TruthEnd(count=points, sha256=digest.hexdigest())]
    job.refresh()
    truth, job.truth, job.points = job.truth, {}, []
    logs, job.logs = job.logs, {}
    path.mkdir(parents=True)
    writer = BundleWriter(path, NONCE, Redactor())
    writer.manifest(job.manifest)
    for kind, seen in job.objects:
        writer.observe(kind, seen)
    for node, (pod, lines) in enumerate(logs.items()):
        with writer.log_file(pod, CONTAINER) as log:
            log.write("".join(f"{line}\n" for line in lines[:1]))
            for rank in range(node * PER_NODE, (node + 1) * PER_NODE):
                log.write("".join(frames(rank, every[rank])))
            for step in range(PLAIN):  # as many as the report shows, and more
                log.write(f"{at(6 + step / 10, True)} step {step} loss 1.2345 lr 1.0e-05 tokens/s 123456\n")
            log.write("".join(f"{line}\n" for line in lines[1:]))
    for rank, values in enumerate(every):
        start = TruthStart(attempt=f"a{rank}", time_ms=EPOCH_MS, pod=job.pod_name(rank // PER_NODE))
        rows = [
            TruthRow(metric=metric, step=step, value=value, time_ms=when)
            for metric, step, value, when in rows_of(rank, values, 0, points)
        ]
        writer.truths(rank, [start, *rows, *truth[rank]])
    tracked(writer, job, every, points, other)
    writer.close()


def frames(rank: int, values: array[float]) -> Iterator[str]:
    """Yield the log lines in which a rank says what it logged."""
    for number, first in enumerate(range(0, len(values), PER_FRAME)):
        rows = [
            [metric, step, value, when]
            for metric, step, value, when in rows_of(rank, values, first, first + PER_FRAME)
        ]
        payload = {"k": "rows", "r": rank, "a": f"a{rank}", "q": number, "n": first, "rows": rows}
        yield f"{at(6, True)} {truth_frames.encode(NONCE, payload)}\n"


def tracked(writer: BundleWriter, job: Job, every: list[array[float]], points: int, other: bool) -> None:
    """Write what the tracker has: the requests of all ranks take turns."""
    for run in job.runs:
        writer.tracker("runs", run)
    for attachment in job.attachments or []:
        writer.tracker("attachments", attachment)
    count = 0
    for first in range(0, points, PER_REQUEST):
        received = at(10 + first / 1000, True)
        for rank, values in enumerate(every):
            for metric, step, value, when in rows_of(rank, values, first, first + PER_REQUEST):
                if other and (rank, first, step) == (5, 0, 7) and metric.endswith("loss"):
                    continue
                count += 1
                writer.tracker(
                    "points",
                    Point(
                        run_id=1,
                        metric=metric,
                        step=step,
                        value=value,
                        time_ms=when,
                        received_at=received,
                        sender=f"node{rank // PER_NODE}-{rank % PER_NODE}",
                    ),
                )
    summary = {"source": "embedded", "fetched_at": at(45, True), "runs": 1, "attachments": len(every)}
    writer.tracker_summary(TrackerSummary.model_validate({**summary, "points": count}))


def run(words: list[str], folder: Path) -> tuple[float, float, float, int]:
    """Run a process. Return its wall and its processor seconds, its peak memory in MiB, and its exit code."""
    start = time.perf_counter()
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    actions = [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
    pid = os.posix_spawn(words[0], words, os.environ, file_actions=actions)
    os.close(output)
    _, status, usage = os.wait4(pid, 0)
    took, used = time.perf_counter() - start, usage.ru_utime + usage.ru_stime
    return took, used, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)


def floors(bundle: Path, rows: int) -> tuple[float, float]:
    """Return the seconds for reading every byte of the bundle, and for decoding a line for each row."""
    start = time.perf_counter()
    for path in sorted(bundle.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(1 << 20):
                    pass
    read = time.perf_counter() - start
    line = msgspec.json.encode(
        {
            "kind": "row",
            "metric": "rank17/loss",
            "step": 1234,
            "value": 1.7320508075688772,
            "time_ms": EPOCH_MS,
        }
    )
    decode = msgspec.json.Decoder().decode
    start = time.perf_counter()
    for _ in range(SAMPLE):
        decode(line)
    return read, (time.perf_counter() - start) * rows / SAMPLE


SCROLL = """new Promise(done => {
    const frames = []; let last = performance.now(), step = 0;
    const height = document.documentElement.scrollHeight;
    const next = () => {
        const now = performance.now(); frames.push(now - last); last = now;
        if (step++ > 40) return done([Math.max(...frames), height, document.querySelectorAll('*').length]);
        scrollTo(0, height * step / 40); requestAnimationFrame(next); };
    requestAnimationFrame(next); })"""


def browsed(report: Path) -> dict[str, Any]:
    """Open the report in Chromium and scroll it. Raises HarnessError where there is none."""
    with Page() as page:
        page.go("about:blank")
        start = time.perf_counter()
        page.open(report)
        opened = time.perf_counter() - start
        answer = page.call("Runtime.evaluate", expression=SCROLL, returnByValue=True, awaitPromise=True)
        slowest, height, elements = answer["result"]["value"]
        assert page.errors == []
    return {"opened": opened, "slowest": slowest / 1000, "height": height, "elements": elements}


def timed(what: Callable[[], object]) -> float:
    """Return the seconds that it takes."""
    start = time.perf_counter()
    what()
    return time.perf_counter() - start


def main() -> None:
    """Make the bundles, measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep the bundles there, and use those that are there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        a, b = folder / "20261121T050000Z-a", folder / "20261121T060000Z-b"
        for path, other in ((a, False), (b, True)):
            if not path.exists():
                took = timed(lambda path=path, other=other: make(path, given.ranks, given.points, other))
                print(f"{path.name}: written in {took:.0f} s", file=sys.stderr)
        measure(a, b, given.ranks * given.points, given.rounds, Path(temporary))


def measure(a: Path, b: Path, points: int, rounds: int, folder: Path) -> None:
    """Print the tables."""
    harness = str(BIN / "harness")
    commands = {
        "`harness judge A`": ([harness, "judge", str(a)], 0),
        "`harness judge B`": ([harness, "judge", str(b)], 1),
        "`harness report A`": ([harness, "report", str(a), "-o", str(folder / "a.html")], 0),
        "`harness report B`": ([harness, "report", str(b), "-o", str(folder / "b.html")], 0),
        "`harness diff A B`": ([harness, "diff", str(a), str(b)], 1),
    }
    size = sum(path.stat().st_size for path in a.rglob("*") if path.is_file())
    read, lines = (min(pair) for pair in zip(*(floors(a, 2 * points) for _ in range(rounds)), strict=True))
    print(f"{points} points of {RUN_ID}'s ranks, {size / 1e6:.0f} MB a bundle; ", end="")
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; the fastest of {rounds} rounds\n")
    print("| what | seconds | × bytes read once | of a processor | peak memory |\n|---|---|---|---|---|")
    print(f"| every byte of the bundle read once | {read:.2f} | 1.0 | | |")
    print(f"| a JSON line for each row decoded once by msgspec | {lines:.2f} | {lines / read:.1f} | | |")
    for name, (words, expected) in commands.items():
        runs = [run(words, folder) for _ in range(rounds)]
        assert {code for *_, code in runs} == {expected}, (folder / "output.txt").read_text()
        took, used = min(one[0] for one in runs), min(one[1] for one in runs)
        peak = max(one[2] for one in runs)
        print(f"| {name} | {took:.2f} | {took / read:.1f} | {used:.2f} s | {peak:.0f} MiB |", flush=True)
    try:
        seen = browsed(folder / "b.html")
    except HarnessError as error:
        print(f"\nno browser: {error}")
        return
    size = (folder / "b.html").stat().st_size
    print(
        f"\nB's report of {size / 1e6:.1f} MB ({seen['elements']} elements) is loaded by Chromium in ", end=""
    )
    print(
        f"{seen['opened']:.2f} s; while it is scrolled through its {seen['height']} pixels in 40 steps, ",
        end="",
    )
    print(f"the slowest frame takes {seen['slowest']:.2f} s.")


if __name__ == "__main__":
    main()
