"""The tracker under load, beside a bare SQLite loop and MLflow's server, in one run.

Points per second and the time of a request: senders, each with one connection and one request at a time, send
bodies that are made before. The bare loop inserts the same points with the same durability, one SQL row each,
with as many to a commit as a request has, and pays for no HTTP and no JSON. MLflow's server gets them by
log-batch on SQLite. Then, of the tracker alone: requests at half of the goal, reads meanwhile, memory, and
how long the audit takes. Ratios mean the same on another machine; absolute figures do not.

    python bench/tracker.py [--seconds 5] [--mlflow] [--million 10]     prints one JSON document
    python bench/tracker.py --table figures.json                        prints its tables, for docs/tracker.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/integration")]

from mlflow_server import MlflowServer  # noqa: E402
from tracker_server import KEY, Server, create  # noqa: E402

from harness.evidence.point_columns import PointColumns  # noqa: E402
from harness.evidence.redaction import Redactor  # noqa: E402
from harness.evidence.writer import BundleWriter  # noqa: E402
from harness.tracker.audit import EmbeddedAudit, collect  # noqa: E402
from harness.tracker.store import connect  # noqa: E402

SENDERS, SIZES = (1, 4, 16, 64), (100, 1000)
GOAL = 200_000
"""Points per second."""
BODIES = 8
"""Different bodies of a sender, sent in turn."""
ROWS = """
CREATE TABLE points (
    id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL, name TEXT NOT NULL, step INTEGER NOT NULL,
    time_ms INTEGER NOT NULL, value REAL
);
CREATE INDEX points_series ON points (run_id, name, step);
"""


@dataclass
class Sender:
    """One connection: sends a request, waits for its answer, sends the next one when it is due."""

    there: socket.socket
    requests: list[bytes]
    sent: int = 0
    due: float = 0.0
    began: float = 0.0
    left: memoryview | None = None
    answer: bytearray = field(default_factory=bytearray)
    refused: bool = False
    gone: bool = False
    """Whether the server closed the connection."""


@dataclass
class Load:
    """What came of a load. Seconds of each request are from when it was due, so waiting counts."""

    points: int
    seconds: float
    latencies: list[float]
    refused: int = 0

    def figures(self) -> dict[str, float]:
        refused = {"refused": self.refused} if self.refused else {}
        rate = round(self.points / self.seconds)
        return {"points_per_second": rate, **percentiles(self.latencies), **refused}


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return p50 and p99 in milliseconds, and how many there were."""
    ordered = sorted(seconds)
    at = {
        name: ordered[int((len(ordered) - 1) * part)] * 1000 for name, part in (("p50", 0.5), ("p99", 0.99))
    }
    return {**{name: round(value, 1) for name, value in at.items()}, "requests": len(ordered)}


def load(port: int, bodies: list[list[bytes]], size: int, seconds: float, rate: float | None = None) -> Load:
    """Send for some seconds, as fast as answers come, or so many points per second over all senders."""
    chosen, senders = selectors.DefaultSelector(), []
    for requests in bodies:
        senders.append(Sender(_connected(port), requests))
        chosen.register(senders[-1].there, selectors.EVENT_READ, senders[-1])
    every = size * len(senders) / rate if rate else 0.0
    start = time.perf_counter()
    for at, sender in enumerate(senders):
        sender.due = start + every * at / len(senders)
    waiting, busy, latencies, refused = list(senders), 0, list[float](), 0
    end = start + seconds
    while True:
        now = time.perf_counter()
        if now < end:
            for sender in [one for one in waiting if one.due <= now]:
                waiting.remove(sender)
                sender.began = sender.due if rate else now
                sender.left = memoryview(sender.requests[sender.sent % len(sender.requests)])
                sender.sent += 1
                busy += 1
                _send(chosen, sender)
        elif not busy:
            break
        pause = max(0.0, min((one.due for one in waiting), default=end) - now) if now < end else 1.0
        for key, mask in chosen.select(min(pause, 0.05) if waiting else 1.0):
            one: Sender = key.data
            if mask & selectors.EVENT_WRITE:
                _send(chosen, one)
            if mask & selectors.EVENT_READ and _answered(one):
                done = time.perf_counter()
                latencies.append(done - one.began)
                refused += one.refused
                if one.gone:
                    chosen.unregister(one.there)
                    one.there.close()
                    one.there, one.gone, one.left = _connected(port), False, None
                    chosen.register(one.there, selectors.EVENT_READ, one)
                one.due = max(one.due + every, done) if rate is None else one.due + every
                waiting.append(one)
                busy -= 1
    took = time.perf_counter() - start
    for one in senders:
        one.there.close()
    return Load(size * (len(latencies) - refused), took, latencies, refused)


