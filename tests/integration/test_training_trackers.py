"""The trainers' trackers with real servers, when ranks or trackers are killed.

Each rank is a process (training_rank.py) that logs to the project's own tracker with the unmodified Pluto
client, and to a real `mlflow server`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlflow_server
import pytest
import training_rank
from mlflow_server import MlflowServer
from tracker_server import ROOT, Server

from harness.tracker.client.audit import EmbeddedAudit
from harness.workers.ground_truth import truth_frames

RANK = Path(__file__).with_name("training_rank.py")
STEPS, EVERY = 50, 10
NONCE = "5eed24cb4d5f5eed"


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    """Yield a server that is shared by all tests in this file, because it takes 5 to 10 seconds to start."""
    server = MlflowServer(tmp_path_factory.mktemp("mlflow")).start()
    yield server
    server.kill()


@dataclass
class Training:
    """The processes of several ranks, and the folder of their run."""

    folder: Path
    environment: Mapping[str, str]
    name: str
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    attempts: int = 0

    def start(self, world: int = 2, steps: int = STEPS, limit: float = 60, **more: object) -> Training:
        (self.folder / "run").mkdir(parents=True, exist_ok=True)
        self.attempts += 1
        for rank in range(world):
            given = {"RANK": str(rank), "WORLD_SIZE": str(world), "PLUTO_RUN_ID": self.name}
            words = [rank, world, self.folder / "run", steps, EVERY, limit]
            with self._log(rank).open(
                "wb"
            ) as log:  # The output is not a pipe, because a killed rank's upload process would keep it open.
                self.running.append(
                    subprocess.Popen(
                        [mlflow_server.python(), RANK, *map(str, words)],
                        env={
                            **self.environment,
                            **given,
                            **{name: str(value) for name, value in more.items()},
                        },
                        cwd=self.folder,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        return self

    def ended(self, seconds: float = 90) -> list[int]:
        """Return the exit codes of the ranks."""
        deadline = time.monotonic() + seconds
        codes = [one.wait(max(0.1, deadline - time.monotonic())) for one in self.running]
        self.running.clear()
        return codes

    def said(self, rank: int) -> str:
        return self._log(rank).read_text()

    def reached(self, rank: int, step: int, seconds: float = 60) -> None:
        """Wait until a rank has logged a step."""
        deadline = time.monotonic() + seconds
        while f"logged {step}\n" not in self.said(rank):
            assert time.monotonic() < deadline, self.said(rank)
            time.sleep(0.02)

    def _log(self, rank: int) -> Path:
        return self.folder / f"attempt-{self.attempts}-rank-{rank}.log"


@pytest.fixture
def training(server: Server, mlflow: MlflowServer, tmp_path: Path) -> Iterator[Training]:
    """Return ranks that log to both servers."""
    workers = str(ROOT / "harness" / "workers")
    environment = dict(server.pluto_environment(tmp_path / "home", PYTHONPATH=workers)) | mlflow.environment()
    environment |= {"MLFLOW_EXPERIMENT_NAME": tmp_path.name, "TMPDIR": str(tmp_path)}
    del environment["PLUTO_DIR"]
    training = Training(tmp_path, environment, tmp_path.name)
    yield training
    for one in training.running:
        one.kill()
        one.wait()


def in_pluto(server: Server, training: Training) -> dict[str, dict[int, float]]:
    """Return the values that Pluto shows. For each step, this is the value with the latest time."""
    with server.client() as client:
        audit = EmbeddedAudit(client)
        (run,) = audit.runs(external_id=training.name, project="e2e", job_name=None)
        points = list(audit.points([run.run_id]))
    assert run.status == "COMPLETED"
    shown: dict[str, dict[int, tuple[int, float]]] = {}
    for point in points:
        steps = shown.setdefault(point.metric, {})
        steps[point.step] = max(steps.get(point.step, (0, 0.0)), (point.time_ms, point.value))
    return {
        name: {step: value for step, (_, value) in steps.items()}
        for name, steps in shown.items()
        if not name.startswith("sys/")
    }


def in_mlflow(mlflow: MlflowServer, training: Training) -> dict[str, dict[int, list[float]]]:
    """Return all values in the training's only run."""
    (run,) = [one for one in mlflow.runs() if one["info"]["experiment_id"] == experiment(mlflow, training)]
    assert run["info"]["status"] == "FINISHED"
    assert {one["key"]: one["value"] for one in run["data"]["params"]} == {"steps": "100", "lr": "0.003"}
    return mlflow.values(run)


