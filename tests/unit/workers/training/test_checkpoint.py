"""A checkpoint is whole or not there, whatever is killed when."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.workers.training import checkpoint
from harness.workers.training.checkpoint import Manifest, Torn

RANKS = 2


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


def manifest(step: int, **losses: float) -> Manifest:
    return Manifest(epoch=step // 10, step=step, place=0, world=RANKS, order={"seed": 1}, losses=losses)


def save(run: Path, step: int, **losses: float) -> Path:
    """Write a checkpoint as two ranks do."""
    made = manifest(step, **losses)
    partial = checkpoint.begin(run, made)
    files = {}
    for rank in range(RANKS):
        for name in ("model", "state"):
            text = f"{name} of rank {rank} at step {step}"
            path = partial / f"rank-{rank}" / name
            files[f"rank-{rank}/{name}"] = checkpoint.write(path, lambda at, text=text: at.write_text(text))
    return checkpoint.complete(partial, Manifest(**{**made.__dict__, "files": files}))


def newest(run: Path) -> int | None:
    found = checkpoint.newest(run, lambda text: None)
    return found[1].step if found else None


def test_the_newest_is_found_by_its_step(tmp_path: Path) -> None:
    for step in (5, 100, 20):
        save(tmp_path, step)
    assert newest(tmp_path) == 100


@pytest.mark.parametrize("damage", ["cut", "longer", "other", "gone", "no manifest", "half a manifest"])
def test_a_torn_checkpoint_falls_back_to_the_previous_one(damage: str, tmp_path: Path) -> None:
    """Contract: no file that is not what was written is ever loaded."""
    save(tmp_path, 1)
    folder = save(tmp_path, 2)
    path = folder / ("manifest.json" if "manifest" in damage else "rank-1/state")
    content = path.read_bytes()
    if damage in ("gone", "no manifest"):
        path.unlink()
    else:
        changed = {"longer": content + b"x", "other": content[:-1] + b"?"}
        path.write_bytes(changed.get(damage, content[: len(content) // 2]))
    messages: list[str] = []
    found = checkpoint.newest(tmp_path, messages.append)
    assert found is not None
    assert found[1].step == 1
    assert len(messages) == 1
    assert messages[0].startswith(folder.name)


def test_empty_files_after_power_failure_are_named(tmp_path: Path) -> None:
    """Contract: diffusion-pipe #159, metaseq #53: several newest checkpoints whose files have 0 bytes."""
    folders = [save(tmp_path, step) for step in (418, 420, 422)]
    for folder in folders[1:]:
        for path in folder.rglob("*"):
            if path.is_file():
                path.write_bytes(b"")
    messages: list[str] = []
    found = checkpoint.newest(tmp_path, messages.append)
    assert found is not None
    assert found[0] == folders[0]
    assert [text.split(":")[0] for text in messages] == [folders[2].name, folders[1].name]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.integers(1, 60))
