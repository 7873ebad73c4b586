"""`harness matrix` with a package index on loopback whose packages conflict with the lock files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from package_index import serving, wheel

from harness.cli.main import main
from harness.settings import load
from harness.versions.candidates import Candidate
from harness.versions.cell import Cell, Launcher


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the harness's folder. The index has two versions of the client, and no other package in the
    worker's lock file."""
    for version in ("1.0", "1.1"):
        wheel(tmp_path / "index" / "pluto-ml", "pluto_ml", version)
    for name in ("cache", "state", "runs"):
        monkeypatch.setenv(f"HARNESS_{name.upper()}_DIR", str(tmp_path / name))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with serving(tmp_path / "index", {}) as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        yield tmp_path


def matrix(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["matrix", *arguments])
    code = ended.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.nightly
def test_cells_that_cannot_be_installed_are_results(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: no cluster is created, each cell has a message of one sentence, and a rule can expect this
    result."""
    (folder / "matrix.yaml").write_text(
        "vary: {pluto-ml: ['>=1', '9']}\n"
        "expect: [{where: {pluto-ml: '1.0'}, result: not installable, reason: conflicts with the lock}]\n"
    )
    assert matrix(str(folder / "matrix.yaml"), "--json") == 64
    document = json.loads(capsys.readouterr().out)
    assert [cell["status"] for cell in document["cells"]] == ["expected failure", "failed", "failed"]
    sentences = [cell["outcomes"][0]["explanation"] for cell in document["cells"]]
    assert all("does not resolve" in sentence for sentence in sentences[:2])
    assert "the package index has no version ==9" in sentences[2]
    (results,) = (folder / "runs").iterdir()
    assert {path.name for path in results.iterdir()} == {
        "ctrf.json", "ledger.jsonl", "lock", "matrix.html", "matrix.json", "matrix.md",
    }  # fmt: skip
    assert not (folder / "state").exists()


@pytest.mark.nightly
def test_the_results_of_an_earlier_matrix_are_continued(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract: cells without a launch are retried, because the index may have changed."""
    assert matrix("--pluto-ml", ">=1", "--quiet") == 64
    (results,) = (folder / "runs").iterdir()
    assert matrix("--pluto-ml", ">=1", "--continue", str(results), "--json") == 64
    assert len((results / "ledger.jsonl").read_text().splitlines()) == 4
    assert len(json.loads((results / "matrix.json").read_text())["cells"][0]["outcomes"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pluto-ml", ">=2"), "no version of pluto-ml can be used in the matrix"),
        (("--pluto-ml", "1.0", "--job", "absent.yaml"), "absent.yaml does not exist"),
        (("--pluto-ml", "1.0", "--continue", "."), "expected the results folder of a matrix"),
        (("--pluto-ml", "./absent"), "no such file exists"),
        (("--vary", "torch=2.0"), "cannot replace torch"),
        (("--konduktor", "latest", "--job", "manifests/indexed-job.yaml"), "konduktor"),
    ],
)
def test_a_matrix_that_is_not_valid_creates_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    wheel(folder / "index" / "konduktor-nightly", "konduktor_nightly", "0.1.0.dev20261001104526")
    assert matrix(*arguments, "--quiet") == 64
    assert message in capsys.readouterr().err
    assert not (folder / "runs").exists() or not any((folder / "runs").iterdir())


def test_process_that_cannot_install_cell_has_one_sentence(folder: Path) -> None:
    """Contract: the outcome of a `harness run` that ends before the launch is not a verdict."""
    launcher = Launcher(Path("jobs/multinode.yaml"), load(), folder / "runs" / "matrix")
    outcome = launcher.launch(Cell((Candidate("pluto-ml", "9.9", "9.9", "9.9"),)))
    assert (outcome.result, outcome.exit_code, outcome.bundle) == ("not installable", 64, None)
    assert outcome.explanation.startswith("--replace pluto-ml==9.9: dependencies could not be resolved: ")
    assert "\n" not in outcome.explanation
    assert "replacing: pluto-ml with 9.9" in Path(outcome.log).read_text()
