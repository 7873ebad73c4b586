"""The trainers under torchrun in the worker image, on the CPU: what is killed comes back, to the last bit.

Ranks are killed with SIGKILL by tests/k8s/files/killer.py, which runs beside torchrun in the container.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from mlflow_server import MlflowServer
from tracker_server import Server

from harness.context import RunContext
from harness.provision.images.build import SCRIPTS, build_worker
from harness.provision.images.stack import resolve
from harness.settings import Settings
from harness.tracker.client.audit import EmbeddedAudit
from harness.workers.training import checkpoint, source
from harness.workers.training.run_lock import RunLock

pytestmark = pytest.mark.training
FILES = Path(__file__).parent / "files"
SMALL = ("--width", "32", "--layers", "1", "--context", "64", "--batch", "16", "--micro-batch", "2")
OPTIONS = (*SMALL, "--epochs", "3", "--save-every", "10", "--dropout", "0.1", "--log-every", "1")
SMOKE = "--epochs 2 --batch 256 --samples 4096 --features 128 --classes 4 --lr 3e-3 --seed 42"
"""As the guide has it."""
RANKS = 4
SINGLE = ("python3",)
"""In place of torchrun: what follows is run by Python itself."""
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

    def ran(
        out: Path,
        *words: str,
        ranks: int = RANKS,
        kills: str = "",
        restarts: int = 0,
        environment: Mapping[str, str] = {},
    ) -> Ran:
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
        if environment:  # of servers on this host's loopback
            made += ["--network", "host"]
            made += [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
        # Without it a restarted rank meets the addresses of the attempt before (docs/training.md).
        made += ["-e", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "-e", "PYTHONDONTWRITEBYTECODE=1", image]
        command = [*made, "python3", "/files/killer.py", "/out/a", kills, *torchrun, *words]
        if words[: len(SINGLE)] == SINGLE:
            command = [*made, *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        finally:
            subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=False)
        assert "MISSED" not in done.stdout, done.stdout[-3000:]
        return Ran(done.returncode, done.stdout + done.stderr)

    return ran


def train(
    run: Run, out: Path, *more: str, ranks: int = RANKS, kills: str = "", environment: Mapping[str, str] = {}
) -> Ran:
    """Train the small model in folder `a` of `out`."""
    words = ("training.train_framework", "--run-name", "a", *OPTIONS, *more)
    restarts = 20 if kills else 0
    return run(out, *words, ranks=ranks, kills=kills, restarts=restarts, environment=environment)


@pytest.fixture(scope="module")
def undisturbed(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """A training that nobody disturbed, and its folder."""
    out = tmp_path_factory.mktemp("undisturbed")
    ran = train(run, out)
    assert ran.code == 0, ran.out[-3000:]
    return ran, out / "a"


@pytest.mark.nightly
def test_the_loss_reaches_what_the_texts_allow(run: Run, data: Path, tmp_path: Path) -> None:
    """Contract: the loss comes near the entropy of its source and does not go below; `best` is the least."""
    floor = json.loads((data / "source.json").read_text())["val"]
    words = (*SMALL, "--epochs", "6", "--lr", "2e-2", "--save-every", "1000", "--keep", "10")
    ran = run(tmp_path, "training.train_framework", "--run-name", "a", *words, ranks=2)
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
        # Those of `make test` are in test_kills_leave_one_curve_in_both_trackers.
        pytest.param("2@step:13,0@writing:2,1@step:68", marks=pytest.mark.nightly),
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
def test_the_validation_loss_does_not_depend_on_world_size(
    ranks: int, run: Run, undisturbed: tuple[Ran, Path]
) -> None:
    """Contract: to 1e-9 nats, over shards of different sizes; the best checkpoint is as good as it says."""
    ran = run(undisturbed[1].parent, "training.reevaluate", "--checkpoint", "/out/a/best", ranks=ranks)
    assert ran.code == 0, ran.out[-3000:]
    losses = json.loads(next(line for line in ran.out.splitlines() if line.startswith("{")))
    assert abs(losses["loss"] - losses["told"]) <= 1e-9


@pytest.mark.nightly
def test_a_copied_run_is_continued(run: Run, undisturbed: tuple[Ran, Path], tmp_path: Path) -> None:
    """Contract: a copy in which `best` is a folder ends with the same weights, and `best` is a link again."""
    shutil.copytree(undisturbed[1], tmp_path / "a")
    assert not (tmp_path / "a/best").is_symlink()
    newest = checkpoint.newest(tmp_path / "a", print)
    assert newest is not None
    shutil.rmtree(newest[0])
    ran = train(run, tmp_path)
    assert ran.code == 0, ran.out[-3000:]
    assert ran.weights == undisturbed[0].weights
    assert (tmp_path / "a/best").is_symlink()
    assert (
        checkpoint.verified(tmp_path / "a/best").losses == checkpoint.verified(undisturbed[1] / "best").losses
    )


@pytest.mark.nightly
def test_another_writer_and_another_model_are_refused_at_once(
    run: Run, undisturbed: tuple[Ran, Path], tmp_path: Path
) -> None:
    """Contract: exit code 2 of every rank before the first step, in one sentence."""
    subprocess.run(["cp", "-a", f"{undisturbed[1]}", f"{tmp_path}/a"], check=True)
    other = train(run, tmp_path, "--width", "64", ranks=2)
    assert "the weights belong to a different model" in other.out
    assert other.out.count("exitcode  : 2") >= 1
    lock = RunLock(tmp_path / "a", print)
    lock.acquire()
    try:
        refused = train(run, tmp_path, ranks=2)
    finally:
        lock.release()
    assert "/out/a is in use by process" in refused.out
    assert "resumed at step" not in refused.out


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
        "--run-name",
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
    assert "Use another --run-name to start over" in ran.out


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
    assert "the model did not learn" in ran.out


# -- trackers ----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def pluto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The project's own tracker on loopback."""
    server = Server(tmp_path_factory.mktemp("tracker")).start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """A real `mlflow server` on loopback."""
    server = MlflowServer(tmp_path_factory.mktemp("mlflow")).start()
    yield server
    server.kill()


