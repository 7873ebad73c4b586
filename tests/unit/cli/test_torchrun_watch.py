"""What `--watch` does with a folder that is being edited. The folder is real; no pod is asked."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from harness.cli.torchrun import attached
from harness.cli.torchrun.attached import Attached
from harness.core.errors import UsageError
from harness.torchrun_sync.job_sync import Synced
from harness.torchrun_sync.tree import Walker

SENT = Synced("tree", 1, 1, 1, 0, 1, 1, 0, ())


class Sending(Attached):
    """An attached command whose sync scans the folder, and sends it nowhere."""

    def _sync(self, job: Any, targets: Any) -> Synced:
        del job, targets
        assert self.walker is not None
        self.walker.scan()
        self._synced = frozenset({"uid"})
        return SENT

    def _targets(self, job: Any, pods: Any) -> list[Any]:
        del job
        return list(pods)


class Pod:
    uid = "uid"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    return tmp_path


def watching(folder: Path, lines: list[str]) -> Sending:
    return Sending(None, "demo", Walker(folder), lines.append, watch=True)  # type: ignore[arg-type]


JOB = {"metadata": {"annotations": {"torchrun.ai/workspace": "x"}}}


def poll(command: Sending) -> None:
    command._sync_new_pods(JOB, [Pod()])  # type: ignore[list-item]


ERRORS = {
    "an incomplete rule": (".torchrunignore", "!", "cannot be used: '!'"),
    "a rule of no text": (".torchrunignore", "\x00", "control character"),
    "a link": ("link", None, "lead out of"),
}


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_in_the_folder_ends_no_watch(folder: Path, error: str) -> None:
    """browserify/browserify#258, vectordotdev/vector#1816, GoogleContainerTools/skaffold#2278: a watch ended
    with the first error in a file that the user was editing.

    Contract: it is reported once, the pods keep the code from before, and the next edit is sent.
    """
    name, text, message = ERRORS[error]
    lines: list[str] = []
    command = watching(folder, lines)
    poll(command)
    if text is None:
        (folder / name).symlink_to("/etc")
    else:
        (folder / name).write_text(text)
    for _ in range(3):
        poll(command)
    assert len(lines) == 1
    assert message in lines[0]
    assert lines[0].endswith("; until then, the pods run the code from before")
    (folder / name).unlink()
    (folder / "train.py").write_text("new")
    before = command._stamps
    poll(command)
    assert command._stamps != before
    assert len(lines) == 1


def test_an_error_before_the_first_sync_ends_the_command(folder: Path) -> None:
    """Contract: the user has just started the command, and reads the error."""
    (folder / ".torchrunignore").write_text("!")
    with pytest.raises(UsageError, match="cannot be used"):
        poll(watching(folder, []))


def test_file_that_keeps_changing_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GoogleContainerTools/skaffold#2472 and #5933: a file that was written again and again kept the sync
    busy.

    Contract: the command does not wait for ever without a word. It goes on when the file is left alone.
    """
    monkeypatch.setattr(attached, "SETTLE_SECONDS", 0.3)
    lines: list[str] = []
    command = watching(folder, lines)
    poll(command)
    reported = threading.Event()

    def write() -> None:
        with (folder / "run.log").open("a") as log:
            while not reported.wait(0.01):
                log.write("line\n")
                log.flush()

    def progress(line: str) -> None:
        lines.append(line)
        reported.set()

    command.progress = progress
    (folder / "run.log").write_text("")
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    poll(command)
    writer.join()
    [line] = lines
    assert line.startswith("waiting, because run.log is written to again and again")
    assert ".torchrunignore" in line
    assert "run.log" in (command._stamps or {})


def test_file_that_restarts_the_ranks_often_is_named(folder: Path) -> None:
    """GoogleContainerTools/skaffold#6532: a log in the watched folder caused build after build.

    Contract: it is named once. Edits of several files are no such case.
    """
    lines: list[str] = []
    command = watching(folder, lines)
    poll(command)
    for count in range(8):
        (folder / f"{count % 2}.py").write_text(f"{count}")
        poll(command)
    assert lines == []
    for count in range(8):
        (folder / "run.log").write_text("x" * count)
        poll(command)
    [line] = lines
    assert line.startswith(
        "run.log has changed 5 times, and each change restarts the ranks; a file that keeps"
    )
