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
from harness.tracker.storage.run_timeouts import HEARTBEAT_SECONDS

MAX_KEY_BYTES = 4096
KEEP_ALIVE_SECONDS = 75
"""The number of seconds for which the server keeps an idle HTTP connection open. The tracker's clients close
idle connections after a shorter time, so the server never closes a connection on which a client is about to
send a request."""
SWITCH_SECONDS = 0.0005
"""The interpreter's thread switch interval (sys.setswitchinterval), in seconds. After this time, a thread
that holds the GIL must release the GIL to a waiting thread, such as the event loop's thread. With Python's
default of 5 ms, requests take several times as long while other threads read the database."""
LARGEST_FILE_MIB = 64
ALL_FILES_MIB = 1024


def parser() -> argparse.ArgumentParser:
    """Return the parser for the command line of `python3 -m harness.tracker`."""
    result = argparse.ArgumentParser(
        prog="harness tracker serve", description="A Pluto-compatible tracker that stores every raw row."
    )
    result.add_argument("--host", default="127.0.0.1", help="address to listen on")
    result.add_argument(
        "--port", type=int, default=8080, help="port to listen on; 0 chooses a free port and prints it"
    )
    result.add_argument("--db", type=Path, default=Path("tracker.db"), help="SQLite file, created if missing")
    result.add_argument("--key-file", type=Path, help="file with the API key (default: env TRACKER_API_KEY)")
    result.add_argument(
        "--public-url", default="", help="base URL of links in responses (default: from the Host header)"
    )
    result.add_argument(
        "--max-file-mib",
        type=int,
        default=LARGEST_FILE_MIB,
        help="maximum size of a file, in MiB (default: %(default)s)",
    )
    result.add_argument(
        "--stale-seconds",
        type=float,
        default=HEARTBEAT_SECONDS,
        help="show a run as FAILED if it sends nothing for this many seconds; 0 means never"
        " (default: %(default)s)",
    )
    result.add_argument(
        "--max-files-mib",
        type=int,
        default=ALL_FILES_MIB,
        help="maximum total size of all files, in MiB (default: %(default)s)",
    )
    return result


def key_in(path: Path) -> str:
    """Return the API key stored in a file. Raises OSError or ValueError if the key cannot be read.

    harness.core.user_files is not used, because the tracker's image does not contain it.
    """
    with path.open("rb") as file:
        content = file.read(MAX_KEY_BYTES + 1)
    if len(content) > MAX_KEY_BYTES:
        raise ValueError(f"the file has more than {MAX_KEY_BYTES} bytes")
    return content.decode().strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the tracker until SIGTERM or SIGINT, and return the exit code.

    The exit code is 0 after a signal, 64 if there is no usable API key, and 2 if the server cannot start.
    """
    arguments = parser().parse_args(argv)
    if arguments.key_file:
        try:
            key = key_in(arguments.key_file)
        except (OSError, ValueError) as error:
            print(f"--key-file {arguments.key_file}: the key cannot be read: {error}", file=sys.stderr)
            return 64
    else:
        key = os.environ.get("TRACKER_API_KEY", "").strip()
    if not key or not key.isascii():
        print("no API key: set TRACKER_API_KEY or use --key-file (ASCII, not empty)", file=sys.stderr)
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
    Connection.max_connections = raise_limit()
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
    signal.signal(signal.SIGTERM, lambda *_: None)  # After its shutdown, server.run() raises SIGTERM again.
    try:
        server.run()
    except KeyboardInterrupt:
        return 0
    return 0 if server.started else 2


if __name__ == "__main__":
    sys.exit(main())
