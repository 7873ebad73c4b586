"""Store a job's code on a volume, and serve it to pods that start later.

  GET /READY → the current tree as an archive (stored_archive.py), or 404 if there is no tree

READY is the digest of the job's first code. Anyone who can read the job can read this digest. The code comes
from the mounted Secrets in FOLDER, or from a sync into this container.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from harness.torchrun_sync.pod.entries import Refused
from harness.torchrun_sync.pod.files import volume_problem
from harness.torchrun_sync.pod.store import Store
from harness.torchrun_sync.pod.stored_archive import contents_of, fetch_code, packed

POLL_SECONDS = 1.0
PIECE = 1 << 20


def contents(store: Store, record: dict[str, Any]) -> Iterator[bytes]:
    """Yield each distinct file content of a tree in pieces, in the order of contents_of()."""
    paths = {entry["sha256"]: entry["path"] for entry in record["entries"] if entry["kind"] == "file"}
    for sha, _ in contents_of(record["entries"]):
        with open(os.path.join(store.trees, record["name"], paths[sha]), "rb") as file:
            while piece := file.read(PIECE):
                yield piece


class Server(ThreadingHTTPServer):
    """An HTTP server that serves the current tree of a store."""

    daemon_threads = True

    def __init__(self, port: int, store: Store, ready: str) -> None:
        super().__init__(("", port), Handler)
        self.store, self.ready = store, ready


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        record = self.server.store.current()
        if self.path != f"/{self.server.ready}" or "entries" not in record:
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        head = {name: record[name] for name in ("entries", "tree", "generation")}
        for piece in packed(head, contents(self.server.store, record)):
            self.wfile.write(piece)
        print(f"code {record['tree'][:12]} sent to {self.client_address[0]}", flush=True)

    def log_message(self, *_: object) -> None:
        """Do not log requests, because each waiting pod sends two requests per second."""


def main(arguments: Sequence[str]) -> int:
    """Run the server with the arguments FOLDER ROOT READY PORT, until SIGTERM."""
    folder, root, ready, port = arguments
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    store = Store(root)
    server = Server(int(port), store, ready)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"waiting for the code {ready[:12]}", flush=True)
    last = ""
    while True:
        try:
            message = fetch_code(store, folder, ready)
        except (Refused, OSError) as error:
            message = f"the code cannot be stored: {volume_problem(error, os.path.dirname(root)) or error}"
        if message and message != last:
            print(message, flush=True)
            last = message
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