def experiment(mlflow: MlflowServer, training: Training) -> str:
    found: str = mlflow.ask(f"experiments/get-by-name?experiment_name={training.folder.name}")["experiment"][
        "experiment_id"
    ]
    return found


def once(points: Mapping[str, Mapping[int, float]]) -> dict[str, dict[int, list[float]]]:
    return {name: {step: [value] for step, value in steps.items()} for name, steps in points.items()}


def assert_all_arrived(server: Server, mlflow: MlflowServer, training: Training, world: int = 2) -> None:
    """Assert that each tracker contains exactly one run with all points, and that MLflow contains each point
    once."""
    wanted = training_rank.expected(world, STEPS, EVERY)
    assert in_pluto(server, training) == wanted
    assert in_mlflow(mlflow, training) == once(wanted)
    assert not list((training.folder / "run" / "trackers").glob("*.json"))


def assert_truth_is_all(training: Training) -> None:
    """Assert that the ground truth from all attempts equals the logged values, and that it has an end."""
    recorded: dict[str, dict[int, float]] = {}
    for rank in range(2):
        for path in sorted(training.folder.glob(f"attempt-*-rank-{rank}.log")):
            frames = list(truth_frames.decode(NONCE, path.read_text(errors="replace").splitlines()))
            for metric, step, value, _ in (row for frame in frames for row in frame.get("rows", ())):
                recorded.setdefault(metric, {})[step] = truth_frames.decode_value(value)
        assert frames[-1]["k"] == "end"
        (client,) = [frame for frame in frames if frame["k"] == "client"]
        assert not client["unsent"]
    assert recorded == training_rank.expected(2, STEPS, EVERY)


@pytest.mark.nightly
def test_ranks_that_are_killed_log_one_curve(
    server: Server, mlflow: MlflowServer, training: Training
) -> None:
    """Contract: both ranks and all attempts share one run without gaps or repeated steps. The second attempt
    is killed when the server has points after the last checkpoint.
    """
    assert training.start(DIE_AT=33, HARNESS_NONCE=NONCE).ended() == [-signal.SIGKILL] * 2
    assert training.start(DIE_BEFORE_SAVED=40, HARNESS_NONCE=NONCE).ended() == [-signal.SIGKILL] * 2
    assert training.start(HARNESS_NONCE=NONCE).ended() == [0, 0], training.said(0) + training.said(1)
    assert "logged 29\n" not in training.said(0)
    assert_all_arrived(server, mlflow, training)
    assert_truth_is_all(training)
    assert "Traceback" not in training.said(0) + training.said(1)


@pytest.mark.nightly
def test_trackers_that_are_down_for_while_get_every_point(
    server: Server, mlflow: MlflowServer, training: Training
) -> None:
    """Contract: the training waits and logs this in one line. No point is missing or duplicated."""
    training.start(E2E_STEP_SECONDS=0.05)
    training.reached(0, 12)
    server.kill()
    mlflow.signal(signal.SIGSTOP)
    time.sleep(11)  # longer than a request's timeout, after which the request may still be processed
    mlflow.signal(signal.SIGCONT)
    server.start()
    assert training.ended() == [0, 0], training.said(0) + training.said(1)
    assert_all_arrived(server, mlflow, training)
    assert "MLflow accepts no points" in training.said(0)
    assert "MLflow accepts points again after" in training.said(0)


@pytest.mark.nightly
def test_an_uploading_process_that_dies_is_replaced(
    server: Server, mlflow: MlflowServer, training: Training
) -> None:
    """Contract: Pluto's client does not start a second upload process, but the points that the first one had
    not sent still arrive."""
    training.start(E2E_STEP_SECONDS=0.05)
    training.reached(1, 12)
    (training_uploader,) = uploaders(training, 1)
    os.kill(training_uploader, signal.SIGKILL)
    assert training.ended() == [0, 0], training.said(0) + training.said(1)
    assert_all_arrived(server, mlflow, training)


