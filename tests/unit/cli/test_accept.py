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
        ["--nodes"],
        ["--ddp", "--print-manifests"],
        ["--nodes", "--device", "cpu", "--label", "--force"],
    ],
)
def test_what_cannot_be_launched_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: bad usage says what was expected, and makes nothing."""
    assert typed("accept", *words) == 64
    assert "harness:" in capsys.readouterr().err


def test_gpus_need_an_image_with_cuda(capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: asked for before there is a cluster, because the worker image built here has no CUDA."""
    assert typed("accept", "--nodes") == 64
    assert "an image whose PyTorch supports CUDA" in (stderr := capsys.readouterr().err)
    assert "--image IMAGE" in stderr