def _connected(port: int) -> socket.socket:
    there = socket.create_connection(("127.0.0.1", port))
    there.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    there.setblocking(False)
    return there


def _send(chosen: selectors.BaseSelector, sender: Sender) -> None:
    assert sender.left is not None
    with suppress(BlockingIOError, ConnectionResetError, BrokenPipeError):
        sender.left = sender.left[sender.there.send(sender.left) :]
    more = selectors.EVENT_WRITE if sender.left else 0
    chosen.modify(sender.there, selectors.EVENT_READ | more, sender)


def _answered(sender: Sender) -> bool:
    """Take what came. Return whether the answer is whole, and note whether it is another than 200."""
    try:
        part = sender.there.recv(65536)
    except ConnectionResetError:
        part = b""
    if not part:
        sender.refused, sender.gone = True, True
        sender.answer.clear()
        return True
    sender.answer += part
    head, found, body = bytes(sender.answer).partition(b"\r\n\r\n")
    if not found:
        return False
    length = re.search(rb"(?i)content-length: (\d+)", head)
    if length is None or len(body) < int(length[1]):
        return False
    sender.refused = b" 200 " not in head[:16]
    sender.answer.clear()
    return True


def tracker_bodies(run: int, senders: int, size: int) -> list[list[bytes]]:
    """Return the requests of each sender: lines as Pluto's client writes them."""
    found = []
    for rank in range(senders):
        requests = []
        for number in range(BODIES):
            lines = (
                json.dumps(
                    {"time": 1_700_000_000_000 + step, "step": step, "data": {f"loss/node{rank}": step / 7}}
                )
                for step in range(number * size, (number + 1) * size)
            )
            headers = f"X-Run-Id: {run}\r\nX-Run-Name: node{rank}\r\nX-Project-Name: e2e\r\nX-Api-Key: {KEY}"
            requests.append(_request("/ingest/metrics", "\n".join(lines).encode(), headers))
        found.append(requests)
    return found


def mlflow_bodies(run: str, senders: int, size: int) -> list[list[bytes]]:
    found = []
    for rank in range(senders):
        requests = []
        for number in range(BODIES):
            metrics = [
                {
                    "key": f"loss/node{rank}",
                    "value": step / 7,
                    "timestamp": 1_700_000_000_000 + step,
                    "step": step,
                }
                for step in range(number * size, (number + 1) * size)
            ]
            body = json.dumps({"run_id": run, "metrics": metrics}).encode()
            requests.append(
                _request("/api/2.0/mlflow/runs/log-batch", body, "Content-Type: application/json")
            )
        found.append(requests)
    return found


def _request(path: str, body: bytes, headers: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n{headers}\r\n\r\n"
    return head.encode() + body


def bare(folder: Path, size: int, seconds: float) -> float:
    """Points per second of a loop of inserts, `size` to a commit."""
    path = folder / f"bare-{size}-{time.monotonic_ns()}.db"
    db = connect(path)
    db.executescript(ROWS)
    start, first = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            "INSERT INTO points (run_id, name, step, time_ms, value) VALUES (1, 'loss/node0', ?, 1, ?)",
            [(step, step / 7) for step in range(first, first + size)],
        )
        db.execute("COMMIT")
        first += size
    took = time.perf_counter() - start
    db.close()
    for left in folder.glob(path.name + "*"):
        left.unlink()
    return first / took


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


