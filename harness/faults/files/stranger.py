"""Write to a launch's run from a pod of another job: `stranger.py rows|file|status`.

With `rows`, the Pluto client attaches to the run and logs metrics at steps that the ranks also use. With
`file` and `status`, the process sends one request without attaching to the run.
"""

import json
import os
import sys
import urllib.request
from typing import Any

STEPS = 6


def rows() -> None:
    """Log metrics with Pluto's client."""
    import pluto

    run = pluto.init(name="stranger")
    for step in range(STEPS):
        run.log({"loss/node0": 0.5}, step=step)
    run.finish()


def ask(path: str, body: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
    """Send a request to the tracker as Pluto's client does, and return the JSON response."""
    data = None if body is None else json.dumps(body).encode()
    key = {"Authorization": f"Bearer {os.environ['PLUTO_API_KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["PLUTO_URL_API"] + path, data, {**key, **headers})  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        document: dict[str, Any] = json.load(answer)
        return document


def number() -> int:
    """Return the id that the tracker gave to the launch's run."""
    query = f"externalId={os.environ['PLUTO_RUN_ID']}&projectName={os.environ['PLUTO_PROJECT']}"
    return int(ask(f"/api/audit/runs?{query}")["runs"][0]["runId"])


def file() -> None:
    entry = {"fileName": "a.txt", "fileSize": 1, "fileType": "txt", "time": 1, "logName": "notes", "step": 0}
    ask("/files", {"files": [entry]}, **{"X-Run-Id": str(number()), "X-Run-Name": "stranger"})


def status() -> None:
    ask("/api/runs/status/update", {"runId": number(), "status": "COMPLETED"}, **{"X-Run-Name": "stranger"})


if __name__ == "__main__":
    {"rows": rows, "file": file, "status": status}[sys.argv[1]]()
