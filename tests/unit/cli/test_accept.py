"""`harness accept` refuses what it cannot launch."""

from __future__ import annotations

import pytest

from harness.cli.main import main


def typed(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--nodes", "--ddp"],
        ["--nodes", "--replicas", "3"],
        ["--nodes", "--device", "tpu"],
        ["--nodes", "--selector", "pool"],
        ["--nodes", "--label"],
        ["--nodes", "--busbw-limit", "1"],
        ["--screen", "--limits", "pyproject.toml"],
        ["--nodes", "--limits", "not/there.toml"],
        ["--nodes", "--limits", "pyproject.toml"],
    ],
)
def test_what_cannot_be_launched_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: bad usage says what was expected, and makes nothing."""
    assert typed("accept", *words) == 64
    assert "harness:" in capsys.readouterr().err
