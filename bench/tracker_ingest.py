"""Rows per second that the tracker acknowledges, relative to bare SQLite inserts with the same durability.

Both take the same rows into the same tables, 100 in each commit, WAL and synchronous=FULL, on the same disk.
The server is paid for HTTP, JSON, the key and the sender of each request; it gains by committing the requests
of several ranks together. A ratio, so that it means the same on another machine.

    python bench/tracker_ingest.py [--ranks 8] [--rows 100000]     prints one JSON document
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/integration")]

from tracker_server import KEY, Server, create  # noqa: E402

from harness.tracker.schema import TABLES  # noqa: E402
from harness.tracker.store import connect  # noqa: E402

BATCH = 100
"""Rows of one request: what the client sends at most."""


def bare(path: Path, rows: int) -> float:
    """Seconds of a loop of inserts, one transaction for each batch."""
    db = connect(path)
    db.executescript(TABLES)
    start = time.perf_counter()
    for first in range(0, rows, BATCH):
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "INSERT INTO points (run_id, name, step, time_ms, value) VALUES (1, 'loss/node0', ?, 1, ?)",
            [(step, step / 8) for step in range(first, first + BATCH)],
        )
        db.execute("COMMIT")
    seconds = time.perf_counter() - start
    db.close()
    return seconds


def rank_sends(rank: int, host: str, run: int, rows: int) -> None:
    """One rank: a request after the other on one connection, as the client does."""
    connection = http.client.HTTPConnection(host)
    headers = {"Authorization": f"Bearer {KEY}", "X-Run-Id": str(run), "X-Run-Name": f"node{rank}"}
    for first in range(0, rows, BATCH):
        lines = [
            json.dumps({"time": 1, "step": step, "data": {f"loss/node{rank}": step / 8}})
            for step in range(first, first + BATCH)
        ]
        connection.request("POST", "/ingest/metrics", "\n".join(lines).encode(), headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"rank {rank}: {answer.status}")


def served(folder: Path, ranks: int, rows: int) -> float:
    """Seconds until every row of every rank was acknowledged."""
    server = Server(folder).start()
    try:
        with server.client() as client, ProcessPoolExecutor(ranks) as pool:
            run, host = create(client)["runId"], server.url.removeprefix("http://")
            list(pool.map(time.sleep, [0.1] * ranks))
            start = time.perf_counter()
            list(pool.map(rank_sends, range(ranks), [host] * ranks, [run] * ranks, [rows // ranks] * ranks))
            return time.perf_counter() - start
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3, help="each of both, in turn; medians are printed")
    arguments = parser.parse_args()
    rows = arguments.rows - arguments.rows % (arguments.ranks * BATCH)
    pairs = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            pairs.append(
                (rows / bare(folder / "bare.db", rows), rows / served(folder, arguments.ranks, rows))
            )
    found = {
        "ranks": arguments.ranks,
        "rows": rows,
        "rounds": arguments.rounds,
        "bare_rows_per_second": round(median(inserted for inserted, _ in pairs)),
        "tracker_rows_per_second": round(median(acknowledged for _, acknowledged in pairs)),
        "ratio": round(median(acknowledged / inserted for inserted, acknowledged in pairs), 3),
        "ratios": [round(acknowledged / inserted, 3) for inserted, acknowledged in pairs],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
