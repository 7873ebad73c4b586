"""The tracker under load, beside a bare SQLite loop and MLflow's server, in one run.

Points per second and the time of a request: senders, each with one connection and one request at a time, send
bodies that are made before. The bare loop inserts the same points with the same durability, one SQL row each,
with as many to a commit as a request has, and pays for no HTTP and no JSON. The senders alone, against a
server that only answers, say what the load itself costs. MLflow's server gets them by log-batch on SQLite.
Then, of the tracker alone: requests at half of the goal, reads meanwhile, memory, and how long the audit
takes. Ratios mean the same on another machine; absolute figures do not.

    python bench/tracker.py [--seconds 5] [--mlflow] [--million 10]     prints one JSON document
    python bench/tracker.py --table figures.json             prints the tables of docs/reference/tracker.md
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/integration"), str(ROOT / "bench")]

from bare_loop import bare  # noqa: E402
from machine import CALM, Others, cpu_seconds, machine, memory, quiet  # noqa: E402
from mlflow_server import MlflowServer  # noqa: E402
from tracker_bodies import mlflow_bodies, tracker_bodies  # noqa: E402
from tracker_load import load, percentiles  # noqa: E402
from tracker_server import KEY, Server, create  # noqa: E402
from tracker_table import table  # noqa: E402

from harness.evidence.io.redaction import Redactor  # noqa: E402
from harness.evidence.io.writer import BundleWriter  # noqa: E402
from harness.evidence.schema.point_rows import PointRows  # noqa: E402
from harness.tracker.client.audit import EmbeddedAudit, collect  # noqa: E402

SENDERS, SIZES = (1, 4, 16, 64), (100, 1000)
GOAL = 200_000
"""Points per second."""


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Server, int, int]]:
    """A tracker with a database of its own, its port and the id of a run."""
    folder.mkdir()
    server = Server(folder).start()
    try:
        with server.client() as client:
            yield server, int(server.url.rpartition(":")[2]), create(client)["runId"]
    finally:
        server.stop()


@contextmanager
def nothing() -> Iterator[int]:
    """A server that only answers, and its port: the most that the senders can reach on these cores."""
    command = [sys.executable, str(Path(__file__).with_name("tracker_nothing.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def matrix(folder: Path, seconds: float, with_mlflow: bool) -> list[dict[str, Any]]:
    """Each number of senders with each size: the bare loop before and after, the tracker, MLflow's server."""
    found = []
    mlflow = MlflowServer(folder).start() if with_mlflow else None
    try:
        for size in SIZES:
            for senders in SENDERS:
                quiet(CALM)
                before = bare(folder, size, seconds / 2)
                with serving(folder / f"tracker-{size}-{senders}") as (server, port, run):
                    before_cpu = cpu_seconds(server)
                    with Others(server) as others:
                        ours = load(port, tracker_bodies(run, senders, size), size, seconds)
                    used, held = cpu_seconds(server) - before_cpu, memory(server)
                assert not ours.refused
                with nothing() as port:
                    alone = load(port, tracker_bodies(run, senders, size), size, seconds / 2)
                loop = (before + bare(folder, size, seconds / 2)) / 2
                row: dict[str, Any] = {"size": size, "senders": senders, "others": others.share}
                row |= {"bare": round(loop), "tracker": ours.figures(), "memory": held}
                row["cpu_us_per_point"] = round(used * 1e6 / max(1, ours.points), 2)
                row["senders_alone"] = alone.figures()["points_per_second"]
                row["ratio"] = round(ours.points / ours.seconds / loop, 2)
                if mlflow is not None:
                    theirs = load(
                        mlflow.port, mlflow_bodies(_mlflow_run(mlflow), senders, size), size, seconds
                    )
                    row["mlflow"] = theirs.figures()
                found.append(row)
                print(json.dumps(row), file=sys.stderr)
    finally:
        if mlflow is not None:
            mlflow.kill()
    return found


def _mlflow_run(server: MlflowServer) -> str:
    run: str = server.ask("runs/create", {"experiment_id": "0"})["run"]["info"]["run_id"]
    return run


