"""Ranks that write 10 MB/s each: does the harness lose a line, what does it need, does its memory grow?

A server of its own process speaks HTTP on loopback as the API server does for `GET …/log?follow=true`, and
sends each pod's log at the given rate, in chunks. This process follows them with the harness's own parts
(LaunchObserver, BundleWriter, redaction with a known secret). When all is read, each file is compared with
what was sent, byte for byte.

    python bench/logs.py [--seconds 60] [--pods 8] [--rate 10] [--chunk 32768]   prints the table's row
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

LINES = 400
"""Lines of a block. A block has about 51 KB."""
PORT_LINE = "port "


def block(number: int, pod: int) -> bytes:
    """Return a block of a pod's log: its lines have times of one second, and numbers."""
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(1_795_237_210 + number)).encode()
    return _TEMPLATE.replace(b"@@@@@@@@@@@@@@@@@@@", when).replace(
        b"########", b"%04d%04d" % (pod, number % 10_000)
    )


_TEMPLATE = b"".join(
    b"@@@@@@@@@@@@@@@@@@@.%09dZ ######## step %d loss 1.2345 lr 1.0e-05 | %s\n" % (line, line, b"tokens " * 8)
    for line in range(LINES)
)


def sent(pod: int, total: int) -> Iterator[bytes]:
    """Yield the blocks of a pod's log, `total` bytes or a little more."""
    for number in itertools.count():
        if number * len(_TEMPLATE) >= total:
            return
        yield block(number, pod)


class _Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    total, rate, chunk = 0, 0.0, 0

    def do_GET(self) -> None:
        """Answer with the log of the pod that the path names, in chunks, not faster than `rate`."""
        pod = int(urlsplit(self.path).path.split("/")[6].removeprefix("p"))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        start, done = time.monotonic(), 0
        for data in sent(pod, self.total):
            parts = [data[at : at + self.chunk] for at in range(0, len(data), self.chunk)]
            self.wfile.write(b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts))
            done += len(data)
            time.sleep(max(0.0, start + done / self.rate - time.monotonic()))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve(total: int, rate: float, chunk: int) -> None:
    """Serve until this process is ended. Prints the port."""
    _Api.total, _Api.rate, _Api.chunk = total, rate, chunk
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    print(f"{PORT_LINE}{server.server_port}", flush=True)
    server.serve_forever()


def rss() -> float:
    """Return this process's resident memory in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def follow(port: int, folder: Path, pods: int, total: int) -> tuple[float, float, list[float], list[str]]:
    """Follow all logs to their end. Return wall and processor seconds, memory by second, and the gaps."""
    import yaml

    from harness.core.deadlines import Budget
    from harness.core.kubernetes import Kube
    from harness.evidence import BundleWriter, Redactor
    from harness.evidence.schema.bundle import Expected, Launch, Manifest, Observation
    from harness.observe.logs import Life
    from harness.observe.observer import LaunchObserver

    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    writer = BundleWriter(folder, "nonce", Redactor(["a-secret-of-the-launch"]))
    expected = Expected(num_nodes=pods, ranks=pods, run_id="r", project="p")
    writer.manifest(Manifest(nonce="nonce", started_at="2026-11-21T05:00:00Z", expected=expected))
    launch = Launch(launcher="konduktor", namespace="n", kind="JobSet")
    observer = LaunchObserver(Kube(folder / "kubeconfig"), launch, (), writer, Budget(600))
    memory, over = [rss()], threading.Event()
    lines, left = LINES * sum(1 for _ in sent(0, total)), dict.fromkeys(range(pods), 0)
    write = observer._logs._write

    def tell(pod: int, state: dict[str, dict[str, int]]) -> None:
        status = {"containerStatuses": [{"name": "c", "state": state, "restartCount": 0}]}
        metadata = {"name": f"p{pod}", "namespace": "n", "uid": f"u{pod}"}
        seen = Observation(received_at="t", type="MODIFIED", object={"metadata": metadata, "status": status})
        observer._logs.observe("pod", seen)

    def counted(life: Life, text: str) -> None:
        """Write, and let the container end with its last line."""
        write(life, text)
        pod = int(life.pod.removeprefix("p"))
        left[pod] += text.count("\n")
        if left[pod] == lines:
            tell(pod, {"terminated": {"exitCode": 0}})

    def watch() -> None:
        while not over.wait(1):
            memory.append(rss())

    observer._logs._write = counted
    threading.Thread(target=watch, daemon=True).start()
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    for pod in range(pods):
        tell(pod, {"running": {}})
    observer._logs.finish(3600)
    took, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_SELF)
    over.set()
    writer.close()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, used, memory, observer._gaps


def differs(path: Path, pod: int, total: int) -> str:
    """Return where a log in the bundle differs from what was sent, or ""."""
    with path.open("rb") as file:
        for number, data in enumerate(sent(pod, total)):
            if file.read(len(data)) != data:
                return f"{path.name} differs in block {number}"
        return f"{path.name} has more than was sent" if file.read(1) else ""


def main() -> None:
    """Serve, follow, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--pods", type=int, default=8)
    parser.add_argument("--rate", type=float, default=10, help="MB/s of each pod")
    parser.add_argument("--chunk", type=int, default=32 * 1024, help="bytes of an HTTP chunk")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    total = int(given.seconds * given.rate * 1e6)
    if given.serve:
        serve(total, given.rate * 1e6, given.chunk)
        return
    own = ("--seconds", "--rate", "--chunk")
    words = [word for name in own for word in (name, str(getattr(given, name[2:])))]
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().removeprefix(PORT_LINE))
        with tempfile.TemporaryDirectory() as folder:
            took, used, memory, gaps = follow(port, Path(folder), given.pods, total)
            lost = [differs(Path(folder) / f"logs/p{pod}-c.log", pod, total) for pod in range(given.pods)]
    finally:
        server.kill()
        server.wait()
    wrong = [*gaps, *filter(None, lost)]
    first, last = memory[min(2, len(memory) - 1)], max(memory[2:] or memory)
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors\n")
    print(
        "| pods × MB/s × s | bytes of a chunk | MB | seconds "
        "| s of a processor for 100 MB | MB of memory | lost |"
    )
    print("|---|---|---|---|---|---|---|")
    size = given.pods * total / 1e6
    print(
        f"| {given.pods} × {given.rate:g} × {given.seconds:g} | {given.chunk} | {size:.0f} | {took:.1f} ",
        end="",
    )
    print(f"| {100 * used / size:.2f} | {first:.0f} → {last:.0f} | {'; '.join(wrong) or 'nothing'} |")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
