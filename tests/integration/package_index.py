"""A package index on loopback that serves the JSON API of package indexes, and wheels for it."""

from __future__ import annotations

import json
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def wheel(folder: Path, name: str, version: str, needs: str = "", tag: str = "py3-none-any") -> Path:
    """Write a wheel with one module, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path, info = folder / f"{name}-{version}-{tag}.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        required = f"Requires-Dist: {needs}\n" if needs else ""
        packed.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}"
        )
        packed.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        packed.writestr(f"{info}/RECORD", "")
    return path


@contextmanager
def serving(root: Path, about: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the URL of an index that serves the files in the folders in `root`. `about` maps file names to
    additional API fields, such as "yanked" or "upload-time".
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place = root / self.path.strip("/")
            if place.is_file():
                self._answer(200, "application/octet-stream", place.read_bytes())
            elif place.is_dir():
                files = [
                    {"filename": file.name, "url": f"/{place.name}/{file.name}", "hashes": {}}
                    | dict(about.get(file.name, {}))
                    for file in sorted(place.iterdir())
                ]
                page = {"meta": {"api-version": "1.1"}, "name": place.name, "files": files}
                self._answer(200, "application/vnd.pypi.simple.v1+json", json.dumps(page).encode())
            else:
                self._answer(404, "text/plain", b"")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "max-age=600, public")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