def half(folder: Path, seconds: float) -> list[dict[str, Any]]:
    """Requests at half of the goal, and reads meanwhile."""
    found = []
    for size in SIZES:
        for senders in SENDERS[1:]:
            with serving(folder / f"half-{size}-{senders}") as (server, port, run):
                bodies = tracker_bodies(run, senders, size)
                quiet(CALM)
                load(port, bodies, size, 1)
                with Others(server) as others:
                    with reading(server, run) as reads:
                        ours = load(port, bodies, size, seconds, GOAL / 2)
                    alone = load(port, bodies, size, seconds, GOAL / 2)
                row = {
                    "size": size,
                    "senders": senders,
                    "others": others.share,
                    "tracker": ours.figures(),
                    "alone": alone.figures(),
                }
                row["reads"] = {name: percentiles(times) for name, times in reads.items()}
            found.append(row)
            print(json.dumps(row), file=sys.stderr)
    return found


@contextmanager
def reading(server: Server, run: int) -> Iterator[dict[str, list[float]]]:
    """Read a series and a list of runs, ten times a second each, until the block ends."""
    over, times = threading.Event(), {"series": list[float](), "runs": list[float]()}
    paths = {
        "series": f"/api/runs/metrics?projectName=e2e&runId={run}&logName=loss/node0",
        "runs": "/api/runs/list?projectName=e2e",
    }

    def read(name: str) -> None:
        with server.client() as client:
            client.timeout = 60
            while not over.wait(0.1):
                began = time.perf_counter()
                client.get(paths[name]).raise_for_status()
                times[name].append(time.perf_counter() - began)

    threads = [threading.Thread(target=read, args=(name,)) for name in paths]
    for thread in threads:
        thread.start()
    try:
        yield times
    finally:
        over.set()
        for thread in threads:
            thread.join()


def audit(folder: Path, millions: list[int]) -> list[dict[str, Any]]:
    """Fill a tracker and read every row of it, with its sender."""
    found, size = [], 1000
    with serving(folder / "audit") as (server, port, run):
        bodies, there = tracker_bodies(run, 16, size), 0
        for million in sorted(millions):
            while there < million * 1_000_000:
                there += load(port, bodies, size, min(20, (million * 1e6 - there) / 2e5 + 0.1)).points
            with server.client() as client:
                client.timeout = 60
                reader = EmbeddedAudit(client)
                reader.runs(external_id="shared", project="e2e", job_name=None)
                row: dict[str, Any] = {"size": size}
                quiet(CALM)
                with Others(server) as others:
                    row["rows"], row["seconds"] = timed(reader.columns([run]))
                row["others"] = others.share
                row["bundle_seconds"] = collected(reader, folder / f"bundle-{million}", row["rows"])
                assert row["rows"] == there, f"{there} rows were acknowledged, the audit has {row['rows']}"
            row["memory"] = memory(server)
            row["disk_bytes_per_point"] = round(
                sum(f.stat().st_size for f in server.folder.glob("tracker.db*") if f.is_file()) / there, 1
            )
            found.append(row)
            print(json.dumps(row), file=sys.stderr)
    return found


def timed(columns: Iterator[PointRows]) -> tuple[int, float]:
    """Return how many rows there are, and the seconds that it took to get them all."""
    began = time.perf_counter()
    number = sum(map(len, columns))
    return number, round(time.perf_counter() - began, 2)


def collected(reader: EmbeddedAudit, bundle: Path, rows: int) -> float:
    """Return the seconds that it takes to read every row into an evidence bundle, as a launch does."""
    writer = BundleWriter(bundle, "bench", Redactor([KEY]))
    began = time.perf_counter()
    summary = collect(
        reader,
        external_id="shared",
        project="e2e",
        job_name=None,
        write=writer.tracker,
        write_points=writer.points,
    )
    took = time.perf_counter() - began
    writer.close()
    assert (summary.error, summary.points) == (None, rows)
    return round(took, 2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5, help="of each load (default 5)")
    parser.add_argument("--million", type=int, nargs="*", default=[1, 10], help="points of the audits")
    parser.add_argument(
        "--mlflow", action="store_true", help="beside MLflow's server, which is installed once"
    )
    parser.add_argument("--only", choices=["matrix", "half", "audit"], nargs="*")
    parser.add_argument("--table", type=Path, help="print the tables of earlier figures and measure nothing")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.table.read_text())))
        return
    parts: dict[str, Callable[[Path], Any]] = {
        "matrix": lambda folder: matrix(folder, arguments.seconds, arguments.mlflow),
        "half": lambda folder: half(folder, arguments.seconds),
        "audit": lambda folder: audit(folder, arguments.million),
    }
    found: dict[str, Any] = {"machine": machine(), "load_before": os.getloadavg()[0]}
    for name in arguments.only or parts:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = parts[name](Path(folder))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
