"""`harness tracker`: which links lead to a page, and what is said where there is no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.main import main
from harness.cli.tracker import page_of
from harness.core.errors import UsageError


@pytest.mark.parametrize(
    ("link", "path"),
    [
        ("", "/o/harness/projects"),
        ("http://tracker.harness-system.svc:8080/o/harness/projects/e2e/r17", "/o/harness/projects/e2e/r17"),
        ("/o/harness/projects/a%2Fb/r1/logs?search=x", "/o/harness/projects/a%2Fb/r1/logs?search=x"),
    ],
)
def test_a_link_of_a_run_leads_to_its_page(link: str, path: str) -> None:
    assert page_of(link) == path


@pytest.mark.parametrize("link", ["http://x/", "/api/runs/1", "r17", "http://x/o/harness/projects"])
def test_another_link_is_refused(link: str) -> None:
    with pytest.raises(UsageError, match="is not a link to a run in the tracker"):
        page_of(link)


@pytest.mark.parametrize("arguments", [["open"], ["key", "e2e"]])
def test_without_a_cluster_it_says_how_to_make_one(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HARNESS_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("HARNESS_KUBECONFIG", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["tracker", *arguments, "--cluster-name", "e2e-none"])
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out) == (2, "")
    assert "cluster e2e-none does not exist" in captured.err
    assert "harness up" in captured.err


def test_a_blank_project_has_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tracker", "key", " "])
    assert ended.value.code == 64
    assert "must not be blank" in capsys.readouterr().err
