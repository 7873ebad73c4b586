"""A tracker with example runs, for the tests of its pages and for docs/images. All data is sent through the
API."""

from __future__ import annotations

import json
import math
import random
import struct
import zlib
from dataclasses import dataclass

import httpx
from tracker_server import Server

PROJECT = "llm-pretrain"
HOSTILE = "<script>alert(1)</script>"
RANKS = 4


@dataclass(frozen=True)
class Demo:
    run: int
    other: int
    large: int
    hostile: int


def png(width: int, height: int, seed: int) -> bytes:
    """Return a small generated picture."""
    rows = b"".join(
        b"\0"
        + bytes(
            part
            for x in range(width)
            for part in ((x * 9 + seed * 40) % 256, (y * 11) % 256, (x * y + seed * 60) % 256)
        )
        for y in range(height)
    )

    def part(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")
    )


def created(client: httpx.Client, name: str, external_id: str, rank: int, **fields: object) -> int:
    konduktor = {
        "rank": str(rank),
        "job_name": f"{external_id.removesuffix('-typo')}-x7",
        "num_nodes": str(RANKS),
        "node_name": f"gpu-{rank}",
    }
    system = {"os_info": {"hostname": f"pretrain-x7-{rank}"}, "konduktor": konduktor}
    body = {
        "runName": name,
        "projectName": PROJECT,
        "externalId": external_id,
        "systemMetadata": json.dumps(system),
        **fields,
    }
    answer = client.post("/api/runs/create", json=body)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["runId"])


