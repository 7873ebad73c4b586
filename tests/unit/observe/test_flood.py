"""A flood of lines is read in blocks. The result is that of a look at each line, and memory stays bounded."""

from __future__ import annotations

import http.server
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.core.kubernetes import Kube
from harness.evidence import BundleWriter, Redactor
from harness.evidence.schema.bundle import Observation
from harness.observe.duplicate_lines import KnownLines
from harness.observe.logs import Life, LogFollower

STAMPS = st.integers(0, 3).map(lambda n: b"2026-11-22T01:57:31.%dZ" % n)
LINES = st.one_of(
    st.builds(lambda stamp, text: stamp + text, STAMPS, st.sampled_from([b"", b" ", b" a", b" b c"])),
    st.sampled_from([b"", b"unable to retrieve container logs"]),
)
READS = st.lists(st.lists(st.lists(LINES, min_size=1, max_size=6), max_size=4), max_size=4)


@given(READS)
def test_blocks_are_known_as_lines_are(reads: list[list[list[bytes]]]) -> None:
    """Contract: the same lines are fresh, and the same is known afterwards, whatever was read before."""
    blocks, lines = KnownLines(), KnownLines()
    for read in reads:
        for known in (blocks, lines):
            known.again()
        for block in read:
            fresh = blocks.fresh(b"".join(line + b"\n" for line in block))
            assert fresh == b"".join(line + b"\n" for line in block if lines.new(line))
            assert vars(blocks) == vars(lines)


class _Flood(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    blocks = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for data in sent(self.blocks):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        pass


def sent(blocks: int) -> Iterator[bytes]:
    """Yield a log in blocks of 32 KB."""
    for number in range(blocks):
        at = b"2026-11-22T%02d:%02d:%02d" % (number // 3600, number // 60 % 60, number % 60)
        yield b"".join(b"%s.%03dZ step %03d %s\n" % (at, line, line, b"x" * 92) for line in range(256))


def peak(folder: Path, blocks: int) -> int:
    """Read such a log to its end, into a bundle. Return the most bytes that Python held meanwhile."""
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Flood", (_Flood,), {"blocks": blocks}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    gaps: list[str] = []
    with BundleWriter(folder, "n", Redactor(["a-secret"])).log_file("p", "c") as file:

        def write(_: Life, text: str) -> None:
            file.write(text)

        follower = LogFollower(Kube(folder / "kubeconfig"), write, gaps.append)
        status = {"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 0}}}]}
        metadata = {"name": "p", "namespace": "n", "uid": "1"}
        pod = {"metadata": metadata, "status": status}
        tracemalloc.start()
        try:
            follower.observe("pod", Observation(received_at="t", type="MODIFIED", object=pod))
            follower.finish(120)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            server.shutdown()
            server.server_close()
    assert gaps == []
    assert (folder / "logs/p-c.log").read_bytes() == b"".join(sent(blocks))
    return most


def test_memory_does_not_grow_with_a_log(tmp_path: Path) -> None:
    """Contract: no line is lost, and ten times as many bytes need no more memory: less than one log has."""
    peak(tmp_path / "first", 8)  # what is imported and compiled once
    small, large = peak(tmp_path / "small", 60), peak(tmp_path / "large", 600)
    assert large < small + 2_000_000
    assert large < sum(map(len, sent(600))) / 2