def cpu_seconds(server: Server) -> float:
    """Return the processor's time that the server took, which other work on the machine changes least."""
    words = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def memory(server: Server) -> dict[str, int]:
    """Return MiB that the server holds now, and the most it held."""
    text = Path(f"/proc/{server.pid}/status").read_text()
    found = {name: re.search(rf"{name}:\s+(\d+) kB", text) for name in ("VmRSS", "VmHWM")}
    return {name: int(match[1]) // 1024 for name, match in found.items() if match}


def matrix(folder: Path, seconds: float, with_mlflow: bool) -> list[dict[str, Any]]:
    """Each number of senders with each size: the bare loop before and after, the tracker, MLflow's server."""
    found = []
    mlflow = MlflowServer(folder).start() if with_mlflow else None
    try:
        for size in SIZES:
            for senders in SENDERS:
                before = bare(folder, size, seconds / 2)
                with serving(folder / f"tracker-{size}-{senders}") as (server, port, run):
                    before_cpu = cpu_seconds(server)
                    ours = load(port, tracker_bodies(run, senders, size), size, seconds)
                    used, held = cpu_seconds(server) - before_cpu, memory(server)
                assert not ours.refused
                loop = (before + bare(folder, size, seconds / 2)) / 2
                row: dict[str, Any] = {"size": size, "senders": senders, "load": os.getloadavg()[0]}
                row |= {"bare": round(loop), "tracker": ours.figures(), "memory": held}
                row["cpu_us_per_point"] = round(used * 1e6 / max(1, ours.points), 2)
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
                load(port, bodies, size, 1)
                with reading(server, run) as reads:
                    ours = load(port, bodies, size, seconds, GOAL / 2)
                row = {
                    "size": size,
                    "senders": senders,
                    "load": os.getloadavg()[0],
                    "tracker": ours.figures(),
                }
                row["reads"] = {name: percentiles(times) for name, times in reads.items()}
                quiet = load(port, bodies, size, seconds, GOAL / 2)
                row["alone"] = quiet.figures()
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
                row: dict[str, Any] = {"load": os.getloadavg()[0], "size": size}
                row["rows"], row["seconds"] = timed(reader.columns([run]))
                row["bundle_seconds"] = collected(reader, folder / f"bundle-{million}", row["rows"])
                assert row["rows"] == there, f"{there} rows were acknowledged, the audit has {row['rows']}"
            row["memory"] = memory(server)
            row["disk_bytes_per_point"] = round(
                sum(f.stat().st_size for f in server.folder.glob("tracker.db*") if f.is_file()) / there, 1
            )
            found.append(row)
            print(json.dumps(row), file=sys.stderr)
    return found


def timed(columns: Iterator[PointColumns]) -> tuple[int, float]:
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


def machine() -> str:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    processor = model[1] if model else platform.machine()
    return f"{os.cpu_count()} cores of {processor}, Python {platform.python_version()}"


def table(found: dict[str, Any]) -> str:
    """Return the figures as the tables of docs/tracker.md."""
    mlflow = any("mlflow" in row for row in found["matrix"])
    lines = [
        "| points a request | senders | tracker, points/s | p50, p99 (ms) | its processor time (µs a point) "
        "| bare loop, points/s | ratio |"
        + (" MLflow's server, points/s | p50, p99 (ms) |" if mlflow else "")
        + " load |",
        "|---" * (10 if mlflow else 8) + "|",
    ]
    for row in found["matrix"]:
        ours, theirs = row["tracker"], row.get("mlflow")
        cells = [
            row["size"],
            row["senders"],
            f"{ours['points_per_second']:,}",
            _both(ours),
            row["cpu_us_per_point"],
            f"{row['bare']:,}",
            row["ratio"],
        ]
        cells += [f"{theirs['points_per_second']:,}", _both(theirs)] if theirs else []
        lines.append(_cells([*cells, f"{row['load']:.1f}"]))
    lines += [
        "",
        "| points a request | senders | at 100 000 points/s: p50, p99 (ms) | the same while others read "
        "| a series of 2000 | list of runs | load |",
        "|---" * 7 + "|",
    ]
    for row in found["half"]:
        cells = [
            _both(row["alone"]),
            _both(row["tracker"]),
            _both(row["reads"]["series"]),
            _both(row["reads"]["runs"]),
        ]
        lines.append(_cells([row["size"], row["senders"], *cells, f"{row['load']:.1f}"]))
    lines += [
        "",
        "| rows | audit (s) | into a bundle (s) | most memory (MiB) | bytes on the disk a point | load |",
        "|---" * 6 + "|",
    ]
    for row in found["audit"]:
        bundle = row["bundle_seconds"]
        cells = [
            f"{row['rows']:,}",
            row["seconds"],
            bundle,
            row["memory"]["VmHWM"],
            row["disk_bytes_per_point"],
        ]
        lines.append(_cells([*cells, f"{row['load']:.1f}"]))
    return "\n".join(lines)


def _both(figures: dict[str, float]) -> str:
    refused = f"; {figures['refused']} of {figures['requests']} refused" if figures.get("refused") else ""
    return f"{figures['p50']}, {figures['p99']}{refused}"


def _cells(cells: list[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


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
