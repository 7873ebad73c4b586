"""Frames: what goes in comes out, however it is cut, and nothing else does."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.torchrun_sync.pod.frames import HEADER, MAGIC, MAX_PAYLOAD, BadFrame, Frames, pack

SENT = st.lists(st.tuples(st.sampled_from(["hello", "data", "entries"]), st.binary(max_size=200)), max_size=5)


def taken(pieces: list[bytes]) -> list[tuple[str, bytes]]:
    frames, found = Frames(), []
    for piece in pieces:
        frames.feed(piece)
        while (frame := frames.next_frame()) is not None:
            found.append(frame)
    return found


@given(sent=SENT, cuts=st.lists(st.integers(0, 1500), max_size=6))
def test_frames_come_whole_from_pieces_of_any_size(sent: list[tuple[str, bytes]], cuts: list[int]) -> None:
    """Contract: where a stream is cut into pieces makes no difference."""
    stream = b"".join(pack(kind, payload) for kind, payload in sent)
    at = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(at)]
    assert taken(pieces) == sent


@given(sent=SENT.filter(bool), at=st.integers(0), flip=st.integers(1, 255))
def test_a_frame_with_a_corrupt_byte_is_never_accepted(
    sent: list[tuple[str, bytes]], at: int, flip: int
) -> None:
    """Contract: frames before the wrong byte come; a payload or length with a wrong byte does not."""
    stream = bytearray(b"".join(pack(kind, payload) for kind, payload in sent))
    kinds = [range(start + 4, start + 12) for start in _starts(sent)]
    at %= len(stream)
    stream[at] ^= flip
    found: list[bytes] = []
    frames = Frames()
    frames.feed(bytes(stream))
    try:
        while (frame := frames.next_frame()) is not None:
            found.append(frame[1])
    except BadFrame:
        pass
    else:
        # A longer length waits for bytes that never come. A kind's own bytes are for the receiver to refuse.
        assert len(found) < len(sent) or any(at in kind for kind in kinds)
    assert found == [payload for _, payload in sent[: len(found)]]


def _starts(sent: list[tuple[str, bytes]]) -> list[int]:
    starts, at = [], 0
    for _, payload in sent:
        starts.append(at)
        at += HEADER.size + len(payload)
    return starts


def test_a_length_that_would_fill_the_memory_is_refused() -> None:
    """Contract: at once, not when so many bytes have come."""
    frames = Frames()
    frames.feed(HEADER.pack(MAGIC, b"data", MAX_PAYLOAD + 1, bytes(32)))
    with pytest.raises(BadFrame, match="at most"):
        frames.next_frame()


def test_text_before_the_first_frame_is_shown() -> None:
    """Contract: a container that prints at its start is recognised by what it printed."""
    frames = Frames()
    frames.feed(b"Welcome to this image\n")
    with pytest.raises(BadFrame, match="Welcome to this image"):
        frames.next_frame()