def send(
    client: httpx.Client, run: int, kind: str, lines: list[dict[str, object]], who: str = "node0"
) -> None:
    headers = {"X-Run-Id": str(run), "X-Run-Name": who, "X-Project-Name": PROJECT}
    text = "\n".join(json.dumps(line) for line in lines)
    answer = client.post(f"/ingest/{kind}", content=text, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text


def upload(client: httpx.Client, run: int, name: str, file: str, body: bytes, kind: str, step: int) -> None:
    entry = {
        "fileName": file,
        "fileSize": len(body),
        "fileType": file.rpartition(".")[2],
        "time": 1_790_000_000_000,
        "logName": name,
        "step": step,
        "caption": f"step {step}: {name}",
    }
    address = client.post("/files", json={"files": [entry]}, headers={"X-Run-Id": str(run)}).json()[name][0][
        file
    ]
    assert (
        httpx.put(address, content=body, headers={"Content-Type": kind}, trust_env=False).status_code == 200
    )


def training(client: httpx.Client, run: int, steps: int, seed: int, floor: float) -> None:
    """Log the curves of four ranks: the loss of each rank, and the learning rate and throughput of all."""
    dice = random.Random(seed)
    for rank in range(RANKS):
        lines: list[dict[str, object]] = []
        for step in range(steps):
            loss = floor + 8 * math.exp(-step / 120) + dice.gauss(0, 0.08) + 0.03 * rank
            data: dict[str, float] = {
                f"train/loss/node{rank}": loss,
                f"sys/gpu.{rank}.utilization": dice.gauss(88, 4),
            }
            if rank == 0:
                data["train/lr"] = 3e-4 * min(1, step / 40) * 0.5 * (1 + math.cos(math.pi * step / steps))
                data["train/grad_norm"] = 1.5 * math.exp(dice.gauss(0, 0.35)) + (60 if step == 333 else 0)
                if step % 20 == 19:
                    data["eval/loss"] = floor + 0.1 + 8 * math.exp(-step / 120)
            data[f"train/tokens_per_second/node{rank}"] = dice.gauss(41_000 - 900 * rank, 350)
            lines.append({"time": 1_790_000_000_000 + step * 900, "step": step, "data": data})
        send(client, run, "metrics", lines, f"node{rank}")


def fill(server: Server, large: int = 1_000_000) -> Demo:
    """Create runs with all kinds of data: curves, logs, images, a rank in a separate run, a million points
    and hostile names."""
    with server.client() as client:
        config = {
            "model": {"layers": 24, "width": 2048},
            "lr": 3e-4,
            "batch": 512,
            "data": "fineweb",
            "seed": 7,
        }
        run = 0
        for rank in range(RANKS):
            run = created(
                client,
                f"node{rank}" if rank else "baseline",
                "pretrain-7",
                rank,
                config=json.dumps({**config, f"rank{rank}": {"pid": 40 + rank}}),
                tags=["baseline", "konduktor"],
            )
        training(client, run, 600, 1, 2.1)
        send(
            client,
            run,
            "metrics",
            [{"time": 1_790_000_600_000, "step": 600, "data": {"train/grad_norm": math.nan}}],
        )
        messages = [
            "loading shards",
            "compiled in 41.2 s",
            "step {} loss {:.3f}",
            "checkpoint saved: step {}",
        ]
        logs: list[dict[str, object]] = []
        for number in range(160):
            text = messages[2].format(number, 2.1 + 8 * math.exp(-number / 120))
            logs.append(
                {
                    "time": 1_790_000_000_000 + number * 900,
                    "message": text,
                    "lineNumber": number,
                    "logType": "INFO",
                }
            )
        warning = "UserWarning: the gradient norm is 61.3, clipped to 1.0"
        logs.append({"time": 1_790_000_144_500, "message": warning, "lineNumber": 1, "logType": "ERROR"})
        send(client, run, "logs", logs)
        send(
            client,
            run,
            "logs",
            [{**one, "message": f"[rank1] {one['message']}"} for one in logs[-40:]],
            "node1",
        )
        for step in (100, 300, 500):
            upload(client, run, "samples/attention", f"{step}.png", png(48, 48, step), "image/png", step)
        upload(
            client, run, "checkpoint", "model.safetensors", b"\0" * 70_000, "application/octet-stream", 500
        )
        freq = [round(90 * math.exp(-(((i - 32) / 11) ** 2))) for i in range(64)]
        histogram = {
            "freq": freq,
            "maxFreq": max(freq),
            "bins": {"min": -0.4, "max": 0.4, "num": 64},
            "shape": "uniform",
        }
        table = {
            "col": [{"name": "prompt"}, {"name": "answer"}],
            "table": [["2 + 2", "4"], ["capital of Italy", "Rome"]],
        }
        rows: list[dict[str, object]] = [
            {
                "time": 1,
                "step": 500,
                "logName": "weights/attn",
                "dataType": "HISTOGRAM",
                "data": json.dumps(histogram),
            },
            {
                "time": 1,
                "step": 500,
                "logName": "samples/answers",
                "dataType": "TABLE",
                "data": json.dumps(table),
            },
            {
                "time": 1,
                "step": 500,
                "logName": "phase",
                "dataType": "string-series",
                "data": "warm-up is over",
            },
        ]
        send(client, run, "data", rows)
        alert = {"timestamp": 1, "level": "WARN", "title": "gradient norm", "body": "61.3 at step 333"}
        client.post("/api/runs/alert", json={"runId": run, "alert": alert})
        client.post(
            "/api/runs/notes/update", json={"runId": run, "notes": "The baseline of July: four nodes, BF16."}
        )
        other = created(
            client, "lower-lr", "pretrain-8", 0, config=json.dumps({**config, "lr": 1e-4, "seed": 8})
        )
        training(client, other, 600, 2, 2.35)
        client.post("/api/runs/status/update", json={"runId": other, "status": "COMPLETED"})
        created(client, "node3", "pretrain-7-typo", 3)
        long = created(client, "a million points", "million", 0)
        for begin in range(0, large, 100_000):
            lines: list[dict[str, object]] = [
                {
                    "time": step,
                    "step": step,
                    "data": {"loss": 1000 if step == 654_321 else math.sin(step / 9e4) + step % 7 / 50},
                }
                for step in range(begin, min(large, begin + 100_000))
            ]
            send(client, long, "metrics", lines)
        client.post("/api/runs/status/update", json={"runId": long, "status": "FAILED"})
        hostile = created(
            client,
            f"{HOSTILE}<img src=x onerror=alert(2)>",
            f"\"'{HOSTILE}",
            0,
            tags=[HOSTILE, '" onload="x'],
            config=json.dumps(
                {HOSTILE: f'"><b>{HOSTILE}', "deep": {"'": "</script>"}, "api_key": "not to be seen"}
            ),
        )
        data = {f"{HOSTILE}/node0": 1.0, "\"'><svg onload=alert(3)>": 2.0}
        send(client, hostile, "metrics", [{"time": 1, "step": 0, "data": data}], HOSTILE)
        line = {"time": 1, "message": f"</div>{HOSTILE}", "lineNumber": 1, "logType": "<x>"}
        send(client, hostile, "logs", [line], HOSTILE)
        cells = {"table": [[HOSTILE]]}
        strange = {"freq": [1, "x"], "bins": []}
        huge = {"freq": [10**400, math.inf, -1], "bins": {"min": {}, "max": None}}
        odd = {"freq": [0, 2], "bins": {"min": HOSTILE}}
        send(client, hostile, "data", [
            {"time": 1, "step": 0, "logName": HOSTILE, "dataType": "HISTOGRAM", "data": json.dumps(strange)},
            {"time": 1, "step": 0, "logName": "t", "dataType": "TABLE", "data": json.dumps(cells)},
            {"time": 1, "step": 0, "logName": "h", "dataType": "HISTOGRAM", "data": json.dumps(huge)},
            {"time": 1, "step": 0, "logName": "o", "dataType": "HISTOGRAM", "data": json.dumps(odd)},
            {"time": 1, "step": 0, "logName": "n", "dataType": "HISTOGRAM", "data": "[" * 5000},
            {"time": 1, "step": 0, "logName": "w", "dataType": "string-series", "data": HOSTILE},
            {"time": 1, "step": 0, "logName": "g", "dataType": HOSTILE, "data": "{"},
        ])  # fmt: skip
        page = b"<html><script>document.title = 'ran'</script></html>"
        upload(client, hostile, "page", f"{HOSTILE}.html", page, "text/html", 0)
        svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>document.title = "ran"</script></svg>'
        upload(client, hostile, "vector", "x.svg", svg, "image/svg+xml", 0)
        client.post(
            "/api/runs/alert", json={"runId": hostile, "alert": {"title": HOSTILE, "body": {"a": [3]}}}
        )
        client.post("/api/runs/notes/update", json={"runId": hostile, "notes": HOSTILE})
    return Demo(run, other, long, hostile)
