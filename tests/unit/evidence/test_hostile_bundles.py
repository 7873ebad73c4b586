"""A bundle from someone else cannot make a reader open files outside it, wait, or fill the memory.

Reports in public of the same kind: 418sec/huntr#1809 and #270 (a symbolic link in a served folder shows any
file), Mailtrain-org/mailtrain#1029 (a report names a file outside its folder).
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundles
import pytest

from harness.cli import logs
from harness.core.errors import UsageError
from harness.evidence import Bundle
from harness.evidence.io import files
from harness.evidence.io.files import NotInsideError, inside, open_inside, replace_file
from harness.evidence.io.runs_folder import Past
from harness.evidence.schema.bundle import Verdict
from harness.judge import judge
from harness.launch.workloads import training
from harness.report.ci import junit, suite
from harness.report.ci.launch_properties import launched
from harness.report.diff import facts
from harness.report.html import page
from harness.report.terminal import why
from harness.report.terminal.console import Console

SECRET = "the-key-of-the-reader"
HUGE = 1 << 40


class OpenedFiles:
    """Records the real paths of the files that Python opens, while it is used as a context manager."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._recording = False
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._recording and event == "open" and isinstance(arguments[0], str | bytes):
            self.paths.append(os.path.realpath(os.fsdecode(arguments[0])))

    def __enter__(self) -> list[str]:
        self.paths.clear()
        self._recording = True
        return self.paths

    def __exit__(self, *_: object) -> None:
        self._recording = False


OPENED = OpenedFiles()
"""One object for all tests, because an audit hook cannot be removed."""


def recorded(path: Path) -> Path:
    """Write the bundle of a launch that passed, with its verdict."""
    bundles.healthy(nodes=2).write(path)
    (path / "verdict.json").write_text(judge(Bundle.open(path)).model_dump_json())
    return path


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return recorded(tmp_path / "bundle")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.log").write_text(f"2026-11-29T12:00:00Z {SECRET}\n")
    return folder


def everything(path: Path) -> str:
    """Run all readers of a bundle and return what they print. Errors of the operating system are printed."""
    evidence = Bundle.open(path)
    verdict = judge(evidence)
    printed = [verdict.model_dump_json(), *evidence.damaged]
    console = Console(file=io.StringIO(), width=200)
    for shown in (verdict, Bundle.open(path).recorded_verdict):
        if shown is not None:
            why.render(shown, path, console)
            printed += [page.render(evidence, shown), junit.as_junit(evidence, shown)]
            printed += [suite.as_ctrf(evidence, shown), launched(shown, path).model_dump_json()]
    printed.append(console.file.getvalue())  # type: ignore[attr-defined]
    printed.append(repr(facts.facts(evidence, "a")))
    printed += [Past(path).job, Past(path).state]
    for rank in (None, 0, 1):
        try:
            printed += logs.lines(evidence, rank)
        except Exception as error:
            printed.append(str(error))
    return "\n".join(printed)


NAMES = (
    *(f"logs/multinode-1a2b-workers-0-{index}-abcd{index}-{bundles.CONTAINER}.log" for index in (0, 1)),
    *("manifest.json", "verdict.json", "truth/0.jsonl", "truth/1.jsonl"),
    *(f"objects/{kind}.jsonl" for kind in ("jobset", "pod", "workload")),
    *(f"tracker/{name}" for name in ("attachments.jsonl", "points.jsonl", "runs.jsonl", "summary.json")),
)


def test_the_names_are_those_of_a_bundle_that_passed(bundle: Path) -> None:
    assert judge(Bundle.open(bundle)).verdict == "PASS"
    names = {str(path.relative_to(bundle)) for path in bundle.rglob("*") if path.is_file()}
    assert names == set(NAMES)


def replaced(bundle: Path, name: str) -> Path:
    path = bundle / name
    path.unlink()
    return path


@pytest.mark.parametrize("name", NAMES)
def test_a_link_out_of_the_bundle_is_not_followed(bundle: Path, outside: Path, name: str) -> None:
    """Contract: no file outside is opened, even if it has the right format, and the link is named."""
    shutil.copy(bundle / name, outside / "copy")
    replaced(bundle, name).symlink_to(outside / "copy")
    with OPENED as paths:
        printed = everything(bundle)
    assert not [path for path in paths if path.startswith(str(outside))]
    if name != "verdict.json":
        assert f"{name} is outside the bundle" in printed
        assert judge(Bundle.open(bundle)).verdict != "PASS"


@pytest.mark.parametrize("folder", sorted({name.partition("/")[0] for name in NAMES if "/" in name}))
def test_a_linked_folder_is_not_followed(bundle: Path, outside: Path, folder: str) -> None:
    """Contract: not even the names of the files in it are printed."""
    (bundle / folder).rename(outside / "folder")
    for suffix in ("log", "jsonl"):
        (outside / "folder" / f"{SECRET}.{suffix}").write_text(f"2026-11-29T12:00:00Z {SECRET}\n")
    (bundle / folder).symlink_to(outside / "folder")
    with OPENED as paths:
        printed = everything(bundle)
    assert not [path for path in paths if path.startswith(str(outside))]
    assert SECRET not in printed


