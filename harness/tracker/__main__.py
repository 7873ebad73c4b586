"""Serve the tracker until SIGTERM or SIGINT: `python3 -m harness.tracker`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from harness.tracker.server.app import Options, build
from harness.tracker.server.connections import Connection, raise_limit
from harness.tracker.storage.silence import HEARTBEAT_SECONDS

MAX_KEY_BYTES = 4096
KEEP_ALIVE_SECONDS = 75
"""Longer than any client keeps an idle connection. So no connection is closed just as a client uses it
again.
"""
SWITCH_SECONDS = 0.0005
"""How long a thread that reads may keep Python's lock while the event loop waits for it. With the 5 ms that
are Python's own, requests take several times as long while others read.
"""
LARGEST_FILE_MIB = 64
ALL_FILES_MIB = 1024


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="harness tracker serve", description="A Pluto-compatible tracker that keeps every raw row."
    )
    made.add_argument("--host", default="127.0.0.1", help="address to listen on")
    made.add_argument("--port", type=int, default=8080, help="0 takes a free one and prints it")
    made.add_argument("--db", type=Path, default=Path("tracker.db"), help="SQLite file, made if missing")
    made.add_argument("--key-file", type=Path, help="file with the API key (else env TRACKER_API_KEY)")
    made.add_argument("--public-url", default="", help="base of addresses in answers (else the Host header)")
    made.add_argument("--max-file-mib", type=int, default=LARGEST_FILE_MIB, help="one file (%(default)s)")
    made.add_argument(
        "--stale-seconds",
        type=float,
        default=HEARTBEAT_SECONDS,
        help="a running run without a sign of life for so long reads as FAILED; 0: never (%(default)s)",
    )
    made.add_argument("--max-files-mib", type=int, default=ALL_FILES_MIB, help="all files (%(default)s)")
    return made


def key_in(path: Path) -> str:
    """Return the key that a file holds. Raises OSError and ValueError.

    The image has no other package of the harness, and so not its reader of users' files.
    """
    with path.open("rb") as file:
        held = file.read(MAX_KEY_BYTES + 1)
    if len(held) > MAX_KEY_BYTES:
        raise ValueError(f"it has more than {MAX_KEY_BYTES} bytes")
    return held.decode().strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve. Returns 0 when a signal stopped it, 64 without a key, 2 when it could not serve."""
    arguments = parser().parse_args(argv)
    if arguments.key_file:
        try:
            key = key_in(arguments.key_file)
        except (OSError, ValueError) as error:
            print(
                f"--key-file {arguments.key_file}: a file with the key is expected: {error}", file=sys.stderr
            )
            return 64
    else:
        key = os.environ.get("TRACKER_API_KEY", "").strip()
    if not key or not key.isascii():
        print("no key: set TRACKER_API_KEY or give --key-file (ASCII, not empty)", file=sys.stderr)
        return 64
    app = build(
        Options(
            db=arguments.db,
            key=key,
            public_url=arguments.public_url,
            file_limit=arguments.max_file_mib << 20,
            files_limit=arguments.max_files_mib << 20,
            stale_seconds=arguments.stale_seconds,
        )
    )
    Connection.most = raise_limit()
    sys.setswitchinterval(SWITCH_SECONDS)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=arguments.host,
            port=arguments.port,
            access_log=False,
            http=Connection,
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=5,
        )
    )
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it again once it has stopped
    try:
        server.run()
    except KeyboardInterrupt:
        return 0
    return 0 if server.started else 2


if __name__ == "__main__":
    sys.exit(main())
