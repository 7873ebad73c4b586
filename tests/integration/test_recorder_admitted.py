"""The recorder of an admitted pod around the unmodified client: digests in the log, judged with the tracker.

Every test runs real programs with the recorder's folder on PYTHONPATH, as the admission policy sets it, and a
tracker on loopback.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from mounting import lay_out
from tracker_server import Server

from harness.evidence.schema.columns import Columns, Part
from harness.evidence.schema.point_rows import PointRows
from harness.judge.finding import Finding
from harness.judge.points import digest_check, digest_records
from harness.launch.mounts import recorder
from harness.tracker.client.audit import EmbeddedAudit
from harness.workers.recorder import digest_lines

UID = "3f0c9a52-6a52-4d5e-8b0c-1d6a1f0d7e11"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the recorder's folder, with the same files as the ConfigMap in a container."""
    return lay_out(recorder.MOUNTED, tmp_path_factory.mktemp("recorder"))


@dataclass
class Job:
    """The processes of one job, each with its own log, and the run that they share."""

    server: Server
    folder: Path
    home: Path

    def start(self, program: str, rank: int | None = 0, **environment: str) -> subprocess.Popen[str]:
        log = self.home / f"log{rank}"
        log.touch()
        home = self.home / f"home{rank}"
        given = {
            "PYTHONPATH": str(self.folder),
            "HARNESS_NONCE": UID,
            "HARNESS_RECORDER_MODE": "admitted",
            "HARNESS_LOG": str(log),
            "PLUTO_RUN_ID": f"run-{self.home.name}",
            **({} if rank is None else {"RANK": str(rank)}),
            **environment,
        }
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            env=self.server.pluto_environment(home, **given),
            cwd=home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, program: str, rank: int | None = 0, code: int = 0, **environment: str) -> str:
        process = self.start(program, rank, **environment)
        output = process.communicate(timeout=120)[0]
        assert process.returncode == code, output
        return output

    def log(self, rank: int | None = 0) -> list[str]:
        return (self.home / f"log{rank}").read_text().splitlines()

    def rows(self) -> tuple[str, list[Part]]:
        """Return the run's id and its raw rows by metric."""
        with self.server.client() as client:
            audit = EmbeddedAudit(client)
            (run,) = audit.runs(external_id=f"run-{self.home.name}", project="e2e", job_name=None)
            return str(run.run_id), [part for rows in audit.columns([run.run_id]) for part in _parts(rows)]

    def judge(self, *ranks: int, parts: Callable[[list[Part]], list[Part]] = list) -> dict[str, Finding]:
        run, rows = self.rows()
        pods = [digest_records.read(self.log(rank), UID, pod=f"pod-{rank}") for rank in ranks]
        return {
            finding.name: finding
            for finding in digest_check.judge(pods, ranks=ranks, parts=parts(rows), run=run)
        }


def _parts(rows: PointRows) -> list[Part]:
    names = list(dict.fromkeys(rows.metrics))
    which = array("I", [names.index(name) for name in rows.metrics])
    columns = Columns(
        names, array("q", rows.steps), array("q", rows.times_ms), array("d", rows.values), which
    )
    return list(columns.series())


@pytest.fixture
def job(server: Server, folder: Path, tmp_path: Path) -> Job:
    return Job(server, folder, tmp_path)


def words(findings: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.result for name, finding in findings.items() if finding.result != "PASS"}


def text(finding: Finding) -> str:
    return finding.check.explanation


LOGS = """
    import pluto, math
    run = pluto.init(name="node0")
    for step in range(900, 1050):
        run.log({"loss": 1 / (step + 1), "zero": -0.0, "nan": math.nan, "count": step}, step=step)
    run.log({"loss": 7.5}, step=1049)          # again, so the last one counts
    run.log({"early": 1.0}, step=10)
    run.log({"early": 2.0}, step=4)            # steps may fall
    run.log({"big": 2**60 + 1, "whole": 3}, step=2**62)
    run.log({"only": None, "text": "warm-up"}, step=2500)
    run.finish()
"""


