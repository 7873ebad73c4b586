"""A job knows its nonce, so it can sign frames that no worker writes. They do not stop the recording."""

from __future__ import annotations

import base64
import hashlib
import hmac
import zlib
from types import ModuleType

import pytest

from harness.evidence.io.ground_truth import TruthCollector
from harness.evidence.schema import processes
from harness.workers.acceptance import frames as acceptance_frames
from harness.workers.ground_truth import truth_frames
from harness.workers.netcheck import frames as netcheck_frames
from harness.workers.recorder import digest_lines

NONCE = "n0nce"
DEEP = b"[" * 1_100 + b"]" * 1_100
"""JSON that fits into one line and is nested more deeply than Python's parser permits."""


def signed(body: str) -> str:
    return f"{body} {hmac.new(NONCE.encode(), body.encode(), 'sha256').hexdigest()[:32]}"


def diagnosis(module: ModuleType, document: bytes) -> list[str]:
    """Return the lines of a diagnosis with this document."""
    packed = base64.b64encode(zlib.compress(document, 9)).decode()
    name = hashlib.sha256(packed.encode()).hexdigest()[:16]
    chunks = [packed[at : at + 3800] for at in range(0, len(packed), 3800)]
    return [
        module.MARK + signed(f"{name} {number}/{len(chunks)} {chunk}")
        for number, chunk in enumerate(chunks, 1)
    ]


@pytest.mark.parametrize("payload", [DEEP, b"not JSON", b'"text"', b'{"q": 0}'])
def test_a_signed_frame_with_a_strange_payload_is_skipped(payload: bytes) -> None:
    body = base64.b64encode(payload).decode()
    collector = TruthCollector(NONCE)
    collector.feed(f"@truth1 {signed(body)}")
    assert collector.result() == {}
    assert list(processes.decode(NONCE, f"{truth_frames.PROCESS_MARK}{signed(body)}", "pod-0")) == []


def test_a_summary_that_is_nested_too_deeply_is_invalid() -> None:
    body = base64.b64encode(zlib.compress(DEEP)).decode()
    with pytest.raises(ValueError, match="recursion"):
        digest_lines.decode_summary([body])


@pytest.mark.parametrize("module", [netcheck_frames, acceptance_frames])
def test_a_diagnosis_is_unpacked_up_to_a_limit(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a log of 10 MB could unpack to 10 GB in the memory of the harness."""
    collector = module.Collector(NONCE)
    assert [*map(collector.feed, diagnosis(module, DEEP))][-1] is None
    document = b'{"a": "' + b"x" * 100_000 + b'"}'
    monkeypatch.setattr(module, "MAX_JSON", len(document))
    assert [*map(collector.feed, diagnosis(module, document))][-1] == {"a": "x" * 100_000}
    monkeypatch.setattr(module, "MAX_JSON", len(document) - 1)
    assert [*map(module.Collector(NONCE).feed, diagnosis(module, document))][-1] is None
