"""A run is resumed after any copy of it, or refused in one sentence before the first step."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harness.workers.training import checkpoint, resume, trackers
from harness.workers.training.checkpoint import Manifest, Torn, Unusable

LOSSES = {1: 3.0, 2: 1.0, 3: 2.0}
BEST = "epoch-0002-step-00000002"


def save(run: Path, step: int, **losses: float) -> Path:
    """Write a checkpoint of one rank."""
    manifest = Manifest(epoch=step, step=step, place=0, world=1, order={"seed": 1}, losses=losses)
    partial = checkpoint.begin(run, manifest)
    entry = checkpoint.write(partial / "rank-0/model", lambda path: path.write_text(f"step {step}"))
    return checkpoint.complete(partial, replace(manifest, files={"rank-0/model": entry}))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three epochs, of which the second is the best."""
    for step, loss in LOSSES.items():
        folder = save(tmp_path / "a", step, **{"val/loss": loss})
        if f"{folder.name}" in (BEST, "epoch-0001-step-00000001"):
            checkpoint.point_best(tmp_path / "a", folder)
    return tmp_path / "a"


def resumed(run: Path) -> tuple[int | None, list[str]]:
    """Return the step at which a run is resumed, and the messages."""
    messages: list[str] = []
    resume.open_run(run)
    found = resume.resumable(run, messages.append)
    return found and found[1].step, messages


def as_folder(run: Path) -> None:
    """Copy what the link leads to, as `cp -rL` and `aws s3 sync` do."""
    (run / "best").unlink()
    shutil.copytree(run / BEST, run / "best")


def as_folder_alone(run: Path) -> None:
    """Leave only the copy of the best checkpoint."""
    as_folder(run)
    shutil.rmtree(run / BEST)


def as_folder_beside_a_torn_one(run: Path) -> None:
    as_folder(run)
    (run / BEST / "rank-0/model").write_text("torn")


def as_text(run: Path) -> None:
    """Write the target into a file, as Git without links does."""
    (run / "best").unlink()
    (run / "best").write_text(BEST)


def without_link(run: Path) -> None:
    (run / "best").unlink()


def without_pointers(run: Path) -> None:
    (run / "best").unlink()
    (run / "best.txt").unlink()


def absolute(run: Path) -> None:
    """Point to the best checkpoint of another run, as an absolute link does after a copy."""
    other = run.with_name("other") / "epoch-0001-step-00000001"
    shutil.copytree(run / "epoch-0001-step-00000001", other)
    (run / "best").unlink()
    (run / "best").symlink_to(other)


def absolute_same(run: Path) -> None:
    shutil.copytree(run, run.with_name("other"), symlinks=True)
    (run / "best").unlink()
    (run / "best").symlink_to(run.with_name("other") / BEST)


def loop(run: Path) -> None:
    (run / "best").unlink()
    (run / "best").symlink_to("best")


def stale(run: Path) -> None:
    checkpoint.point_best(run, run / "epoch-0001-step-00000001")


def stale_text(run: Path) -> None:
    (run / "best.txt").write_text("epoch-0001-step-00000001\n")


def torn_text(run: Path) -> None:
    (run / "best.txt").write_bytes(b"\xff\xfe")


