"""Hold the code of a job on a volume, and serve it to pods that come later.

    GET /READY → the whole (kept.py), packed from the tree that is current. 404 while there is none

READY is the digest of the job's first code: who may read the job knows it. The code comes from the parts in
FOLDER, or by a sync into this container.
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
from harness.torchrun_sync.pod.kept import come, contents_of, packed
from harness.torchrun_sync.pod.store import Store

LOOK_SECONDS = 1.0
PIECE = 1 << 20


def contents(store: Store, record: dict[str, Any]) -> Iterator[bytes]:
    """Yield the bytes of each content of a tree, in the order of a whole."""
    paths = {entry["sha256"]: entry["path"] for entry in record["entries"] if entry["kind"] == "file"}
    for sha, _ in contents_of(record["entries"]):
        with open(os.path.join(store.trees, record["name"], paths[sha]), "rb") as file:
            while piece := file.read(PIECE):
                yield piece


class Server(ThreadingHTTPServer):
    """Serves the tree of one store."""

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
        """Say nothing of requests that found nothing: pods ask twice a second."""


def main(arguments: Sequence[str]) -> int:
    """FOLDER ROOT READY PORT. Ends at SIGTERM."""
    folder, root, ready, port = arguments
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    store = Store(root)
    server = Server(int(port), store, ready)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"waiting for the code {ready[:12]}", flush=True)
    told = ""
    while True:
        try:
            came = come(store, folder, ready)
        except (Refused, OSError) as error:
            came = f"the code cannot be kept: {error}"
        if came and came != told:
            print(came, flush=True)
            told = came
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
