"""Go's modules, downloaded while something else is waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.context import RunContext
from harness.provision import platforms
from harness.provision.source import versions
from harness.provision.source.plan import Plan
from harness.provision.source.prefetch import download_modules
from harness.provision.source.store import Store
from harness.settings import load


@pytest.fixture
def messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Go reaches nothing and has nothing in its cache."""
    monkeypatch.setenv("GOPROXY", "off")
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    return []


def download(cache: Path, messages: list[str]) -> None:
    settings = load().model_copy(update={"cache_dir": cache})
    download_modules(RunContext(settings=settings, progress=messages.append))


def test_what_fails_is_told_and_the_log_is_kept(tmp_path: Path, messages: list[str]) -> None:
    """Contract: `doctor --fix` goes on. The build will say what is wrong, with its cause."""
    download(tmp_path, messages)
    assert [line.partition(" (")[0] for line in messages] == [
        "Go modules: downloading in the background …",
        "Go modules: the download failed, so the build will download them",
    ]
    assert "GOPROXY=off" in (tmp_path / "source/logs/modules.log").read_text()


def test_nothing_is_downloaded_where_all_is_compiled(tmp_path: Path, messages: list[str]) -> None:
    plan = Plan(Store(tmp_path / "source"), versions.load(load()), platforms.here())
    for name in plan.modules:
        plan.programs(name).mkdir(parents=True)
    download(tmp_path, messages)
    assert messages == []
