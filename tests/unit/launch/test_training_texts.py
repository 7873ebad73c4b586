"""Texts for `harness train --data`: what is refused before the launch, and what is copied to the volume."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from harness.core.errors import HarnessError, UsageError
from harness.launch.workloads import training
from harness.launch.workloads.training_spec import TrainingSpec
from harness.launch.workloads.training_texts import copy_texts
from harness.settings import load
from harness.workers.training import documents, source

GOOD = json.dumps({"text": "a document that is long enough to train on, with all its letters. " * 3}) + "\n"


def texts_in(folder: Path, train: str = GOOD, val: str = GOOD) -> Path:
    """Write the two files of a data set."""
    (folder / "train.jsonl").write_text(train)
    (folder / "val.jsonl").write_text(val)
    return folder


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        ({"train": ""}, (), r"train\.jsonl: at least 129 tokens are expected .*; the data is empty"),
        ({"val": ""}, (), r"val\.jsonl: at least 2 tokens are expected; the data is empty"),
        ({"val": GOOD + GOOD[:40]}, (), r"val\.jsonl:2: the last line is cut off; found"),
        ({"train": GOOD + "no json\n"}, (), r"train\.jsonl:2: one JSON object per line is expected; found"),
        (
            {},
            ("--text-field", "content"),
            r'train\.jsonl:1: the key "content" is expected; the object has "text"',
        ),
        ({}, ("--context", "4096"), r"at least 4097 tokens are expected \(--context 4096"),
    ],
)
def test_texts_the_trainer_rejects_are_refused_before_launch(
    files: dict[str, str], options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    """Contract: the trainer's own words, with the file of this machine."""
    workload = training.workload(TrainingSpec(data=texts_in(tmp_path, **files), options=options))
    with pytest.raises(UsageError, match=message):
        workload.check(load(runs_dir=tmp_path))


def test_texts_that_are_good_are_not_refused(tmp_path: Path) -> None:
    """Contract: with another tokenizer, how many tokens a file has is known only in the pods."""
    texts_in(tmp_path)
    training.workload(TrainingSpec(data=tmp_path)).check(load(runs_dir=tmp_path))
    options = ("--context", "4096", "--model-local-dir", "/models/gpt2")
    training.workload(TrainingSpec(data=tmp_path, options=options)).check(load(runs_dir=tmp_path))


def test_half_emoji_is_refused_and_windows_file_read(tmp_path: Path) -> None:
    """Contract: all wrong lines of both files before the launch. A byte order mark and CRLF are fine."""
    lines = [
        json.dumps({"text": f"line {number} of a small corpus, long enough to count. " * 4})
        for number in range(400)
    ]
    (tmp_path / "val.jsonl").write_text("\r\n".join(lines[:40]) + "\r\n", encoding="utf-8-sig")
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    TrainingSpec(data=tmp_path).examine_data()
    lines[299], lines[310] = '{"text": "a smile that was cut: \\ud83d"}', '{"text": null}'
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(UsageError) as refused:
        TrainingSpec(data=tmp_path).examine_data()
    assert (
        f'{tmp_path}/train.jsonl:300: "text" has \\ud83d, half of a surrogate pair' in refused.value.message
    )
    assert f'{tmp_path}/train.jsonl:311: "text" must be a string; found null' in refused.value.hint


def test_gap_among_shards_is_a_warning_before_the_launch(tmp_path: Path) -> None:
    texts_in(tmp_path)
    (tmp_path / "train.jsonl").rename(tmp_path / "train-0.jsonl")
    for number in (1, 3):
        (tmp_path / f"train-{number}.jsonl").write_text((tmp_path / "train-0.jsonl").read_text())
    spec = TrainingSpec(data=tmp_path)
    spec.examine_data()
    [warning] = spec.data_warnings()
    assert "train-0.jsonl to train-3.jsonl have a gap: 2 is missing" in warning
    assert TrainingSpec().data_warnings() == []


