"""`harness bisect` with a package index on loopback: ends, skipped versions, interruption and the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from package_index import serving, wheel

from harness.context import RunContext
from harness.core.errors import UsageError
from harness.provision.images import replaced_image
from harness.settings import load
from harness.versions.bisect_commands import bisect
from harness.versions.bisect_report import headline, markdown
from harness.versions.bisect_result import Result, result_of
from harness.versions.bisect_search import End
from harness.versions.bisect_versions import Version, Versions, of_index
from harness.versions.bisection import Bisection
from harness.versions.cell import Cell, Outcome

RELEASED = ("0.9", "1.0.dev1", "1.0a1", "1.0", "1.1", "1.2", "1.10", "2.0.dev20260101", "2.0.dev20261231")
FIRST_BAD = "1.10"
CONFLICTING = "1.2"


class LocalLauncher:
    """Judges a version by its number, and can be interrupted before a launch."""

    def __init__(self, first_bad: str = FIRST_BAD, interrupted: int = 99) -> None:
        self.launched: list[str] = []
        self._bad = RELEASED[RELEASED.index(first_bad) :]
        self._interrupted = interrupted

    def launch(self, cell: Cell, attempt: int = 1) -> Outcome:
        if len(self.launched) == self._interrupted:
            raise KeyboardInterrupt
        (one,) = cell.candidates
        self.launched.append(one.version)
        bad = one.version in self._bad
        return Outcome(
            key="k",
            cell={one.package: one.version},
            attempt=attempt,
            result="FAIL" if bad else "PASS",
            exit_code=int(bad),
            cause="rank.crashed" if bad else None,
            explanation=f"see {Path.home()}/x, key {'mlpi_' + 'a1b2c3d4' * 4}" if bad else "",
            started_at="2026-01-01T00:00:00Z",
            seconds=1,
        )

    def stop(self) -> None:
        """Do nothing, because no launch is in progress."""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of an index with the versions of a client, one of which conflicts with the lock file."""
    root = tmp_path_factory.mktemp("index")
    for version in RELEASED:
        wheel(root / "client", "client", version, "library>=2" if version == CONFLICTING else "library>=1")
    for version in ("1.0", "2.0"):
        wheel(root / "library", "library", version)
    with serving(root, {}) as url:
        yield url


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def context(tmp_path: Path, cache: Path, index: str, monkeypatch: pytest.MonkeyPatch) -> RunContext:
    """Return a context whose worker image has a lock file with the client and its library."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", index)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    lock = tmp_path / "worker.txt"
    lock.write_text("client==1.0 \\\n    --hash=sha256:0\nlibrary==1.0 \\\n    --hash=sha256:0\n")
    monkeypatch.setattr(replaced_image, "WORKER", dataclasses.replace(replaced_image.WORKER, lock=lock))
    settings = load(cache_dir=cache, runs_dir=tmp_path / "runs")
    return RunContext(settings=settings, progress=lambda _: None)


def searched(
    versions: Versions, launcher: LocalLauncher, folder: Path, context: RunContext
) -> tuple[Bisection, End, Result]:
    folder.mkdir(exist_ok=True)
    bisection = Bisection(versions, launcher, folder, None, context, cluster=lambda _: nullcontext())
    end = bisection.run(0.01)
    return bisection, end, result_of(bisection, end, Path("jobs/multinode.yaml"), folder, context)


def test_first_bad_version_is_found_among_those_in_index(context: RunContext, tmp_path: Path) -> None:
    """Contract: versions are in PEP 440 order, a version that conflicts with the lock file is skipped, and
    the report contains neither secrets nor paths on this machine.
    """
    assert of_index("client", "1.0", "latest", context).versions[-1].id == "1.10"
    versions = of_index("client", "1.0a1", "2.0.dev20261231", context)
    assert [each.id for each in versions.versions] == ["1.0a1", "1.0", "1.1", "1.2", "1.10", *RELEASED[-2:]]
    _, end, result = searched(versions, LocalLauncher(), tmp_path / "search", context)
    assert (end.ending, result.bad and result.bad.version) == ("found", FIRST_BAD)
    assert result.suspects == [CONFLICTING, FIRST_BAD]
    assert "library>=2" in result.skipped[CONFLICTING]
    assert not result.certain
    assert result.changes is not None
    assert [each.name for each in result.changes.files] == ["client.py"]
    assert result.again == "harness run jobs/multinode.yaml --replace client=1.10"
    text = markdown(result, context.settings)
    assert "2 versions" in headline(result)
    assert "~/x" in text
    assert str(Path.home()) not in text
    assert "mlpi_a1b2" not in text


def test_an_interrupted_search_continues_and_repeats_no_launch(context: RunContext, tmp_path: Path) -> None:
    versions = Versions("client", tuple(Version(each, each, each) for each in RELEASED[3:]), good_known=True)
    first, second = LocalLauncher("2.0.dev20260101", interrupted=3), LocalLauncher("2.0.dev20260101")
    folder = tmp_path / "search"
    with pytest.raises(KeyboardInterrupt):
        searched(versions, first, folder, context)
    with (folder / "bisect.jsonl").open("a") as ledger:
        ledger.write('{"version": "1.1", "res')  # The line was truncated because the process was killed.
    _, _, result = searched(versions, second, folder, context)
    assert result.certain
    assert result.bad is not None
    assert result.bad.version == "2.0.dev20260101"
    assert result.launches == len(first.launched) + len(second.launched)
    assert first.launched == ["2.0.dev20261231", "1.0", "1.10"]
    assert set(second.launched) == {"1.10", "2.0.dev20260101"}


def test_newer_good_version_leads_to_fix(context: RunContext, tmp_path: Path) -> None:
    versions = of_index("client", "1.0", "0.9", context)
    assert versions.fix
    launcher = LocalLauncher()
    launcher._bad = RELEASED[:2]
    _, _, result = searched(versions, launcher, tmp_path / "search", context)
    assert result.certain
    assert (
        "client 1.0 is the first version without FAIL rank.crashed; 0.9 still has this failure"
        in headline(result)
    )


def test_index_that_fails_during_search_skips_no_version(
    context: RunContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: the search ends with an error, and does not claim that no version can be installed."""
    versions = of_index("client", "1.0", "1.10", context)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with pytest.raises(UsageError, match="the index cannot be read"):
        searched(versions, LocalLauncher(), tmp_path / "search", context)
    assert not (tmp_path / "search" / "bisect.jsonl").exists()


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("1.0", "9.9", "9.9"),
        ("1.0", "1.0.0", "the same version"),
        (">=1.0", "latest", "--good: expected a version, latest or locked"),
        ("1.0", ".", "--bad: expected a version|neither pyproject"),
    ],
)
def test_ends_that_are_not_two_versions_are_refused(
    context: RunContext, good: str, bad: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        of_index("client", good, bad, context)


def test_nightlies_with_contradicting_numbers_and_dates_are_named(
    tmp_path: Path, context: RunContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reported as skypilot-org/skypilot#3650: a nightly with two more digits outranked all later ones."""
    root = tmp_path / "nightlies"
    notes: list[str] = []
    days = {"20240530": "05-30", "20240531": "05-31", "2024053101": "05-31", "20240601": "06-01"}
    about = {
        wheel(root / "client", "client", f"1.0.dev{number}").name: {"upload-time": f"2024-{day}T10:00:00Z"}
        for number, day in days.items()
    }
    with serving(root, about) as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        telling = dataclasses.replace(context, progress=notes.append)
        of_index("client", "1.0.dev20240530", "latest", telling)
        assert [note for note in notes if "1.0.dev2024053101 (2024-05-31) comes after" in note]
        notes.clear()
        of_index("client", "1.0.dev20240530", "1.0.dev20240601", telling)
        assert not [note for note in notes if "ordered" in note]


def test_a_missing_end_is_named_by_its_option(context: RunContext) -> None:
    with pytest.raises(
        UsageError, match=r"--good 1\.3: client: the package index has no version ==1\.3"
    ) as raised:
        of_index("client", "1.3", "latest", context)
    assert raised.value.hint == "the nearest versions are 1.2 and 1.10"


def test_a_controller_has_no_versions_to_search_among(context: RunContext, tmp_path: Path) -> None:
    """Contract: such a search is rejected before anything is created."""
    with pytest.raises(UsageError, match="jobset is not a Python package, so its versions cannot be listed"):
        bisect("jobset", None, None, None, Path("jobs/multinode.yaml"), None, 0.01, context)
    assert not context.settings.runs_dir.exists()
