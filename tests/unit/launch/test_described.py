"""Which ranks log: by the settings, by the workload's file, or all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import settings
from harness.cli import options
from harness.core.errors import UsageError
from harness.launch.description import check_ranks_that_log, ranks_in, ranks_that_log
from harness.launch.labels import EXPECT_RANKS
from harness.launch.workload_file import load
from harness.launch.workloads.base import Workload
from harness.launch.workloads.loader import of_manifest


def job(annotation: str | None = None) -> Workload:
    documents: list[Any] = list(yaml.safe_load_all(Path("manifests/indexed-job.yaml").read_text()))
    documents[1]["metadata"]["annotations"] = {} if annotation is None else {EXPECT_RANKS: annotation}
    return of_manifest(documents, "x")


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("0", [0]), ("0,4", [0, 4]), ("4_0", [0, 4]), ("0-3", [0, 1, 2, 3]), (" 0 , 2-3 ", [0, 2, 3])],
)
def test_a_text_that_names_ranks(text: str, ranks: list[int]) -> None:
    assert ranks_in(text) == ranks


@pytest.mark.parametrize("text", ["", "all", "-1", "0;1", "1.5", "0,", "²"])
def test_a_text_that_names_none(text: str) -> None:
    with pytest.raises(UsageError, match="expected rank numbers"):
        ranks_in(text)


def test_settings_come_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranks_that_log(job(), settings.load()) is None
    assert ranks_that_log(job(annotation="0"), settings.load()) == [0]
    assert ranks_that_log(job(annotation="0"), settings.load(expect=options.expect("1,0"))) == [0, 1]
    monkeypatch.setenv("HARNESS_EXPECT", '{"ranks": [3]}')
    assert ranks_that_log(job(annotation="0"), settings.load()) == [3]


def test_a_konduktor_job_has_a_label(tmp_path: Path) -> None:
    document = yaml.safe_load(Path("jobs/multinode.yaml").read_text())
    document["resources"]["labels"][EXPECT_RANKS] = "0_1"
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    assert ranks_that_log(load(path), settings.load()) == [0, 1]


def test_nonsense_is_refused() -> None:
    for given in ("x", "-1", "0,,1"):
        with pytest.raises(UsageError, match="the settings are invalid"):
            settings.load(expect=options.expect(given))
    with pytest.raises(UsageError, match="the list of ranks that must log is empty"):
        check_ranks_that_log(job(), settings.load(expect={"ranks": []}))
