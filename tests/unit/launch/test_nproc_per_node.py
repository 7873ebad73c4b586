"""How many ranks a script starts on each node is read where torchrun reads it."""

import pytest

from harness.launch.workloads.nproc_per_node import read


@pytest.mark.parametrize(
    ("script", "count"),
    [
        ("torchrun --nproc_per_node=2 a.py", 2),
        ("torchrun --nproc-per-node 4 a.py", 4),
        ("torchrun --nnodes=2 \\\n  --nproc-per-node=3 \\\n  a.py", 3),
        ("python3 -m torch.distributed.run --nproc_per_node=2 a.py", 2),
        ("/usr/bin/python -u -m torch.distributed.launch --nproc-per-node=2 a.py", 2),
        ("torchrun a.py", 1),
        ("torchrun a.py --nproc_per_node=16", 1),
        ("# torchrun --nproc_per_node=16\ntorchrun a.py", 1),
        ("echo 'use torchrun --nproc_per_node=16'\ntorchrun --nproc_per_node=2 a.py", 2),
        ("echo torchrun --nproc_per_node=16; torchrun --nproc_per_node=2 a.py", 2),
        ("N=2\ntorchrun --nproc_per_node=$N a.py", 2),
        ("export N=2; torchrun --nproc_per_node=${N} a.py", 2),
        ("torchrun --nproc_per_node=${MISSING:-2} a.py", 2),
        ("PET_NPROC_PER_NODE=2 torchrun a.py", 2),
        ("export PET_NPROC_PER_NODE=2\ntorchrun a.py", 2),
        ("bash -c 'torchrun --nproc_per_node=2 a.py' | tee log", 2),
        ('bash -lc "exec torchrun --nproc_per_node=2 a.py"', 2),
        ("if true; then torchrun --nproc_per_node=2 a.py; fi", 2),
        ("cat <<EOF\ntorchrun --nproc_per_node=16 a.py\nEOF\ntorchrun --nproc_per_node=2 a.py", 2),
        ("(torchrun --nproc_per_node=2 a.py) || exit 1", 2),
        ("torchrun --nproc_per_node=gpu a.py", 8),
        ("torchrun --nproc_per_node=auto a.py", 8),
        # What the script computes is not known before it runs.
        ("torchrun --nproc_per_node=$(nproc) a.py", None),
        ("torchrun --nproc_per_node=`nproc` a.py", None),
        ("N=$(nvidia-smi -L | wc -l); torchrun --nproc_per_node=$N a.py", None),
        ("torchrun --nproc_per_node=cpu a.py", None),
        ("bash train.sh", None),
        ("python train.py", None),
        ("", None),
        ("torchrun --nproc_per_node=2 a.py; torchrun --nproc_per_node=1 b.py", None),
        ("echo 'unclosed", None),
    ],
)
def test_the_count_is_the_one_that_torchrun_gets(script: str, count: int | None) -> None:
    assert read(script, {}, gpus=8).count == count


@pytest.mark.parametrize(
    ("script", "guess"), [("sh train.sh --nproc-per-node=2 x", 2), ("python a.py", 1), ("torchrun a.py", 1)]
)
def test_what_is_not_known_is_guessed(script: str, guess: int) -> None:
    assert read(script, {}).guess == guess


def test_variables_of_the_job_count() -> None:
    assert read("torchrun --nproc_per_node=$GPUS a.py", {"GPUS": "2"}).count == 2
    assert read("torchrun a.py", {"PET_NPROC_PER_NODE": "2"}).count == 2


def test_gpus_that_nobody_counts_are_not_known() -> None:
    assert read("torchrun --nproc_per_node=gpu a.py", {}).count is None


@pytest.mark.parametrize("word", ["two", "0", "-1", "2.5"])
def test_a_word_that_torchrun_does_not_take_is_wrong(word: str) -> None:
    assert read(f"torchrun --nproc_per_node={word} a.py", {}).wrong == word