def without_dot_files_and_empty_folders(run: Path) -> None:
    (run / "trackers").mkdir(exist_ok=True)
    for path in (*run.glob(".*"), run / "trackers"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def linked_checkpoint(run: Path) -> None:
    """Move a checkpoint to another disk, and leave a link."""
    elsewhere = run.with_name("elsewhere")
    (run / "epoch-0003-step-00000003").rename(elsewhere)
    (run / "epoch-0003-step-00000003").symlink_to(elsewhere)


def backup(run: Path) -> None:
    """Keep a copy of a checkpoint, as a user does."""
    shutil.copytree(run / BEST, run / "epoch-0009-step-00000009.bak")
    shutil.copytree(run / BEST, run / "epoch-0002-step-00000002 (copy)")


@pytest.mark.parametrize(
    "copy",
    [
        *(as_folder, as_folder_alone, as_folder_beside_a_torn_one, as_text, without_link, without_pointers),
        *(absolute, absolute_same, loop, stale, stale_text, torn_text, without_dot_files_and_empty_folders),
        *(linked_checkpoint, backup),
    ],
)
def test_a_copied_run_is_resumed_with_its_best_checkpoint(copy: Callable[[Path], None], run: Path) -> None:
    """Contract: the newest one is found, and `best` is a relative link to the one with the lowest loss."""
    copy(run)
    assert resumed(run)[0] == 3
    assert os.readlink(run / "best") == BEST
    assert (run / "best.txt").read_text() == f"{BEST}\n"
    assert checkpoint.verified(run / "best").step == 2
    assert sorted(checkpoint.verified(one).step for one in checkpoint.all_of(run)) == [1, 2, 3]
    assert resumed(run) == (3, [])


@pytest.mark.parametrize("copy", [as_folder, as_folder_alone, absolute, stale])
def test_what_was_repaired_is_reported(copy: Callable[[Path], None], run: Path) -> None:
    copy(run)
    assert any("best" in line for line in resumed(run)[1])


def test_an_untouched_run_is_resumed_without_a_message(run: Path) -> None:
    before = (run / "best").lstat().st_ino
    assert resumed(run) == (3, [])
    assert (run / "best").lstat().st_ino == before


def test_the_users_backups_are_not_removed(run: Path) -> None:
    backup(run)
    checkpoint.retain(run, 2)
    assert (run / "epoch-0009-step-00000009.bak").is_dir()


def test_a_linked_checkpoint_is_forgotten_and_its_target_stays(run: Path) -> None:
    """Contract: only the link is removed."""
    elsewhere = run.with_name("elsewhere")
    (run / "epoch-0001-step-00000001").rename(elsewhere)
    (run / "epoch-0001-step-00000001").symlink_to(elsewhere)
    checkpoint.retain(run, 2)
    assert not os.path.lexists(run / "epoch-0001-step-00000001")
    assert (elsewhere / checkpoint.MANIFEST).is_file()


def test_best_newer_than_resumed_step_does_not_count(run: Path) -> None:
    """Contract: a torn newest checkpoint is trained again, and until then an older one is the best."""
    checkpoint.point_best(run, save(run, 4, **{"val/loss": 0.5}))
    (run / "epoch-0004-step-00000004/rank-0/model").write_text("torn")
    step, messages = resumed(run)
    assert step == 3
    assert os.readlink(run / "best") == BEST
    assert messages[0].startswith("epoch-0004-step-00000004: rank-0/model has")


def test_without_links_best_txt_names_the_best(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a file system without links (CIFS, FAT, FUSE) is no error."""

    def symlink(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", symlink)
    (run / "best").unlink()
    stale_text(run)
    assert resumed(run)[0] == 3
    assert not os.path.lexists(run / "best")
    assert checkpoint.best(run) == run / BEST
    assert checkpoint.named(run / "best") == run / BEST
    checkpoint.retain(run, 1)
    assert (run / BEST).is_dir()


def other_folder(run: Path) -> None:
    (run / "best").unlink()
    (run / "best").mkdir()
    (run / "best" / "notes").write_text("of the user")


def torn_folder(run: Path) -> None:
    as_folder(run)
    (run / "best/rank-0/model").write_text("torn")


def folder_with_notes(run: Path) -> None:
    as_folder(run)
    (run / "best" / "notes").write_text("of the user")


def other_file(run: Path) -> None:
    (run / "best").unlink()
    (run / "best").write_text("of the user")


def pipe(run: Path) -> None:
    (run / "best").unlink()
    os.mkfifo(run / "best")


def folder_of_the_name(run: Path) -> None:
    (run / "best.txt").unlink()
    (run / "best.txt").mkdir()


def all_torn(run: Path) -> None:
    for folder in checkpoint.all_of(run):
        (folder / "rank-0/model").unlink()


def nested(run: Path) -> None:
    """Copy the run into its own folder, as `cp -r` and `kubectl cp` do if the folder exists."""
    run.rename(run.with_name("x"))
    run.mkdir()
    run.with_name("x").rename(run / "a")


def nested_twice(run: Path) -> None:
    """Copy a run, train it further, and copy it again, as in a second `kubectl cp`."""
    shutil.copytree(run, run / "a", symlinks=True)
    save(run / "a", 4)


def nested_by_tar(run: Path) -> None:
    run.rename(run.with_name("x"))
    (run / "mnt/out").mkdir(parents=True)
    run.with_name("x").rename(run / "mnt/out/a")


def broken_links(run: Path) -> None:
    """Keep the checkpoints on a volume that is not mounted."""
    for folder in list(checkpoint.all_of(run)):
        shutil.rmtree(folder)
        folder.symlink_to(f"/not/mounted/{folder.name}")


def newest_is_a_broken_link(run: Path) -> None:
    shutil.rmtree(run / "epoch-0003-step-00000003")
    (run / "epoch-0003-step-00000003").symlink_to("/not/mounted/3")


def links_as_text(run: Path) -> None:
    for folder in list(checkpoint.all_of(run)):
        shutil.rmtree(folder)
        folder.write_text(f"/elsewhere/{folder.name}")


@pytest.mark.parametrize(
    ("copy", "message"),
    [
        (
            nested,
            "has no checkpoints, but its subfolder a has one of step 3, as after a copy into an existing",
        ),
        (
            nested_twice,
            "has checkpoints up to step 3, but its subfolder a has one of step 4, as after a copy",
        ),
        (nested_by_tar, "has no checkpoints, but its subfolder mnt/out/a has one of step 3"),
        (broken_links, "expected the folder of a checkpoint, found a broken link to /not/mounted/epoch-000"),
        (newest_is_a_broken_link, "found a broken link to /not/mounted/3. Put the folder back, or remove"),
        (links_as_text, "expected the folder of a checkpoint, found a file"),
        (other_folder, "found a folder that is not a complete checkpoint"),
        (torn_folder, "found a folder that is not a complete checkpoint"),
        (folder_with_notes, "is a copy of epoch-0002-step-00000002, but notes is not part of it"),
        (other_file, "expected a link to a checkpoint, found another file"),
        (pipe, "expected a link to a checkpoint, found neither a file nor a folder"),
        (folder_of_the_name, "best.txt: expected a file with the name of a checkpoint"),
        (all_torn, "has 3 checkpoints, and none can be used"),
    ],
)
def test_what_cannot_be_repaired_is_refused_and_left(
    copy: Callable[[Path], None], message: str, run: Path
) -> None:
    """Contract: one sentence with the path, and nothing on the disk is changed."""
    copy(run)
    before = sorted(run.rglob("*"))
    with pytest.raises(Unusable) as refused:
        resumed(run)
    assert message in str(refused.value)
    assert str(run) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert sorted(run.rglob("*")) == before


def test_checkpoints_put_aside_are_reported_and_unused(run: Path) -> None:
    """Contract: a user goes back to an earlier step. Older ones in a subfolder are not worth a message."""
    (run / "diverged").mkdir()
    (run / "epoch-0003-step-00000003").rename(run / "diverged/epoch-0003-step-00000003")
    step, [message] = resumed(run)
    assert step == 2
    assert message == (
        f"{run} has checkpoints up to step 2, but its subfolder diverged has one of step 3, which is not used"
    )
    save(run, 4)
    assert resumed(run) == (4, [])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("x"), "found a file"),
        (lambda path: path.symlink_to("nowhere/at/all"), "is a broken link"),
        (lambda path: path.symlink_to(path.name), "is a broken link"),
    ],
)
def test_a_run_that_is_no_folder_is_refused(
    make: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "a")
    with pytest.raises(Unusable, match=f"expected a folder that user .*{message}"):
        resume.open_run(tmp_path / "a")


def test_a_run_behind_a_link_is_resumed(run: Path) -> None:
    run.with_name("b").symlink_to(run)
    assert resumed(run.with_name("b"))[0] == 3


def test_a_checkpoint_under_another_name_is_not_resumed(run: Path) -> None:
    (run / "epoch-0003-step-00000003").rename(run / "epoch-0004-step-00000004")
    with pytest.raises(Torn, match="holds the checkpoint epoch-0003-step-00000003"):
        checkpoint.verified(run / "epoch-0004-step-00000004")
    assert resumed(run)[0] == 2


@pytest.mark.parametrize("place", ["", "trackers", BEST, f"{BEST}/rank-0"])
def test_a_folder_that_this_user_cannot_change_is_refused(place: str) -> None:
    """Contract: before the first step, not when an old checkpoint is removed after an epoch."""
    as_root = os.getuid() == 0
    with TemporaryDirectory() as root:  # pytest's folders are closed to other users
        run = Path(root) / "a"
        save(run, 2, **{"val/loss": 1.0})
        (run / "trackers").mkdir()
        for path in (Path(root), *run.rglob("*"), run):
            path.chmod(0o777 if path.is_dir() else 0o666)
        (run / place).chmod(0o755 if as_root else 0o555)
        try:
            message = _as_other_user(lambda: resume.open_run(run))
        finally:
            (run / place).chmod(0o777)
    assert f"{(run / place)}: expected a folder that user" in message
    assert f"found a folder of user {os.getuid()} with mode 0" in message


def test_an_unreadable_checkpoint_is_refused_and_not_skipped() -> None:
    """Contract: a run never begins anew because its files belong to somebody else."""
    with TemporaryDirectory() as root:
        run = Path(root) / "a"
        for step, loss in LOSSES.items():
            save(run, step, **{"val/loss": loss})
        for path in (Path(root), *run.rglob("*"), run):
            path.chmod(0o777 if path.is_dir() else 0o666)
        (run / "epoch-0003-step-00000003/manifest.json").chmod(0o600 if os.getuid() == 0 else 0)
        message = _as_other_user(lambda: resumed(run))
    assert "cannot read" in message
    assert "epoch-0003-step-00000003/manifest.json" in message


def _as_other_user(call: Callable[[], object]) -> str:
    """Return the text of the Unusable that a call raises in a process of a user without privileges."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65532)
                os.setuid(65532)
            call()
        except Unusable as error:
            os.write(writing, f"{error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as text:
        return text.read()


def test_copy_with_another_name_gets_its_own_identity(run: Path) -> None:
    """Contract: otherwise both runs would log to one run, whose steps MLflow already has."""
    messages: list[str] = []
    identity = trackers._identity(run / "trackers", "a", messages.append)
    assert trackers._identity(run / "trackers", "a", messages.append) == identity
    assert messages == []
    shutil.copytree(run, run.with_name("b"), symlinks=True)
    copied = trackers._identity(run.with_name("b") / "trackers", "b", messages.append)
    assert copied != identity
    assert messages == ["the run b was copied from a, so it gets its own run in the trackers"]
    assert trackers._identity(run.with_name("b") / "trackers", "b", messages.append) == copied
    assert trackers._identity(run / "trackers", "a", messages.append) == identity


@pytest.mark.parametrize("content", ["", "\n"])
def test_an_empty_identity_is_created_again(content: str, run: Path) -> None:
    (run / "trackers").mkdir()
    (run / "trackers/id").write_text(content)
    assert len(trackers._identity(run / "trackers", "a", lambda _: None)) == 16


def test_an_identity_of_a_downloaded_run_is_kept(run: Path) -> None:
    """Contract: `--resume-from` brings the id and no name, and the run continues in the tracker."""
    (run / "trackers").mkdir()
    (run / "trackers/id").write_text("0123456789abcdef")
    assert trackers._identity(run / "trackers", "b", lambda _: None) == "0123456789abcdef"


# The validation texts changed between two attempts: losses over different texts are not compared.


def measured(run: Path, step: int, loss: float, texts: int) -> Path:
    """Write a checkpoint whose validation loss was measured on the texts with this fingerprint."""
    return save(run, step, **{"val/loss": loss, "val/best": loss, resume.VAL_TEXTS: texts})


def resumed_with(run: Path, texts: int) -> tuple[resume.Resumed, list[str]]:
    said: list[str] = []
    resume.open_run(run)
    found = resume.resumable(run, said.append, texts)
    assert found is not None
    return found, said


def test_changed_validation_texts_begin_new_best(tmp_path: Path) -> None:
    """Contract: the lowest loss of other texts does not count, and the message names both sets."""
    run = tmp_path / "run"
    checkpoint.point_best(run, measured(run, 1, 0.5, texts=11))
    measured(run, 2, 0.9, texts=11)
    found, said = resumed_with(run, 22)
    assert (found.manifest.step, found.best, found.best_since) == (2, math.inf, 2)
    assert any("validation texts have changed" in line for line in said), said
    assert os.readlink(run / "best") == "epoch-0001-step-00000001", "until the next evaluation"


def test_best_of_other_texts_is_replaced_after_evaluation(tmp_path: Path) -> None:
    """Contract: also if the attempt was killed before it pointed `best` to its checkpoint."""
    run = tmp_path / "run"
    checkpoint.point_best(run, measured(run, 1, 0.5, texts=11))
    worse = measured(run, 2, 1.9, texts=22)
    save(run, 3, **{"val/best": 1.9, resume.VAL_TEXTS: 22, resume.VAL_SINCE: 1})
    found, said = resumed_with(run, 22)
    assert (found.best, found.best_since) == (1.9, 1)
    assert os.readlink(run / "best") == worse.name
    assert not any("validation texts have changed" in line for line in said), said


def test_validation_texts_that_return_keep_their_best(tmp_path: Path) -> None:
    """Contract: texts A, then B, then A again: the best of A is the one to beat."""
    run = tmp_path / "run"
    first = measured(run, 1, 0.5, texts=11)
    checkpoint.point_best(run, measured(run, 2, 0.4, texts=22))
    found, _ = resumed_with(run, 11)
    assert (found.best, found.best_since) == (0.5, 2)
    assert os.readlink(run / "best") == first.name


def test_checkpoint_of_older_harness_keeps_its_best(tmp_path: Path) -> None:
    """Contract: a manifest without a fingerprint is not reported as changed."""
    run = tmp_path / "run"
    save(run, 1, **{"val/loss": 0.5, "val/best": 0.5})
    found, said = resumed_with(run, 22)
    assert (found.best, said) == (0.5, [])
