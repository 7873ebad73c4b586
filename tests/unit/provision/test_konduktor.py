"""harness.provision.konduktor: which environment a lock means, and when one counts as made."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.context import RunContext
from harness.core.errors import HarnessError
from harness.provision import konduktor
from harness.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(cache_dir=tmp_path / "cache")


def test_lock_pins_one_nightly_and_every_file_by_hash() -> None:
    text = konduktor.LOCK.read_text()
    assert re.search(r"^konduktor-nightly==0\.1\.0\.dev\d{14} ", text, re.M)
    requirements = [line for line in text.splitlines() if not line.startswith(" ")]
    assert all("==" in line and line.endswith("\\") for line in requirements)
    assert text.count("--hash=sha256:") >= len(requirements)


def test_the_lock_names_no_host() -> None:
    assert "://" not in konduktor.LOCK.read_text()


def test_the_lock_is_the_package_s_own() -> None:
    """An installed wheel has no checkout beside it."""
    assert konduktor.LOCK.parents[1] == Path(konduktor.__file__).parents[1]


def test_another_lock_is_another_environment(settings: Settings, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("konduktor-nightly==0.0.1\n")
    ours = konduktor.environment_dir(settings)
    assert re.fullmatch(r"konduktor-[0-9a-f]{12}", ours.name)
    assert ours.parent == settings.cache_dir
    assert konduktor.environment_dir(settings, other) != ours


def test_a_missing_lock_is_named(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"gone\.txt is missing"):
        konduktor.environment_dir(settings, tmp_path / "gone.txt")


def test_a_complete_environment_is_used_as_it_is(settings: Settings) -> None:
    home = konduktor.environment_dir(settings)
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").symlink_to("/bin/sh")
    (home / konduktor.MARKER).write_text("x")
    messages: list[str] = []
    assert (
        konduktor.konduktor_bin(RunContext(settings=settings, progress=messages.append))
        == home / "bin" / "konduktor"
    )
    assert messages == []


def test_one_that_was_cut_off_is_made_again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the marker nothing in it is trusted; with the marker written last, a failure leaves none."""
    home = konduktor.environment_dir(settings)
    home.mkdir(parents=True)
    (home / "half").touch()

    def install(home: Path) -> None:
        assert not (home / "half").exists()
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").symlink_to("/bin/sh")
        if not failing:
            (home / "bin" / "konduktor").touch()

    monkeypatch.setattr(konduktor, "_install", install)
    failing = True
    with pytest.raises(HarnessError, match="has no bin/konduktor"):
        konduktor.konduktor_bin(RunContext(settings=settings, progress=lambda _: None))
    (home / "half").touch()
    failing = False
    assert konduktor.konduktor_bin(RunContext(settings=settings, progress=lambda _: None)).is_file()
    assert (home / konduktor.MARKER).is_file()