def test_texts_larger_than_pod_memory_are_refused(tmp_path: Path) -> None:
    """Contract: each rank holds all tokens, two bytes each. Otherwise the kernel would kill each attempt."""
    texts_in(tmp_path, train=GOOD * 100)
    TrainingSpec(data=tmp_path, memory="1Mi").examine_data()
    with pytest.raises(UsageError, match=r"tokens are too many for this pod: each rank has 0\.0 GiB"):
        TrainingSpec(data=tmp_path, memory="1Mi", processes=20).examine_data()


def test_shards_are_copied_to_the_volume(tmp_path: Path) -> None:
    (tmp_path / "data/train").mkdir(parents=True)
    texts_in(tmp_path / "data")
    (tmp_path / "data/train.jsonl").rename(tmp_path / "data/train/part-0.jsonl")
    (tmp_path / "data/val.jsonl").rename(tmp_path / "elsewhere")
    (tmp_path / "data/val.jsonl").symlink_to(tmp_path / "elsewhere")
    copy_texts(tmp_path / "data", tmp_path / "volume")
    copied = sorted(path.relative_to(tmp_path / "volume") for path in (tmp_path / "volume").rglob("*.jsonl"))
    assert copied == [Path("train/part-0.jsonl"), Path("val.jsonl")]
    assert all(
        not path.is_symlink() and path.stat().st_mode & 0o004 for path in (tmp_path / "volume").rglob("*")
    )
    assert documents.files(tmp_path / "volume", "train") == [tmp_path / "volume/train/part-0.jsonl"]


def test_the_entropy_of_texts_that_were_replaced_is_removed(tmp_path: Path) -> None:
    """Contract: otherwise a loss is compared with the entropy of other texts: training.loss_below_entropy."""
    (tmp_path / "data").mkdir()
    texts_in(tmp_path / "data")
    source.main(["--out-dir", str(tmp_path / "volume"), "--documents", "20"])
    copy_texts(tmp_path / "data", tmp_path / "volume")
    assert sorted(path.name for path in (tmp_path / "volume").iterdir()) == ["train.jsonl", "val.jsonl"]


@pytest.mark.parametrize("other", ["train.jsonl.gz", "train/part-1.jsonl"])
def test_other_texts_on_kept_volume_are_not_mixed(other: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    texts_in(tmp_path / "data")
    if "/" in other:
        (tmp_path / "data/train").mkdir()
        (tmp_path / "data/train.jsonl").rename(tmp_path / "data/train/part-0.jsonl")
    (tmp_path / "volume" / other).parent.mkdir(parents=True)
    (tmp_path / "volume" / other).write_text(GOOD)
    with pytest.raises(
        HarnessError, match=f"has different texts from an earlier launch: .*{Path(other).name}"
    ):
        copy_texts(tmp_path / "data", tmp_path / "volume")


@pytest.mark.parametrize("closed", ["", "val.jsonl"])
def test_texts_that_may_not_be_read(closed: str) -> None:
    with tempfile.TemporaryDirectory() as name:  # those of pytest are closed to other users
        folder, user = texts_in(Path(name)), os.geteuid()
        folder.chmod(0o755)
        (folder / closed).chmod(0)
        if user == 0:
            os.seteuid(65534)  # root reads everything
        try:
            with pytest.raises(UsageError, match="cannot be read: Permission denied"):
                TrainingSpec(data=folder).examine_data()
        finally:
            os.seteuid(user)
            folder.chmod(0o700)


def test_reaching_an_entropy_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    """Contract: without source.json the verdict could only be UNKNOWN, after the whole training."""
    texts_in(tmp_path)
    expected = r"--reach requires texts with a known entropy, but --data .* has no source\.json"
    with pytest.raises(UsageError, match=expected):
        TrainingSpec(data=tmp_path, reach=0.1)
    (tmp_path / "source.json").write_text("{}")
    assert TrainingSpec(data=tmp_path, reach=0.1).reach == 0.1
