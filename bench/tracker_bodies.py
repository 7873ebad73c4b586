"""The requests of bench/tracker.py, made before they are sent."""

from __future__ import annotations

import json

from tracker_server import KEY

BODIES = 8
"""Different bodies of a sender, sent in turn."""


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