@pytest.mark.parametrize(
    "ref",
    [
        "logs/../../outside/secret.log:1",
        "logs/../../../../../../../../etc/passwd:1",
        "logs//../../outside/secret.log:1",
        "logs/link.log:1",
        "logs/folder/secret.log:1",
        f"logs/link.log:{'9' * 5000}",
        "logs/\0:1",
        f"logs/{'a' * 5000}.log:1",
        "logs/\ud800.log:1",
    ],
)
def test_evidence_outside_the_bundle_is_not_quoted(bundle: Path, outside: Path, ref: str) -> None:
    """Contract: a recorded verdict can name any path; only files of the bundle are quoted."""
    (bundle / "logs" / "link.log").symlink_to(outside / "secret.log")
    (bundle / "logs" / "folder").symlink_to(outside)
    verdict = Verdict(verdict="FAIL", cause="rank.failed", explanation="", evidence=[ref])
    console = Console(file=io.StringIO(), width=200)
    with OPENED as paths:
        why.render(verdict, bundle, console)
    assert not [path for path in paths if path.startswith((str(outside), "/etc"))]
    assert SECRET not in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", ["pod", "container", "columns", "linked columns"])
def test_names_in_records_do_not_lead_out(bundle: Path, outside: Path, way: str) -> None:
    """Contract: names of pods, containers and column files come from the bundle and are not trusted."""
    if way == "pod":
        pods = bundle / "objects" / "pod.jsonl"
        pods.write_text(pods.read_text().replace('"multinode-1a2b-workers-0-0-abcd0"', '"../../outside/x"'))
        shutil.copy(outside / "secret.log", outside / f"x-{bundles.CONTAINER}.log")
    elif way == "container":
        manifest = bundle / "manifest.json"
        record = json.loads(manifest.read_text())
        (bundle / "logs" / "multinode-1a2b-workers-0-0-abcd0-").mkdir()
        record["launch"]["container"] = "/../../../outside/secret"
        manifest.write_text(json.dumps(record))
    else:
        linked = bundle / "truth" / "0.columns"
        linked.symlink_to(outside / "secret.log")
        file = "../outside/secret.log" if way == "columns" else "truth/0.columns"
        line = {"kind": "columns", "file": file, "offset": 0, "count": 1, "names": ["a"]}
        with (bundle / "truth" / "0.jsonl").open("a") as truth:
            truth.write(json.dumps({**line, "in_turn": True, "crc32": 0}) + "\n")
    with OPENED as paths:
        printed = everything(bundle)
    assert not [path for path in paths if path.startswith(str(outside))]
    assert SECRET not in printed


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


def _sparse_with_data(path: Path) -> None:
    with path.open("wb") as file:
        for offset in range(0, HUGE, HUGE // 64):
            file.seek(offset)
            file.write(b"{}\n")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [_pipe, _endless, _sparse, _sparse_with_data, _loop, _folder])
@pytest.mark.parametrize("name", [NAMES[0], "manifest.json", "objects/pod.jsonl", "truth/0.jsonl"])
def test_a_special_or_huge_file_is_damage(bundle: Path, name: str, make: Callable[[Path], None]) -> None:
    """Contract: the readers end, and there is no PASS. A sparse file costs its sender nothing."""
    make(replaced(bundle, name))
    printed = everything(bundle)
    if name != "verdict.json":
        assert name in printed
        assert judge(Bundle.open(bundle)).verdict != "PASS"


def test_a_link_inside_the_bundle_is_followed(bundle: Path, tmp_path: Path) -> None:
    """Contract: a bundle may itself be reached through a link, as `latest` is."""
    (bundle / "logs" / "other.log").symlink_to(
        "multinode-1a2b-workers-0-0-abcd0-" + bundles.CONTAINER + ".log"
    )
    (tmp_path / "latest").symlink_to(bundle)
    with open_inside(tmp_path / "latest", "logs/other.log") as file:
        assert file.read()


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "logs/../../x", "a\0b", "link/x"])
def test_a_path_outside_raises(tmp_path: Path, path: str) -> None:
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(NotInsideError):
        inside(tmp_path, path)


def test_a_report_is_not_written_through_a_link(bundle: Path, outside: Path) -> None:
    """Contract: a link with the name of the temporary file or of the report is replaced, not followed."""
    target = outside / "secret.log"
    before = target.read_text()
    for name in (".report.html.tmp", "report.html"):
        (bundle / name).symlink_to(target)
    replace_file(bundle / "report.html", "page")
    assert target.read_text() == before
    assert (bundle / "report.html").read_text() == "page"
    assert not (bundle / "report.html").is_symlink()


def test_end_of_log_without_lines_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: the last lines of a file have at most MAX_RECORD_BYTES, and keep their numbers."""
    monkeypatch.setattr(files, "MAX_RECORD_BYTES", 3000)
    monkeypatch.setattr(files, "_BLOCK", 1000)
    long = b"a\nb\n" + b"x" * 50_000 + b"\nend\n"
    total, lines = files.last_lines(io.BytesIO(long), 200)
    assert total == 4
    assert sum(map(len, lines)) <= 4000
    assert lines[-1] == b"end\n"
    assert files.last_lines(io.BytesIO(b"a\nb\nc"), 2) == (3, [b"b\n", b"c"])


@pytest.mark.parametrize("way", ["audited", "not loaded", "linked"])
def test_the_weights_of_another_training_come_from_its_bundle(tmp_path: Path, way: str) -> None:
    """Contract: `harness train --same-as` reads no other file, and needs a checkpoint that was loaded."""
    checkpoint = {"name": "step-1", "whole": True, "weights": None if way == "not loaded" else "abc"}
    path = tmp_path / "one"
    path.mkdir()
    (path / "manifest.json").write_text("{}")
    audit = (tmp_path if way == "linked" else path) / "training-audit.json"
    audit.write_text(json.dumps({"checkpoints": [checkpoint]}))
    if way == "linked":
        (path / audit.name).symlink_to(audit)
    if way == "audited":
        assert training.weights_of(path, tmp_path) == ("one", "abc")
        return
    with pytest.raises(UsageError, match="whose checkpoints were audited"):
        training.weights_of(path, tmp_path)