@pytest.fixture(scope="module")
def logged(server: Server, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Return a job whose only rank has logged points."""
    job = Job(server, folder, tmp_path_factory.mktemp("logged"))
    job.run(LOGS)
    return job


def test_a_healthy_rank_passes_and_writes_few_lines(logged: Job) -> None:
    findings = logged.judge(0)
    assert words(findings) == {}, [text(finding) for finding in findings.values()]
    lines = logged.log()
    assert all(len(line) < digest_lines.MAX_LINE for line in lines if line.startswith("@rec1"))
    assert {line.partition(" ")[0] for line in lines} == {"@rec1", "@sum1"}
    assert sum(map(len, lines)) < 3000


def test_lost_point_is_named_with_its_metric_and_block(logged: Job) -> None:
    def without(parts: list[Part]) -> list[Part]:
        for name, *columns in parts:
            if name == "loss" and 1007 in columns[0]:
                at = columns[0].index(1007)
                for column in columns:
                    del column[at]
        return parts

    findings = logged.judge(0, parts=without)
    assert words(findings) == {"no-lost-points": "FAIL"}
    assert "rank 0: loss: 1 of 150 points, in steps 1000–1999" in text(findings["no-lost-points"])


def test_another_value_is_named_with_its_metric_and_block(logged: Job) -> None:
    def other(parts: list[Part]) -> list[Part]:
        for name, _, values, _ in parts:
            if name == "count" and 903 in values:
                values[values.index(903)] += 1
        return parts

    findings = logged.judge(0, parts=other)
    assert words(findings) == {"values": "FAIL"}
    assert "rank 0: count: 150 points, as many as were logged, but not the same ones, in steps 0–999" in text(
        findings["values"]
    )


def test_points_that_no_rank_logged_are_reported(logged: Job) -> None:
    more: Part = ("foreign", array("q", [1]), array("d", [2.0]), array("q", [3]))
    findings = logged.judge(0, parts=lambda parts: [*parts, more])
    assert words(findings) == {"no-unexpected-points": "FAIL"}
    assert "foreign: 1 point" in text(findings["no-unexpected-points"])


KILLED = """
    import os, pathlib, signal, time, pluto
    from _harness_recorder.ground_truth import client_state
    from _harness_recorder.recorder import digest_recording
    digest_recording.LINE_SECONDS = 0.0
    run = pluto.init(name="node0")
    for step in range(20):
        run.log({"loss": step}, step=step)
    queue = str(pathlib.Path(run._sync_manager.db_path).parent)
    while client_state.read(queue)["unsent"]:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_rank_is_unknown_and_keeps_its_points(job: Job) -> None:
    job.run(KILLED, code=-9)
    findings = job.judge(0)
    assert set(words(findings).values()) == {"UNKNOWN"}
    explanation = text(findings["ground-truth-complete"])
    assert "rank 0: pod-0: it ended without a summary. Its last line is from 20" in explanation
    assert "after 20 points; what it logged afterwards is not known" in explanation
    assert "the 20 points up to its recorder's last line are in the run" in explanation


RESUMED = """
    import os, sys, pluto
    first, last = map(int, os.environ["STEPS"].split("-"))
    run = pluto.init(name="node0")
    for step in range(first, last):
        run.log({"loss": step + first / 7}, step=step)
    run.finish()
"""


def test_a_resumed_rank_overwrites_its_own_points(job: Job) -> None:
    """The second process starts at a step in the middle of the first process's block."""
    job.run(RESUMED, STEPS="0-70")
    job.run(RESUMED, STEPS="45-90")
    findings = job.judge(0)
    assert words(findings) == {}, [text(finding) for finding in findings.values()]


SHARED = """
    import pluto
    run = pluto.init(name="node{rank}")
    for step in range(0, 100, 10):
        run.log({{"loss": step + {rank}, "own/{rank}": step, "same": step}}, step=step)
    run.finish()
"""


def test_ranks_that_log_one_metric_with_different_values_collide(job: Job) -> None:
    for process in [job.start(SHARED.format(rank=rank), rank) for rank in (0, 1)]:
        assert process.wait(60) == 0
    findings = job.judge(0, 1)
    assert words(findings) == {"collisions": "FAIL"}, [text(finding) for finding in findings.values()]
    # The value of the rank whose point came first is named first.
    assert re.search(
        r"loss at step 0: one process logged ([01])\.0, another (?!\1)[01]\.0", text(findings["collisions"])
    )


def test_crash_without_rank_records_points_its_client_dropped(job: Job) -> None:
    output = job.run(
        """
        import pluto
        run = pluto.init(name="node0")
        run.log({"loss": 1.0, "flag": True, "é": 1.0}, step=1)
        raise RuntimeError("a bug of the training")
        """,
        None,
        code=1,
    )
    assert "a bug of the training" in output
    run, rows = job.rows()
    pod = digest_records.read(job.log(None), UID, rank=0)
    findings = {one.name: one for one in digest_check.judge([pod], ranks=[0], parts=rows, run=run)}
    assert words(findings) == {"client-kept": "FAIL"}, [text(finding) for finding in findings.values()]
    explanation = text(findings["client-kept"])
    assert "rank 0: the client leaves out booleans (bool): 'flag' (bool) at step 1 (1 value)" in explanation
    assert "rank 0: 'é' became '-' (1 point)" in explanation


def test_the_program_itself_is_not_changed(job: Job) -> None:
    """No exit function is replaced, and the image's own sitecustomize still runs."""
    own = job.home / "image"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os; os.environ['IMAGE'] = 'ran'\n")
    output = job.run(
        """
        import os, sys
        print(os._exit.__module__, os.execv.__module__, sys.exit.__module__, os.environ["IMAGE"])
        print([path for path in sys.path if "recorder" in path])
        """,
        PYTHONPATH=f"{job.folder}:{own}",
    )
    assert output.splitlines() == ["posix posix sys ran", "[]"]