@pytest.mark.nightly
def test_kills_leave_one_curve_in_both_trackers(
    run: Run, pluto: Server, mlflow: MlflowServer, undisturbed: tuple[Ran, Path], tmp_path: Path
) -> None:
    """Contract: one run in each, every step of every metric once, equal values, and each sequence taken once.

    The curve ends at the weights of the training that nobody disturbed and that logged nowhere.
    """
    given = dict(pluto.pluto_environment(tmp_path / "home", PLUTO_RUN_ID="killed")) | mlflow.environment()
    for name in ("PATH", "HOME", "PLUTO_DIR"):
        del given[name]
    ran = train(run, tmp_path / "out", kills="2@step:13,0@writing:2", environment=given)
    assert ran.code == 0, ran.out[-3000:]
    assert ran.weights == undisturbed[0].weights
    with pluto.client() as client:
        audit = EmbeddedAudit(client)
        (there,) = audit.runs(external_id="killed", project="e2e", job_name=None)
        points = sorted(audit.points([there.run_id]), key=lambda point: point.time_ms)
    assert there.status == "COMPLETED"
    shown: dict[str, dict[int, float]] = {}
    for point in points:
        if not point.metric.startswith("sys/"):
            shown.setdefault(point.metric, {})[point.step] = point.value  # of a step the latest value counts
    (in_mlflow,) = mlflow.runs()
    values = mlflow.values(in_mlflow)
    assert in_mlflow["info"]["status"] == "FINISHED"
    assert values == {name: {step: [value] for step, value in steps.items()} for name, steps in shown.items()}
    own = {f"rank{rank}/{what}" for rank in range(RANKS) for what in ("train/loss", "data/count", "data/sum")}
    own |= {f"rank{rank}/data/squares" for rank in range(RANKS)}
    whole = own | {"train/loss", "train/lr", "train/ranks"}
    assert shown.keys() == whole | {"val/loss", "val/perplexity"}
    steps = re.search(r"(\d+) steps per epoch", ran.out)
    assert steps
    per_epoch = int(steps[1])
    assert all(sorted(shown[name]) == list(range(3 * per_epoch)) for name in whole)
    assert sorted(shown["val/loss"]) == [per_epoch - 1, 2 * per_epoch - 1, 3 * per_epoch - 1]
    sequences = re.search(r"tokens in (\d+) sequences", ran.out)
    assert sequences
    count = int(sequences[1])
    for epoch in range(3):
        of_epoch = range(epoch * per_epoch, (epoch + 1) * per_epoch)
        found = [
            sum(shown[f"rank{rank}/data/{what}"][step] for rank in range(RANKS) for step in of_epoch)
            for what in ("count", "sum", "squares")
        ]
        assert found == [count, sum(range(count)), sum(one * one for one in range(count))]


@pytest.mark.nightly
def test_a_tracker_that_takes_nothing_fails_the_training(run: Run, pluto: Server, tmp_path: Path) -> None:
    """Contract: it trains to its end with a line that says what is missing, and exit code 1."""
    given = dict(pluto.pluto_environment(tmp_path / "home", PLUTO_RUN_ID="refused", PLUTO_API_KEY="wrong"))
    for name in ("PATH", "HOME", "PLUTO_DIR"):
        del given[name]
    words = ("--tracker-seconds", "5", "--epochs", "1")
    ran = train(run, tmp_path / "out", *words, ranks=2, environment=given)
    assert ran.code != 0
    assert re.search(r"\[TRAIN\] rank 1: Pluto accepts no points \(RuntimeError: .*\)", ran.out), ran.out[
        -3000:
    ]
    assert re.search(r"\[DONE\] \d+ values are not in any tracker: run again", ran.out)


# -- options -----------------------------------------------------------------------------------------------
@pytest.mark.nightly
def test_recomputed_activations_change_no_bit(
    run: Run, undisturbed: tuple[Ran, Path], tmp_path: Path
) -> None:
    """Contract: --recompute saves memory, and the weights are the same, also with dropout."""
    ran = train(run, tmp_path, "--recompute")
    assert ran.code == 0, ran.out[-3000:]
    assert ran.weights == undisturbed[0].weights


