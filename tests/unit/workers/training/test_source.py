"""Texts with a known entropy: the figure is right, and the texts are of it."""

import json
import math
import random
from pathlib import Path

import pytest

from harness.workers.training import source
from harness.workers.training.source import Chain


def test_the_entropy_of_chains_that_one_can_reckon() -> None:
    """Contract: fair coins have ln 2 a letter; what follows surely has nothing."""
    # Letters a and b, each as probable; a document ends after each letter with 1/2.
    fair = Chain(((0.25, 0.25, 0.5), (0.25, 0.25, 0.5), (0.5, 0.5, 0.0)))
    # Of three states in a row, two are letters on average and one of two … by hand: shares 1/3, 1/3, 1/3.
    assert fair.shares() == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert fair.entropy() == pytest.approx((2 * 1.5 * math.log(2) + math.log(2)) / 3)
    sure = Chain(((0.0, 1.0), (1.0, 0.0)))
    assert sure.entropy() == 0.0


def test_the_texts_have_the_entropy_that_is_said() -> None:
    """Contract: the chain's own loss on many documents comes to its entropy."""
    made = source.chain(6, 40, 3)
    numbers = random.Random(5)
    documents = [made.document(numbers) for _ in range(3000)]
    assert made.loss(documents) == pytest.approx(made.entropy(), rel=0.01)
    assert sum(map(len, documents)) / 3000 == pytest.approx(40, rel=0.1)


def test_the_same_seed_writes_the_same_disjoint_files(tmp_path: Path) -> None:
    """Contract: the same seed writes the same; val is of other documents than train."""
    for name in ("a", "b"):
        assert source.main(["--out-dir", str(tmp_path / name), "--documents", "50"]) == 0
    assert (tmp_path / "a/train.jsonl").read_text() == (tmp_path / "b/train.jsonl").read_text()
    train = (tmp_path / "a/train.jsonl").read_text().splitlines()
    val = (tmp_path / "a/val.jsonl").read_text().splitlines()
    assert (len(train), len(val)) == (50, 10)
    assert not set(train) & set(val)
    document = json.loads((tmp_path / "a/source.json").read_text())
    assert 0 < document["entropy"] < math.log(9)
    assert document["val"] == pytest.approx(document["entropy"], rel=0.2)
