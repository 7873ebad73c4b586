"""The trainers under torchrun in the worker image, on the CPU: what is killed comes back, to the last bit.

Ranks are killed with SIGKILL by tests/k8s/files/killer.py, which runs beside torchrun in the container.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from harness.context import RunContext
from harness.provision.images.build import SCRIPTS, build_worker
from harness.provision.images.stack import resolve
from harness.settings import Settings
from harness.workers.training import checkpoint, source

pytestmark = pytest.mark.training
FILES = Path(__file__).parent / "files"
SMALL = ("--width", "32", "--layers", "1", "--context", "64", "--batch", "16", "--micro-batch", "2")
OPTIONS = (*SMALL, "--epochs", "3", "--save-every", "10", "--dropout", "0.1", "--log-every", "1")
SMOKE = "--epochs 2 --batch 256 --samples 4096 --features 128 --classes 4 --lr 3e-3 --seed 42"
"""As the guide has it."""
RANKS = 4
CONTAINERS = count(1)


@dataclass(frozen=True)
class Ran:
    """How a container ended, and what it printed."""

    code: int
    out: str

    @property
    def weights(self) -> str:
        """Return the digest of the weights at the end."""
        found = re.search(r"\[DONE\].* weights ([0-9a-f]{64})", self.out)
        assert found, self.out[-3000:]
        return found[1]

    @property
    def loss(self) -> float:
        """Return the last validation loss, in nats."""
        found = re.search(r"\[DONE\].*validation loss ([0-9.]+)", self.out)
        assert found, self.out[-3000:]
        return float(found[1])


Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of a known entropy."""
    folder = tmp_path_factory.mktemp("data")
    source.main(["--out-dir", str(folder), "--documents", "500"])
    return folder


@pytest.fixture(scope="module")
def run(harness_settings: Settings, data: Path) -> Run:
    """Return what runs a module in the worker image, with the files of this checkout."""
    image = build_worker(
        resolve(RunContext(settings=harness_settings, progress=print)),
        RunContext(settings=harness_settings, progress=print),
    ).tag

    def ran(out: Path, *words: str, ranks: int = RANKS, kills: str = "", restarts: int = 0) -> Ran:
        mounts = {
            SCRIPTS / "training": "/workspace/training:ro",
            FILES: "/files:ro",
            data: "/data:ro",
            out: "/out",
        }
        volumes = [word for path, at in mounts.items() for word in ("-v", f"{path}:{at}")]
        torchrun = f"torchrun --standalone --nproc-per-node={ranks} --max-restarts={restarts} -m".split()
        name = f"training-{out.parent.name}-{next(CONTAINERS)}"
        made = ["docker", "run", "--rm", "--name", name, "--shm-size", "256m", *volumes, "-w", "/workspace"]
        # Without it a restarted rank meets the addresses of the attempt before (docs/training.md).
        made += ["-e", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "-e", "PYTHONDONTWRITEBYTECODE=1", image]
        command = [*made, "python3", "/files/killer.py", "/out/a", kills, *torchrun, *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        finally:
            subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=False)
        assert "MISSED" not in done.stdout, done.stdout[-3000:]
        return Ran(done.returncode, done.stdout + done.stderr)

    return ran


def train(run: Run, out: Path, *more: str, ranks: int = RANKS, kills: str = "") -> Ran:
    """Train the small model in folder `a` of `out`."""
    words = ("training.train_framework", "--run", "a", *OPTIONS, *more)
    return run(out, *words, ranks=ranks, kills=kills, restarts=20 if kills else 0)