@pytest.mark.nightly
def test_accumulated_gradients_are_those_of_one_large_batch(run: Run, tmp_path: Path) -> None:
    """Contract: sequences that a rank takes one by one give the weights of all at once, but for rounding."""
    losses, weights = [], []
    for size in (1, 3, 4):
        ran = train(run, tmp_path / str(size), "--dropout", "0", "--micro-batch", str(size))
        assert ran.code == 0, ran.out[-3000:]
        losses.append(ran.loss)
        weights.append(ran.weights)
    assert losses[0] == pytest.approx(losses[2], abs=1e-4)
    assert losses[1] == pytest.approx(losses[2], abs=1e-4)
    assert len(set(weights)) > 1, "the size had no effect: nothing was accumulated"


@pytest.mark.nightly
@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_mixed_precision_trains_and_resumes_to_the_bit(
    amp: str, run: Run, undisturbed: tuple[Ran, Path], tmp_path: Path
) -> None:
    """Contract: nearly the loss of float32, other weights, and the same ones after a kill."""
    whole = train(run, tmp_path / "whole", "--amp", amp)
    assert whole.code == 0, whole.out[-3000:]
    assert whole.loss == pytest.approx(undisturbed[0].loss, abs=0.02)
    assert whole.weights != undisturbed[0].weights
    killed = train(run, tmp_path / "killed", "--amp", amp, kills="1@step:45")
    assert killed.weights == whole.weights


@pytest.mark.nightly
def test_compile_without_a_compiler_is_refused(run: Run, tmp_path: Path) -> None:
    """Contract: the image lacks what --compile needs; it says so, and PyTorch's reason, before it trains."""
    ran = train(run, tmp_path, "--compile", ranks=1)
    assert ran.code != 0
    assert "--compile does not work in this image: it needs a C++ compiler" in ran.out
    assert "Need networkx installed" in ran.out, "not what PyTorch itself said"
    assert "[TRAIN]" not in ran.out


# -- Hugging Face ------------------------------------------------------------------------------------------
TINY = (
    *("--model-local-dir", "/out/model", "--tokenizer-local-dir", "/out/tokenizer", "--local-files-only"),
    *("--dropout", "0"),
)


@pytest.fixture(scope="module")
def tiny(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a GPT-2 of 37 thousand weights, and a tokenizer of the texts."""
    folder = tmp_path_factory.mktemp("tiny") / "hf"
    result = run(folder, *SINGLE, "/files/tiny_gpt2.py", "make", "/out", "/data/train.jsonl")
    assert result.code == 0, result.out[-3000:]
    return folder


@pytest.mark.nightly
def test_a_hugging_face_model_resumes_to_the_bit(run: Run, tiny: Path, tmp_path: Path) -> None:
    """Contract: a model and a tokenizer from folders train as the small GPT does; GPT-2 has dropout."""
    ran = []
    for name, kills in (("whole", ""), ("killed", "1@step:7,0@writing:2,3@step:25")):
        shutil.copytree(tiny, tmp_path / name)
        ran.append(train(run, tmp_path / name, *TINY, kills=kills))
        assert ran[-1].code == 0, ran[-1].out[-3000:]
    assert ran[0].weights == ran[1].weights
    assert ran[1].out.count("KILLED") == 3


@pytest.mark.nightly
def test_the_best_hugging_face_checkpoint_loads_in_transformers(run: Run, tiny: Path, tmp_path: Path) -> None:
    """Contract: what is exported loads by transformers alone, and has the loss that the manifest says."""
    shutil.copytree(tiny, tmp_path / "out")
    out = tmp_path / "out"
    assert train(run, out, *TINY, "--recompute", ranks=2).code == 0
    best = checkpoint.best(out / "a")
    assert best is not None
    expected_loss = checkpoint.verified(best).losses["val/loss"]
    exported = run(
        out, *SINGLE, "-m", "training.export", "--checkpoint", "/out/a/best", "--to", "/out/export"
    )
    assert exported.code == 0, exported.out[-3000:]
    assert (out / "export" / "model.safetensors").is_file()
    found = run(out, *SINGLE, "/files/tiny_gpt2.py", "loss", "/out/export", "/data/val.jsonl", "64")
    assert found.code == 0, found.out[-3000:]
    result = json.loads(next(line for line in found.out.splitlines() if line.startswith("{")))
    assert result["loss"] == pytest.approx(expected_loss, abs=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model-local-dir", "/nothing"), "--model-local-dir must be a folder; /nothing is not a folder"),
        ((*TINY, "--context", "65"), "--context can be at most 64 for this model; found 65"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    options: tuple[str, ...], words: str, run: Run, tiny: Path
) -> None:
    """Contract: the words say what is expected and what was seen."""
    ran = train(run, tiny, "--dropout", "0", *options, ranks=1)
    assert ran.code != 0
    assert words in ran.out
