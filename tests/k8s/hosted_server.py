"""A server with the API of hosted Pluto and nothing more: no attachments, writers, claims or failures.

    TRACKER_API_KEY=… python hosted_server.py HOST PORT DATABASE

The routes are those of the harness's own tracker, without what only that tracker has.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import uvicorn
from starlette.routing import Route

from harness.tracker.server.app import Options, build

OWN = ("/api/audit/", "/openapi.json")
"""Paths that hosted Pluto does not serve."""
HOSTED = ("/api/", "/ingest/", "/files", "/healthz")
"""Beginnings of the paths that it serves. `/healthz` is for the test that waits for this server."""


def main() -> None:
    host, port, database = sys.argv[1:]
    app = build(Options(db=Path(database), key=os.environ["TRACKER_API_KEY"]))
    served = [
        route
        for route in app.routes
        if isinstance(route, Route) and route.path.startswith(HOSTED) and not route.path.startswith(OWN)
    ]
    app.router.routes[:] = served
    uvicorn.run(app, host=host, port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