@pytest.fixture(scope="module")
def undisturbed(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """A training that nobody disturbed, and its folder."""
    out = tmp_path_factory.mktemp("undisturbed")
    ran = train(run, out)
    assert ran.code == 0, ran.out[-3000:]
    return ran, out / "a"


def test_the_loss_reaches_what_the_texts_allow(run: Run, data: Path, tmp_path: Path) -> None:
    """Contract: the loss comes near the entropy of its source and does not go below; `best` is the least."""
    floor = json.loads((data / "source.json").read_text())["val"]
    words = (*SMALL, "--epochs", "6", "--lr", "2e-2", "--save-every", "1000", "--keep", "10")
    ran = run(tmp_path, "training.train_framework", "--run", "a", *words, ranks=2)
    assert ran.code == 0, ran.out[-3000:]
    assert floor - 0.01 <= ran.loss <= floor * 1.05
    losses = {
        folder: checkpoint.verified(folder).losses["val/loss"] for folder in checkpoint.all_of(tmp_path / "a")
    }
    assert len(losses) == 6
    best = checkpoint.best(tmp_path / "a")
    assert best is not None
    assert losses[best] == min(losses.values())


@pytest.mark.parametrize(
    "kills",
    [
        "2@step:13,0@writing:2,1@step:68",
        pytest.param("0@step:1,1@step:9,2@step:10,3@step:11", marks=pytest.mark.nightly),
        pytest.param("3@named:1,0@named:2,1@named:3,2@named:4", marks=pytest.mark.nightly),
        pytest.param("0@writing:1,1@writing:2,2@writing:3,3@writing:4", marks=pytest.mark.nightly),
        pytest.param("1@step:33,2@step:34,0@step:35,3@step:101,0@step:102", marks=pytest.mark.nightly),
    ],
)
def test_kills_change_no_bit(kills: str, run: Run, undisturbed: tuple[Ran, Path], tmp_path: Path) -> None:
    """Contract: whichever rank is killed when, weights and losses are those of the undisturbed run."""
    ran = train(run, tmp_path, kills=kills)
    assert ran.code == 0, ran.out[-3000:]
    assert ran.out.count("KILLED") == kills.count("@")
    assert ran.weights == undisturbed[0].weights
    losses = [checkpoint.newest(run_, print) for run_ in (tmp_path / "a", undisturbed[1])]
    assert all(losses)
    assert losses[0][1].losses == losses[1][1].losses  # type: ignore[index]


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_validation_loss_is_the_same_for_any_number_of_ranks(
    ranks: int, run: Run, undisturbed: tuple[Ran, Path]
) -> None:
    """Contract: to 1e-9 nats, over shards of different sizes; the best checkpoint is as good as it says."""
    ran = run(undisturbed[1].parent, "training.reevaluate", "--checkpoint", "/out/a/best", ranks=ranks)
    assert ran.code == 0, ran.out[-3000:]
    said = json.loads(next(line for line in ran.out.splitlines() if line.startswith("{")))
    assert abs(said["loss"] - said["told"]) <= 1e-9


@pytest.mark.nightly
def test_a_torn_checkpoint_is_named_and_not_used(
    run: Run, undisturbed: tuple[Ran, Path], tmp_path: Path
) -> None:
    """Contract: a resume takes the checkpoint before, says so, and comes to the same bits."""
    subprocess.run(["cp", "-a", f"{undisturbed[1]}", f"{tmp_path}/a"], check=True)
    newest = checkpoint.newest(tmp_path / "a", print)
    assert newest is not None
    path = newest[0] / "rank-2/generators.pt"
    path.write_bytes(path.read_bytes()[:-1])
    ran = train(run, tmp_path)
    assert f"{newest[0].name}: rank-2/generators.pt has" in ran.out
    assert "resumed at step 100" in ran.out
    assert ran.weights == undisturbed[0].weights


@pytest.mark.nightly
def test_more_ranks_go_on_where_fewer_were(run: Run, tmp_path: Path) -> None:
    """Contract: another number of ranks takes the same sequences; only rounding differs."""
    whole = train(run, tmp_path / "whole", "--dropout", "0", ranks=2)
    first = run(
        tmp_path,
        "training.train_framework",
        "--run",
        "a",
        *OPTIONS,
        "--dropout",
        "0",
        ranks=2,
        kills="0@step:45",
    )
    assert first.code != 0
    then = train(run, tmp_path, "--dropout", "0", ranks=4)
    assert "which 2 ranks wrote" in then.out
    assert then.loss == pytest.approx(whole.loss, abs=1e-3)


@pytest.mark.nightly
def test_another_order_of_the_data_is_refused(
    run: Run, undisturbed: tuple[Ran, Path], tmp_path: Path
) -> None:
    """Contract: a resume with another seed or batch would train on data twice; it says what to do."""
    subprocess.run(["cp", "-a", f"{undisturbed[1]}", f"{tmp_path}/a"], check=True)
    ran = train(run, tmp_path, "--seed", "7")
    assert ran.code != 0
    assert "Another --run begins anew" in ran.out


def test_the_smoke_test(run: Run, tmp_path: Path) -> None:
    """Contract: the guide's command and flags train; its tags are there."""
    ran = run(tmp_path, "training.train", *SMOKE.split(), ranks=2)
    assert ran.code == 0, ran.out[-3000:]
    tags = set(re.findall(r"^\[(DDP|TRAIN|EPOCH|DONE)\]", ran.out, re.MULTILINE))
    assert tags == {"DDP", "TRAIN", "EPOCH", "DONE"}


@pytest.mark.nightly
def test_a_smoke_test_that_learns_nothing_fails(run: Run, tmp_path: Path) -> None:
    """Contract: exit code 1, and the words say why."""
    ran = run(tmp_path, "training.train", "--lr", "0", ranks=2)
    assert ran.code != 0
    assert "it did not learn" in ran.out
