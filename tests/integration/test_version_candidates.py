"""The versions in a package index on loopback, as listed by `harness matrix` and `harness bisect`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from package_index import serving, wheel

from harness.context import RunContext
from harness.core.errors import UsageError
from harness.core.replacements import parse
from harness.provision.replaced_wheels import change
from harness.settings import load
from harness.versions.candidates import Candidate, candidates, locked

PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
ABOUT = {
    "client-1.0-py3-none-any.whl": {"upload-time": "2026-01-02T03:04:05Z"},
    "client-1.2-py3-none-any.whl": {"yanked": "broken"},
    "client-1.5-py3-none-any.whl": {"requires-python": ">=4"},
}
NIGHTLIES = ["0.1.0.dev20260930104512", "0.1.0.dev20261001104526", "0.1.0.dev20261002104512"]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of an index with all kinds of versions."""
    root = tmp_path_factory.mktemp("index")
    for version in ("1.0", "1.1", "1.1+g1234", "1.2", "1.5", "1.9", "1.10", "2.0rc1", "1.9.post1"):
        wheel(root / "client", "client", version)
    wheel(root / "client", "client", "1.6", tag="cp313-cp313-win_amd64")
    (root / "client" / "client-1.7.tar.gz").write_bytes(b"")
    for version in NIGHTLIES:
        wheel(root / "konduktor-nightly", "konduktor_nightly", version)
    with serving(root, ABOUT) as url:
        yield url


@pytest.fixture
def context(index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunContext:
    """Return a context whose uv reads the index."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", index)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    return RunContext(settings=load(cache_dir=tmp_path / "cache"), progress=print)


def versions(found: list[Candidate]) -> list[str]:
    return [one.version for one in found]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (">=0", ["1.0", "1.1", "1.1+g1234", "1.9", "1.9.post1", "1.10"]),
        ("latest", ["1.10"]),
        ("<1.9", ["1.0", "1.1", "1.1+g1234"]),
        (">=2.0rc0", ["2.0rc1"]),
        (">=1.10rc1", ["1.10", "2.0rc1"]),
        (">1.10", ["2.0rc1"]),
        ("1.1", ["1.1+g1234"]),
        ("1.2", ["1.2"]),
        ("==1.9.*", ["1.9", "1.9.post1"]),
    ],
)
def test_a_range_has_the_versions_that_can_be_installed(
    context: RunContext, spec: str, expected: list[str]
) -> None:
    """Contract: versions are in PEP 440 order. Yanked versions are included only by exact version, and
    pre-releases only if the range names one or contains nothing else. Versions for another Python or
    platform, or without a wheel, are omitted.
    """
    assert versions(candidates("client", spec, context)) == expected


def test_version_has_its_date_and_newest_are_chosen(context: RunContext) -> None:
    found = candidates("Client", "<=1.1", context)
    assert found[0].released == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert found[1].released is None
    assert versions(candidates("client", ">=1.0", context, newest=2)) == ["1.9.post1", "1.10"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (">=0.1.0.dev20261001", NIGHTLIES[1:]),
        (">0.1.0.dev20261001", NIGHTLIES[2:]),
        ("<=0.1.0.dev20261001", NIGHTLIES[:2]),
        ("<0.1.0.dev20261001", NIGHTLIES[:1]),
        ("0.1.0.dev20261001", NIGHTLIES[1:2]),
        ("latest", NIGHTLIES[2:]),
    ],
)
def test_a_day_stands_for_the_nightlies_of_that_day(
    context: RunContext, spec: str, expected: list[str]
) -> None:
    assert versions(candidates("konduktor", spec, context)) == expected


@pytest.mark.parametrize(("name", "spec"), [("client", ">=3"), ("client", "0.5"), ("absent", "latest")])
def test_a_range_without_members_is_one_sentence(context: RunContext, name: str, spec: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: the package index has no version"):
        candidates(name, spec, context)


@pytest.mark.parametrize(
    ("spec", "near"),
    [
        ("0.1.0.dev20260101", "version is 0.1.0.dev20260930104512"),
        (">=0.1.0.dev20261003", "version is 0.1.0.dev20261002104512"),
        ("0.1.0.dev20261001104527", f"versions are {NIGHTLIES[1]} and {NIGHTLIES[2]}"),
    ],
)
def test_a_day_without_a_nightly_has_neighbours(context: RunContext, spec: str, near: str) -> None:
    """Reported as rust-lang/cargo-bisect-rustc#350: the user has no way to know which days have a build."""
    with pytest.raises(UsageError) as raised:
        candidates("konduktor", spec, context)
    assert raised.value.hint == f"the nearest {near}"


def test_range_before_release_has_no_nightlies_of_it(context: RunContext) -> None:
    """Reported as astral-sh/uv#13190: by PEP 440, 0.1.0.dev1 is lower than 0.1.0, but not in <0.1.0."""
    with pytest.raises(UsageError) as raised:
        candidates("konduktor", "<0.1.0", context)
    assert raised.value.hint == (
        f"<0.1.0 excludes pre-releases of 0.1.0; to include them, write <={NIGHTLIES[2]}"
    )
    assert versions(candidates("konduktor", f"<={NIGHTLIES[2]}", context)) == NIGHTLIES


def test_index_that_is_not_reached_is_not_empty_range(
    context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(UsageError, match="the package index cannot be read"):
        candidates("client", "latest", context)


def test_version_that_was_published_moment_ago_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: uv's cached copy of the index does not hide a version that was just published."""
    wheel(tmp_path / "index" / "client", "client", "1.0")
    with serving(tmp_path / "index", {}) as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        context = RunContext(settings=load(cache_dir=tmp_path / "cache"), progress=print)
        assert versions(candidates("client", ">=0", context)) == ["1.0"]
        wheel(tmp_path / "index" / "client", "client", "1.1")
        assert versions(candidates("client", "latest", context)) == ["1.1"]
        assert versions(candidates("client", ">=0", context)) == ["1.0", "1.1"]


def test_all_versions_are_found_without_a_cache(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: an index that uv does not cache does not shorten the list."""
    monkeypatch.setenv("UV_NO_CACHE", "1")
    assert versions(candidates("client", "<1.9", context)) == ["1.0", "1.1", "1.1+g1234"]


def test_wheel_is_identified_as_in_evidence_of_launch(context: RunContext, tmp_path: Path) -> None:
    """Contract: the version and the digest equal those that the launch records, even for a local version."""
    path, lock = wheel(tmp_path, "client", "3.0+g1234"), tmp_path / "lock.txt"
    lock.write_text("client==1.0\n")
    (one,) = candidates("client", str(path), context)
    assert (one.label, one.spec) == (str(path), str(path))
    (launched,) = change([parse("client", one.spec)], lock, ["--python-version", "3.13"], context).replaced
    assert (one.version, one.digest) == (launched.version, launched.digest)


def test_the_locked_version_needs_no_replacement() -> None:
    assert (locked("konduktor").spec, locked("pluto").package) == ("", "pluto-ml")
    with pytest.raises(UsageError, match="the lock file does not contain absent"):
        locked("absent")
