"""The process group of torch.distributed that an admitted recorder reports."""

from __future__ import annotations

from typing import Any

import pytest

from harness.workers.recorder import digest_recording


def group(size: int) -> dict[str, Any]:
    return {"backend": "gloo", "rank": 0, "size": size}


@pytest.mark.parametrize(
    ("seen", "size"),
    [
        pytest.param([None, group(4), None], 4, id="destroyed at the end"),
        pytest.param([None, group(4), group(1)], 4, id="an evaluation of one rank after the training"),
        pytest.param([group(1), group(4)], 4, id="a download of one rank before the training"),
        pytest.param([group(1), None, group(1)], 1, id="alone"),
    ],
)
def test_the_largest_process_group_counts(
    monkeypatch: pytest.MonkeyPatch, seen: list[dict[str, Any] | None], size: int
) -> None:
    """Contract: a rank met the others, whatever it did alone before or after it."""
    monkeypatch.setattr(digest_recording, "process_group", iter([None, *seen]).__next__)
    lines = digest_recording.Lines("uid", 0, None)
    for _ in seen:
        lines.line({})
    assert lines.group == group(size)