def test_a_kill_at_any_call_leaves_a_whole_checkpoint(
    calls: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Contract: after a kill before any call to the file system there is a whole checkpoint, `best` names
    one, and the next attempt writes as if nothing had been."""
    run = tmp_path_factory.mktemp("run")
    checkpoint.point_best(run, save(run, 1))
    left = calls

    def counted(name: str) -> object:
        real = getattr(os, name)

        def call(*arguments: object, **words: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            return real(*arguments, **words)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "rename", "replace", "mkdir", "unlink", "symlink", "rmdir", "open", "chmod"):
            patch.setattr(os, name, counted(name))
        try:
            checkpoint.point_best(run, save(run, 2))
            checkpoint.retain(run, 2)
            checkpoint.point_best(run, save(run, 3))
            checkpoint.retain(run, 2)
        except Killed:
            pass
    before = newest(run)
    assert before is not None
    best = checkpoint.best(run)
    assert best is not None
    assert checkpoint.verified(best).step >= 1
    checkpoint.tidy(run)
    save(run, 4)
    assert newest(run) == 4
    assert not [path for path in run.iterdir() if path.name.startswith(".epoch")]


def test_old_ones_are_forgotten_but_the_best(tmp_path: Path) -> None:
    """Contract: the newest are kept, two at least, and what `best` names."""
    checkpoint.point_best(tmp_path, save(tmp_path, 1))
    for step in (2, 3, 4, 5):
        save(tmp_path, step)
    checkpoint.retain(tmp_path, 1)
    assert sorted(checkpoint.verified(one).step for one in checkpoint.all_of(tmp_path)) == [1, 4, 5]


def test_earlier_torn_one_of_same_step_is_replaced(tmp_path: Path) -> None:
    folder = save(tmp_path, 3)
    (folder / "rank-0/model").write_text("torn")
    with pytest.raises(Torn):
        checkpoint.verified(folder)
    assert checkpoint.verified(save(tmp_path, 3)).step == 3


def test_another_version_is_not_loaded(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    path = folder / checkpoint.MANIFEST
    path.write_text(path.read_text().replace('"version": 1', '"version": 9'))
    with pytest.raises(Torn, match="version 9"):
        checkpoint.verified(folder)


def test_a_copy_without_links_keeps_the_best(tmp_path: Path) -> None:
    """Contract: `kubectl cp` skips links; best.txt names the folder, and a resume makes the link again."""
    save(tmp_path, 1)
    checkpoint.point_best(tmp_path, save(tmp_path, 2))
    save(tmp_path, 3)
    assert (tmp_path / "best.txt").read_text() == "epoch-0000-step-00000002\n"
    (tmp_path / "best").unlink()
    checkpoint.restore_best(tmp_path)
    assert checkpoint.best(tmp_path) == tmp_path / "epoch-0000-step-00000002"


def test_a_best_that_is_missing_is_not_restored(tmp_path: Path) -> None:
    """Contract: best.txt leads to nothing then, which the audit reports."""
    save(tmp_path, 1)
    (tmp_path / "best.txt").write_text("epoch-0000-step-00000009")
    checkpoint.restore_best(tmp_path)
    assert not os.path.lexists(tmp_path / "best")
    assert checkpoint.best(tmp_path) == tmp_path / "epoch-0000-step-00000009"


@pytest.mark.parametrize("name", ["epoch-0000-step-9", "../elsewhere", ""])
def test_a_name_of_no_checkpoint_is_not_the_best(tmp_path: Path, name: str) -> None:
    save(tmp_path, 1)
    (tmp_path / "best.txt").write_text(name)
    checkpoint.restore_best(tmp_path)
    assert checkpoint.best(tmp_path) is None


def test_a_best_that_is_there_stays(tmp_path: Path) -> None:
    """Contract: the link decides, whatever best.txt says: a kill may come between the two."""
    checkpoint.point_best(tmp_path, save(tmp_path, 1))
    save(tmp_path, 2)
    (tmp_path / "best.txt").write_text("epoch-0000-step-00000002")
    checkpoint.restore_best(tmp_path)
    assert checkpoint.best(tmp_path) == tmp_path / "epoch-0000-step-00000001"


@pytest.mark.parametrize("is_cut_off", [True, False])
def test_damaged_newer_checkpoints_do_not_displace_one_just_written(is_cut_off: bool, tmp_path: Path) -> None:
    """Contract: after a resume from step 1, what was written since is kept, also with later torn ones."""
    for step in (1, 4, 5, 6):
        save(tmp_path, step)
    for folder in checkpoint.all_of(tmp_path):
        if checkpoint.step_of(folder) > 1:
            path = folder / "rank-0/model"
            path.write_bytes(bytes(1 if is_cut_off else path.stat().st_size))
    assert newest(tmp_path) == 1
    checkpoint.retain(tmp_path, 2, checkpoint.step_of(save(tmp_path, 2)))
    checkpoint.retain(tmp_path, 2, checkpoint.step_of(save(tmp_path, 3)))
    assert newest(tmp_path) == 3
    assert sorted(map(checkpoint.step_of, checkpoint.all_of(tmp_path))) == [2, 3, 4, 5, 6]


def test_a_cut_off_checkpoint_does_not_count_as_kept(tmp_path: Path) -> None:
    """Contract: the previous checkpoint is there if the newest is damaged later."""
    for step in (1, 2, 3):
        save(tmp_path, step)
    (tmp_path / "epoch-0000-step-00000002/rank-0/model").write_text("t")
    checkpoint.retain(tmp_path, 2, 3)
    assert sorted(map(checkpoint.step_of, checkpoint.all_of(tmp_path))) == [1, 2, 3]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("files", [], "manifest.json cannot be read: 'list' object"),
        ("files", {"rank-0/model": {"size": 6}}, "cannot be read: 'sha256'"),
        ("files", {"rank-0/model": None}, "cannot be read: "),
        ("files", {}, "names no files"),
        ("version", 2, "has version 2; expected 1"),
    ],
)
def test_a_manifest_of_another_form_is_no_checkpoint(
    key: str, value: object, message: str, tmp_path: Path
) -> None:
    """Contract: the previous checkpoint is used; a later version is named as such, whatever else it has."""
    save(tmp_path, 1)
    path = save(tmp_path, 2) / checkpoint.MANIFEST
    unknown = {"shards": 2} if key == "version" else {}
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value} | unknown))
    messages: list[str] = []
    found = checkpoint.newest(tmp_path, messages.append)
    assert found is not None
    assert found[1].step == 1
    assert message in messages[0]
