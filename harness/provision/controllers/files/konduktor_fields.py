"""A proxy in front of VictoriaLogs that maps the field names of `konduktor logs` to those of vlagent.

    python3 konduktor_fields.py --port 9428 --upstream 127.0.0.1:9429

konduktor queries the field names of an OpenTelemetry collector (`k8s.pod.name`). vlagent stores different
names (`kubernetes.pod_name`), which cannot be configured. The proxy changes only field names in the parameter
`query`, not quoted text. VictoriaLogs stores a log line that is a JSON object as separate fields. If none of
these fields is the message, the proxy returns the whole object as the message. The proxy runs in a pod, from
the tracker's image, and uses only the standard library.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlencode, urlsplit

FIELDS = {
    "k8s.namespace.name": "kubernetes.pod_namespace",
    "k8s.pod.name": "kubernetes.pod_name",
    "k8s.container.name": "kubernetes.container_name",
    "k8s.node.name": "kubernetes.pod_node_name",
}
SELECT = "/select/logsql/"
NO_MESSAGE = "missing _msg field"
"""The beginning of the message that VictoriaLogs returns for a log line without a message."""
CONNECT_SECONDS = 10
_OWN = ("_", "kubernetes.")
"""The prefixes of fields that are not in the log line, but that vlagent or VictoriaLogs adds."""
_QUOTED_OR_FIELD = re.compile(
    r'"(?:[^"\\]|\\.)*"|' + "|".join(rf"(?<![\w.]){re.escape(name)}(?=\s*:)" for name in FIELDS)
)


def with_stored_names(query: str) -> str:
    """Return a LogsQL query in which konduktor's field names are replaced by those that vlagent stores."""
    return _QUOTED_OR_FIELD.sub(lambda match: FIELDS.get(match[0], match[0]), query)


def with_message(line: bytes) -> bytes:
    """Return one line of a query result.

    If the line has no message, all fields of the log line, as a JSON object, become the message.
    """
    if NO_MESSAGE.encode() not in line:
        return line
    try:
        row = json.loads(line)
    except ValueError:
        return line
    if not isinstance(row, dict) or not str(row.get("_msg")).startswith(NO_MESSAGE):
        return line
    fields = {name: value for name, value in row.items() if not name.startswith(_OWN)}
    return json.dumps({**row, "_msg": json.dumps(fields)}).encode() + b"\n"


class Proxy(BaseHTTPRequestHandler):
    """Handles one request.

    The connection is closed at the end of the response, because the length of a `tail` response is not known
    in advance.
    """

    upstream: str

    def do_GET(self) -> None:
        """Forward the request, and stream the response line by line."""
        address = urlsplit(self.path)
        parameters = [
            (name, with_stored_names(value) if name == "query" else value)
            for name, value in parse_qsl(address.query, keep_blank_values=True)
        ]
        connection = HTTPConnection(self.upstream, timeout=CONNECT_SECONDS)
        try:
            connection.connect()
            # Reads have no timeout, because a `tail` response is silent while its job prints nothing.
            connection.sock.settimeout(None)
            connection.request(
                "GET", f"{address.path}?{urlencode(parameters)}" if parameters else address.path
            )
            response = connection.getresponse()
        except (OSError, HTTPException) as error:
            self.send_error(502, f"VictoriaLogs: {type(error).__name__}: {error}")
            connection.close()
            return
        try:
            self.send_response(response.status)
            self.send_header("Content-Type", response.getheader("Content-Type", "text/plain"))
            self.end_headers()
            for part in self._parts(response, address.path):
                self.wfile.write(part)
                self.wfile.flush()
        except (OSError, HTTPException) as error:  # konduktor closed the connection, or VictoriaLogs exited.
            self.log_message("%s: %s: %s", address.path, type(error).__name__, error)
        finally:
            connection.close()

    @staticmethod
    def _parts(response: HTTPResponse, path: str) -> Iterator[bytes]:
        if path.startswith(SELECT) and response.status == 200:
            yield from map(with_message, response)
        else:
            yield response.read()

    def log_request(self, *_: object) -> None:
        """Do not log individual requests, so that the log contains only failures."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Translate konduktor's field names for VictoriaLogs.")
    parser.add_argument("--port", type=int, default=9428)
    parser.add_argument("--upstream", default="127.0.0.1:9429")
    arguments = parser.parse_args()
    Proxy.upstream = arguments.upstream
    ThreadingHTTPServer(("", arguments.port), Proxy).serve_forever()


if __name__ == "__main__":
    main()