def uploaders(training: Training, rank: int) -> list[int]:
    """Return the processes that upload a rank's points to Pluto."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
        except OSError:
            continue
        if "pluto.sync" in words and f"{training.folder}/pluto-rank{rank}-" in "".join(words):
            found.append(int(path.parent.name))
    return found


@pytest.mark.nightly
def test_training_with_lost_trackers_fails_and_can_be_resumed(
    server: Server, mlflow: MlflowServer, training: Training
) -> None:
    """Contract: the training waits for a limited time, reports a clear error, and exits with 1. If it is run
    again, even with fewer ranks, all points arrive."""
    training.start(limit=4, E2E_STEP_SECONDS=0.05)
    training.reached(0, 12)
    server.kill()
    mlflow.kill()
    began = time.monotonic()
    assert training.ended(120) == [1, 1], training.said(0) + training.said(1)
    # For each tracker, 4 s in the middle and 4 s at the end, plus the time of a request.
    assert time.monotonic() - began < 60
    for rank in range(2):
        for name in ("Pluto", "MLflow"):
            assert f"rank {rank}: {name} has not acknowledged" in training.said(rank)
        assert "they are lost unless the training is run again" in training.said(rank)
        assert "Traceback" not in training.said(rank)
    kept = list((training.folder / "run" / "trackers").glob("*.json"))
    assert len(kept) == 4
    server.start()
    mlflow.start()
    assert training.start(world=1).ended() == [0], training.said(0)
    assert_all_arrived(server, mlflow, training)


@pytest.mark.nightly
def test_trackers_that_come_after_training_began_get_every_point(
    server: Server, mlflow: MlflowServer, training: Training
) -> None:
    """Contract: a training starts without its trackers, and all of its points arrive once the trackers are
    available."""
    server.kill()
    mlflow.kill()
    training.start(E2E_STEP_SECONDS=0.05)
    training.reached(0, 8)
    server.start()
    mlflow.start()
    assert training.ended(120) == [0, 0], training.said(0) + training.said(1)
    assert_all_arrived(server, mlflow, training)


@pytest.mark.nightly
@pytest.mark.parametrize("moment", range(8))
def test_kills_at_other_moments(
    moment: int, server: Server, mlflow: MlflowServer, training: Training
) -> None:
    """Contract: the same applies to a kill at any time."""
    training.start()
    training.reached(0, 5 * moment)
    time.sleep(0.013 * moment)
    for one in training.running:
        one.kill()
    training.ended()
    assert training.start().ended() == [0, 0], training.said(0) + training.said(1)
    assert_all_arrived(server, mlflow, training)


def test_without_a_tracker_nothing_is_sent(tmp_path: Path) -> None:
    """Contract: without a tracker's environment variables, a training runs and buffers nothing."""
    environment: dict[str, Any] = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "harness" / "workers"),
    }
    training = Training(tmp_path, environment, "none")
    assert training.start(world=1).ended() == [0]
    assert "PLUTO_RUN_ID is set, but PLUTO_API_KEY is not" in training.said(0)


@pytest.mark.nightly
def test_mlflow_keeps_the_files_of_a_run_that_ended(mlflow: MlflowServer, training: Training) -> None:
    """Contract: MLflow has the manifest of `best`, the options, and a table with the validations of all
    attempts."""
    training.start(steps=20, DIE_AT=15)
    assert training.ended() == [-signal.SIGKILL] * 2
    assert training.start(steps=20).ended() == [0, 0]
    (run,) = (
        one
        for one in mlflow.runs()
        if one["info"]["experiment_id"]
        in [
            each["experiment_id"]
            for each in mlflow.ask("experiments/search", {"max_results": 100})["experiments"]
            if each["name"] == training.name
        ]
    )
    (folder,) = mlflow.folder.glob(f"artifacts/*/{run['info']['run_id']}/artifacts")
    files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert files.keys() == {"config.json", "best/manifest.json", "validation.csv"}
    assert files["best/manifest.json"] == '{"step": 20}'
    steps = [line.partition(",")[0] for line in files["validation.csv"].splitlines()]
    assert steps == ["step", "9", "19"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_artifacts_for_a_server_folder_are_not_stored_locally(
    scheme: str, mlflow: MlflowServer, training: Training, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Contract: MLflow's client would write to such a folder on its own disk, so the files would be lost with
    the pod."""
    kept = tmp_path_factory.mktemp("server") / "artifacts"
    where = {"name": training.folder.name, "artifact_location": f"{scheme}{kept}"}
    mlflow.ask("experiments/create", where)
    assert training.start(steps=20, world=1).ended() == [0]
    assert not kept.exists()
    assert f"MLflow has not stored the run's files: the server keeps them in {scheme}{kept}" in training.said(
        0
    )
    assert "--artifacts-destination" in training.said(0)


def test_files_go_to_a_folder_of_the_shared_disk(mlflow: MlflowServer, training: Training) -> None:
    """Contract: a folder below the outputs is shared by the server and all ranks."""
    kept = training.folder / "mlruns"
    mlflow.ask("experiments/create", {"name": training.folder.name, "artifact_location": str(kept)})
    assert training.start(steps=20, world=1).ended() == [0]
    assert {path.name for path in kept.rglob("*") if path.is_file()} == {
        "config.json",
        "manifest.json",
        "validation.csv",
    }
