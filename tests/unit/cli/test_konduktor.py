"""`harness konduktor`: which arguments are konduktor's, and what it needs."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from harness.cli.main import app, main


def parsed(*words: str) -> dict[str, object]:
    """Return the parameters of `harness konduktor WORDS`, without running it."""
    command = typer.main.get_command(app).commands["konduktor"]  # type: ignore[attr-defined]
    return dict(command.make_context("konduktor", list(words)).params)


def test_every_word_from_konduktors_command_on_is_konduktors() -> None:
    found = parsed(
        "--namespace", "e2e-1", "logs", "job", "-N", "1", "--no-follow", "--cluster-name", "x", "-q"
    )
    assert found["namespace"] == "e2e-1"
    assert found["cluster_name"] is None
    assert found["quiet"] is False
    assert found["arguments"] == ["logs", "job", "-N", "1", "--no-follow", "--cluster-name", "x", "-q"]


def test_without_a_cluster_it_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["konduktor", "--cluster-name", "mine", "logs", "job"])
    assert end.value.code == 64
    assert "the harness has no cluster mine" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "nothing was made"
