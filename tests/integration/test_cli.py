"""The `harness` program: exit codes, help and JSON, without Docker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.faults.recorded_bundles import extract

HARNESS = Path(sys.executable).with_name("harness")
JOB = Path(__file__).parents[2] / "jobs" / "multinode.yaml"
RECORDED = Path(__file__).parents[1] / "recorded"
COMMANDS = ["run", "up", "down", "status", "judge", "show", "report", "summary", "runs", "diff", "logs"]
COMMANDS += ["doctor", "tracker", "images", "faults", "soak", "pause", "resume", "shell"]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user without Docker and without settings."""
    (tmp_path / "bin").mkdir()
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("HARNESS_", "PLUTO_", "KEEP_CLUSTER"))}
    return {**kept, "PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "COLUMNS": "120"}


def harness(*arguments: str, env: dict[str, str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(HARNESS), *arguments],
        env={**env, **more},
        cwd=env["HOME"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def wrong(done: subprocess.CompletedProcess[str], message: str) -> None:
    """Assert that a command exits with 64, prints one message with this text and no traceback, and creates
    nothing."""
    assert done.returncode == 64, done.stderr + done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", str(JOB), "--no-such-option"], "--no-such-option"),
        (["no-such-command"], "no-such-command"),
        (["run"], "Missing argument"),
        (["run", "nowhere.yaml"], "nowhere.yaml does not exist"),
        (["run", str(JOB), "--workers", "-1"], "workers"),
        (["run", str(JOB), "--workers", "two"], "--workers"),
        (["run", str(JOB), "--images", "sometimes"], "images"),
        (["run", str(JOB), "--wait", "5"], "at least 60 s"),
        (["run", str(JOB), "--tracker", "hosted"], "PLUTO_API_KEY"),
        (["judge", "."], "is not a bundle"),
        (["show", "nowhere"], "no bundle in runs has a name that contains nowhere"),
        (["logs", "."], "is not a bundle"),
        (["report"], "runs/latest is not a bundle"),
        (["report", "some.tar.xz"], "no bundle in runs has a name that contains some.tar.xz"),
        (["diff", ".", "nowhere"], "is not a bundle"),
        (["diff", "."], "Missing argument"),
        (["runs", "--last", "0"], "--last"),
        (["runs", "--prune", "passed"], "all, failed or last:N"),
        (["runs", "--prune", "all"], "removes nothing"),
        (["runs", "--prune", "failed", "--last", "2"], "cannot be combined"),
        (["run", str(JOB), "--keep-runs", "some"], "keep_runs"),
    ],
)
def test_wrong_use_is_told_before_anything_is_made(
    env: dict[str, str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    wrong(harness(*arguments, env=env), message)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("text", ["a: [", "just text", "name: x\nnum_nodes: 0\n"])
def test_a_broken_job_file(env: dict[str, str], tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    wrong(harness("run", "job.yaml", env=env), "job.yaml")


@pytest.mark.parametrize("run_id", ["12345", "JOB-77", "x" * 256])
def test_a_run_id_that_the_client_would_resume(env: dict[str, str], run_id: str) -> None:
    """PLUTO_RUN_ID=12345 or JOB-77 names an earlier run, to which the job would write."""
    wrong(harness("run", str(JOB), env=env, PLUTO_RUN_ID=run_id), "PLUTO_RUN_ID")


@pytest.mark.parametrize(
    ("name", "value"),
    [("HARNESS_WORKERS", "many"), ("HARNESS_WAIT_SECONDS", "0"), ("HARNESS_CPU_REQUEST", "half")],
)
def test_settings_of_the_environment_that_do_not_fit(env: dict[str, str], name: str, value: str) -> None:
    wrong(harness("run", str(JOB), env=env, **{name: value}), name.removeprefix("HARNESS_").lower())


@pytest.mark.parametrize("command", [*([command] for command in COMMANDS), ["images", "build"], []])
def test_every_command_has_a_usage_text(env: dict[str, str], command: list[str]) -> None:
    done = harness(*command, "--help", env=env)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()


def test_help_says_what_is_taken_where_nothing_is_given(env: dict[str, str]) -> None:
    """Text in square brackets must not be interpreted as markup, which would remove it."""
    assert "pluto-e2e)" in harness("run", "--help", env=env).stdout


def test_a_shell_needs_a_cluster_that_was_kept(env: dict[str, str], tmp_path: Path) -> None:
    """Contract: there is no shell for a launch that does not exist, or for a rank that the launch does not
    have."""
    harness("run", str(JOB), env=env)
    wrong(harness("shell", "runs/latest", env=env), "the cluster of")
    wrong(harness("logs", "runs/latest", "--rank", "1", env=env), "no pod for rank 1")


def test_no_runs_yet(env: dict[str, str]) -> None:
    done = harness("runs", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    as_json = harness("runs", "--json", env=env)
    assert (as_json.returncode, json.loads(as_json.stdout)) == (0, [])


def test_a_run_without_docker_prints_one_json_verdict(env: dict[str, str], tmp_path: Path) -> None:
    """The verdict is on stdout and progress is on stderr. Judging the bundle again gives the same verdict."""
    done = harness("run", str(JOB), "--json", env=env)
    verdict = json.loads(done.stdout)
    assert done.returncode == {"PASS": 0, "FAIL": 1, "UNKNOWN": 2}[verdict["verdict"]] != 0
    assert "`docker` is not on PATH" in verdict["explanation"]
    assert "stopped: " in done.stderr
    again = harness("judge", "runs/latest", "--json", env=env)
    assert json.loads(again.stdout) == verdict
    listed = harness("runs", "--json", env=env)
    assert [row["verdict"] for row in json.loads(listed.stdout)] == [verdict["verdict"]]
    assert [row["job"] for row in json.loads(listed.stdout)] == ["pluto-multinode-e2e-test"]
    assert not list((tmp_path / ".local").rglob("state.json"))
    written = (tmp_path / "runs/latest/report.html").read_bytes()
    assert verdict["cause"].encode() in written
    assert harness("report", "--output", "again.html", env=env).stdout == "again.html\n"
    assert (tmp_path / "again.html").read_bytes() == written
    junit = tmp_path / "runs/latest/junit.xml"
    content = junit.read_bytes()
    assert verdict["cause"].encode() in content
    for file in (junit, junit.with_name("ctrf.json"), junit.with_name("report.html")):
        file.unlink()
    assert harness("report", env=env).stdout == "runs/latest/report.html\n"
    assert (junit.read_bytes(), junit.with_name("report.html").read_bytes()) == (content, written)
    assert json.loads(junit.with_name("ctrf.json").read_text())["results"]["summary"]["passed"] > 0
    shown = harness("show", env=env)
    assert "report.html" in shown.stdout
    nonce = (tmp_path / "runs/latest").resolve().name.rpartition("-")[2]
    for command in ("show", "judge"):
        assert f"{nonce}/report.html" in harness(command, nonce, env=env).stdout.replace("\n", "")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_reader_that_has_left_changes_nothing(env: dict[str, str], tmp_path: Path, more: list[str]) -> None:
    """Contract: in `harness run … 2>&1 | head -1`, output that is not read neither stops the cleanup nor
    leads to a PASS.
    """
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen(
        [str(HARNESS), "run", str(JOB), *more], env=env, cwd=tmp_path, stdout=write, stderr=write
    )
    os.close(write)
    code = process.wait(60)
    recorded = json.loads((tmp_path / "runs" / "latest" / "verdict.json").read_text())
    assert code == {"FAIL": 1, "UNKNOWN": 2}[recorded["verdict"]]


def passed(runs: Path, second: int) -> Path:
    """Write a minimal bundle of a launch that passed."""
    path = runs / f"20261121T0500{second:02}Z-{second:08x}"
    path.mkdir(parents=True)
    manifest = {"nonce": f"{second:08x}", "started_at": f"2026-11-21T05:00:{second:02}Z"}
    (path / "manifest.json").write_text(json.dumps({**manifest, "ended_at": "2026-11-21T05:01:00Z"}))
    (path / "verdict.json").write_text(json.dumps({"verdict": "PASS", "explanation": "all is well"}))
    return path


def test_runs_of_any_state_are_listed_and_pruned(env: dict[str, str], tmp_path: Path) -> None:
    """Contract: damaged bundles are included. The number of removed bytes is printed, and `latest` remains
    valid."""
    good = [passed(tmp_path / "runs", second) for second in (1, 2, 3)]
    damaged = passed(tmp_path / "runs", 4)
    (damaged / "manifest.json").write_text("{")
    table = harness("runs", env=env).stdout
    assert [line.split()[0] for line in table.splitlines()[1:-1]] == [path.name for path in [*good, damaged]]
    assert "damaged" not in table.splitlines()[3]
    rows = json.loads(harness("runs", "--last", "2", "--json", env=env).stdout)
    assert [(row["name"], row["state"]) for row in rows] == [
        (good[2].name, "judged"),
        (damaged.name, "damaged"),
    ]
    assert rows[0]["seconds"] == 57
    done = harness("runs", "--prune", "last:1", "--json", env=env)
    removed = json.loads(done.stdout)
    assert [row["bundle"] for row in removed["removed"]] == [f"runs/{path.name}" for path in good[:2]]
    assert removed["bytes"] == sum(row["bytes"] for row in removed["removed"]) > 0
    assert sorted((tmp_path / "runs").iterdir()) == [good[2], damaged]
    again = harness("runs", "--prune", "failed", env=env)
    assert again.stdout.startswith(f"removed runs/{good[2].name}  ")
    assert "bundles removed: 1" in again.stdout


def test_run_keeps_of_past_what_it_is_told(env: dict[str, str], tmp_path: Path) -> None:
    """Contract: older bundles are removed after the run's own verdict, and the run's own bundle is kept."""
    good = [passed(tmp_path / "runs", second) for second in (1, 2, 3)]
    done = harness("run", str(JOB), "--keep-runs", "last:1", env=env)
    assert done.returncode in (1, 2)
    assert f"removed runs/{good[0].name}" in done.stderr
    own = (tmp_path / "runs" / "latest").resolve()
    assert sorted((tmp_path / "runs").glob("2*")) == [good[2], own]
    harness("run", str(JOB), env=env, HARNESS_KEEP_RUNS="failed")
    assert own.is_dir()
    assert not good[2].exists()


def test_diff_exits_with_1_when_verdicts_differ(env: dict[str, str], tmp_path: Path) -> None:
    """The exit code is 0 if nothing relevant differs, and otherwise 1. The output is one document."""
    one, other = (
        str(extract(RECORDED / f"{name}.tar.xz", tmp_path / name))
        for name in ("client-drop-point", "client-wrong-value")
    )
    same = harness("diff", one, one, env=env)
    assert (same.returncode, same.stderr) == (0, "")
    assert "nothing that matters differs" in same.stdout
    result = harness("diff", one, other, "--json", env=env)
    document = json.loads(result.stdout)
    assert (result.returncode, document["matters"]) == (1, True)
    assert [(c["a"], c["b"]) for c in document["verdict"]] == [
        ("unification.lost_points", "unification.wrong_value")
    ]
