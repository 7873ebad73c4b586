"""The workflow and the actions: what actionlint does not look at.

actionlint knows nothing of composite actions but their inputs and outputs, so their structure is tested here;
and .ci/plan, which every run of the workflow begins with, is run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from ci_scripts import (
    ACTION,
    COMPOSITES,
    FILES,
    LOCK,
    PINNED,
    RELEASE,
    ROOT,
    SITE,
    WORKFLOW,
    Done,
    Step,
    jobs,
    parsed,
    shell,
    steps,
)

SHELL = [
    pytest.param(step, id=f"{path.parent.name}-{number}")
    for path in FILES
    for number, step in enumerate(steps(path))
    if "run" in step
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_action_is_pinned_by_its_whole_digest(path: Path) -> None:
    """Contract: a tag that is moved changes nothing here; the comment says which version it was."""
    lines = [line.strip().removeprefix("- ") for line in path.read_text().splitlines()]
    used = [line for line in lines if line.startswith("uses: ") and not line.startswith("uses: ./")]
    assert used
    assert [line for line in used if not PINNED.fullmatch(line)] == []


def test_an_action_is_of_one_version_everywhere() -> None:
    """Contract: nobody renews a digest in one file alone."""
    seen: dict[str, set[tuple[str, str]]] = {}
    for path in FILES:
        for name, digest, version in re.findall(PINNED.pattern, path.read_text(), re.MULTILINE):
            seen.setdefault(name, set()).add((digest, version))
    assert {name for name, pins in seen.items() if len(pins) > 1} == set()


def test_permissions_are_the_least() -> None:
    """Contract: a job may only read the repository, and code of forks gets no secrets."""
    document = parsed(WORKFLOW)
    assert document["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs().items() if "permissions" in job] == []
    assert "pull_request_target" not in document[True]
    checkouts = [step for step in steps(WORKFLOW) if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(jobs())
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_only_the_job_that_publishes_pages_may_write() -> None:
    """Contract: it runs on main alone, so no pull request gets its rights."""
    document = parsed(SITE)
    assert document["permissions"] == {"contents": "read"}
    writing = {name: job for name, job in document["jobs"].items() if "permissions" in job}
    assert set(writing) == {"publish"}
    assert writing["publish"]["if"] == "github.event_name == 'push'"
    assert document[True]["push"] == {"branches": ["main"]}


def test_everything_that_takes_long_has_a_limit() -> None:
    """Contract: each job has a time limit. Each launch has a shorter one, so that the steps after it still
    run.
    """
    for name, job in jobs().items():
        assert 0 < job["timeout-minutes"] <= 150, name
        for step in job["steps"]:
            if re.search(r"make (e2e|test|\"\$TARGET\")", step.get("run", "")) or step.get("uses") == "./":
                assert step["timeout-minutes"] < job["timeout-minutes"], name


def nightly_targets() -> set[str]:
    return {one["target"] for one in jobs()["nightly"]["strategy"]["matrix"]["include"]}


def test_it_runs_when_it_is_asked_for() -> None:
    """It runs on pushes and pull requests to main and releases/**, and by hand. Each night only the long
    jobs run.
    """
    events = parsed(WORKFLOW)[True]
    for event in ("push", "pull_request"):
        assert events[event]["branches"] == ["main", "releases/**"]
    assert set(events) == {"push", "pull_request", "workflow_dispatch", "schedule"}
    assert nightly_targets() == {"coverage", "faults", "nightly", "soak", "versions"}
    launching = set(jobs()) - {"plan", "lint", "nightly", "digests"}
    assert all("github.event_name != 'schedule'" in jobs()[name]["if"] for name in launching)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_uploads_come_also_after_a_failure(path: Path) -> None:
    """Contract: a failed step does not prevent the upload, for a bundle is needed most after one."""
    uploads = [step for step in steps(path) if "upload-artifact@" in step.get("uses", "")]
    assert all(step["if"].startswith("always()") for step in uploads)
    assert uploads or path in (COMPOSITES[1], SITE)


def test_every_job_that_launches_uploads() -> None:
    """Every job that launches uploads. The action does it itself."""
    for name in set(jobs()) - {"plan", "lint", "python", "action"}:
        assert any("upload-artifact@" in step.get("uses", "") for step in jobs()[name]["steps"]), name


@pytest.mark.parametrize("step", SHELL)
def test_no_expression_is_pasted_into_a_shell(step: Step) -> None:
    """Contract: inputs, branch names and titles reach a shell as variables, never as its text."""
    assert "${{" not in step["run"]


@pytest.mark.parametrize("step", SHELL)
def test_the_shell_is_sound(step: Step) -> None:
    """bash parses it and shellcheck finds nothing. actionlint checks the shell of workflows alone."""
    subprocess.run(["bash", "-n"], input=step["run"], text=True, check=True)
    own = Path(sys.executable).with_name("shellcheck")
    shellcheck = own if own.is_file() else "shellcheck"  # PyPI has none for arm64 Linux
    done = subprocess.run(
        [shellcheck, "--shell=bash", "-"], input=step["run"], text=True, capture_output=True, check=False
    )
    assert done.stdout == ""


def test_its_make_targets_are_those_of_the_makefile() -> None:
    """Contract: CI runs the same targets as people."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join(step["run"] for path in FILES for step in steps(path) if "run" in step)
    used = set(re.findall(r'\bmake (?:-C "\$HARNESS" )?(\S+)', text)) - {'"$TARGET"', ".venv/.made"}
    used |= nightly_targets()
    assert used == {
        "e2e",
        "test",
        "test-cluster",
        "lint",
        "unit",
        "kind",
        "coverage",
        "faults",
        "nightly",
        "site",
        "soak",
        "versions",
    }
    assert used <= targets


def test_go_is_new_enough_for_what_it_builds() -> None:
    """The Go of the source way is new enough to build kind and actionlint."""
    for path in COMPOSITES:
        (go,) = [step for step in steps(path) if "setup-go@" in step.get("uses", "")]
        assert LOCK["source"]["go"].startswith(f"{go['with']['go-version']}.")


@pytest.mark.parametrize("path", COMPOSITES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_composite_action_has_what_github_asks_of_one(path: Path) -> None:
    """`shell` on every run; no time limits and no secrets, which it does not know; ids that were before."""
    document = parsed(path)
    assert document["runs"]["using"] == "composite"
    assert document["name"]
    assert document["description"]
    known: set[str] = set()
    for step in document["runs"]["steps"]:
        assert ("run" in step) != ("uses" in step)
        assert "run" not in step or step["shell"] == "bash"
        assert set(step) <= {"name", "id", "if", "uses", "with", "run", "shell", "env"}
        assert "secrets." not in str(step)
        assert set(re.findall(r"steps\.([\w-]+)\.", str(step))) <= known
        known |= {step["id"]} if "id" in step else set()
    for output in document.get("outputs", {}).values():
        assert set(re.findall(r"steps\.([\w-]+)\.", output["value"])) <= known


def test_every_input_of_the_action_is_described_and_used() -> None:
    """Contract: no undeclared input is used, because it would silently be empty."""
    document = parsed(ACTION)
    assert all(
        entry["description"] and isinstance(entry["default"], str) for entry in document["inputs"].values()
    )
    assert set(re.findall(r"inputs\.([\w-]+)", str(document["runs"]))) == set(document["inputs"])
    (use,) = [step for step in steps(WORKFLOW) if step.get("uses") == "./"]
    assert set(use["with"]) <= set(document["inputs"])


def plan(folder: Path, **env: str) -> Done:
    return shell([str(ROOT / ".ci/plan")], folder, **env)


def test_a_push_runs_all_versions_that_are_tested(tmp_path: Path) -> None:
    """Each version has a node image. Without a key nothing is hosted, as in a fork."""
    done = plan(tmp_path, HAS_KEY="false", INPUT_KUBERNETES="", INPUT_TRACKER="")
    assert (done.code, done.said) == (0, "")
    versions = json.loads(done.outputs["kubernetes"])
    images = {LOCK["registry"]["kubernetes"], *LOCK["registry"]["nodes"]}
    assert versions == ["1.34", "1.35", "1.36"]
    assert all(any(image.startswith(f"v{version}.") for image in images) for version in versions)
    assert done.outputs["job"] == "jobs/multinode.yaml"
    assert done.outputs["hosted"] == "false"


def test_hosted_pluto_is_used_where_its_key_is(tmp_path: Path) -> None:
    """Contract: a push uses hosted Pluto where there is a key. By hand it is chosen, and choosing it without
    a key is an error.
    """
    assert plan(tmp_path, HAS_KEY="true").outputs["hosted"] == "true"
    assert plan(tmp_path, HAS_KEY="true", INPUT_TRACKER="embedded").outputs["hosted"] == "false"
    refused = plan(tmp_path, HAS_KEY="false", INPUT_TRACKER="hosted")
    assert (refused.code, refused.outputs) == (64, {})
    assert "PLUTO_API_KEY" in refused.said


def test_the_inputs_of_a_run_by_hand(tmp_path: Path) -> None:
    """They reach make and pytest as they were typed."""
    env = {"INPUT_KUBERNETES": "1.35 v1.37.0", "INPUT_SELECTION": "rank-killed or (tracker and not slow)"}
    done = plan(tmp_path, **env, INPUT_KEEP_DAYS="3")
    assert json.loads(done.outputs["kubernetes"]) == ["1.35", "v1.37.0"]
    assert done.outputs["keep-days"] == "3"
    dry = subprocess.run(
        ["make", "-n", "--no-print-directory", "-o", "images", "test"],
        cwd=ROOT,
        env={**os.environ, "MAKEFLAGS": "", "MAKELEVEL": "0", "PYTEST_ARGS": done.outputs["pytest-args"]},
        capture_output=True,
        text=True,
        check=True,
    )
    command = dry.stdout.splitlines()[-1]
    assert command.endswith(" -k 'rank-killed or (tracker and not slow)'")
    assert "-m 'nightly or not nightly' --junitxml=runs/junit.xml" in command  # the last -m counts: all tests


@pytest.mark.parametrize(
    "env",
    [
        {"INPUT_JOB": "jobs/nowhere.yaml"},
        {"INPUT_JOB": "../../etc/passwd"},
        {"INPUT_JOB": "jobs/multinode.yaml; true"},
        {"INPUT_JOB": "--help"},
        {"INPUT_KUBERNETES": "latest"},
        {"INPUT_KUBERNETES": '1.35"]'},
        {"INPUT_SELECTION": "x' ; touch pwned; '"},
        {"INPUT_SELECTION": "$(touch pwned)"},
        {"INPUT_SELECTION": "a\nb=c"},
        {"INPUT_KEEP_DAYS": "0"},
        {"INPUT_TRACKER": "other"},
    ],
)
def test_an_input_that_does_not_fit_ends_the_run(tmp_path: Path, env: dict[str, str]) -> None:
    """Contract: no output holds any of it, so that no later step uses it."""
    done = plan(tmp_path, **env)
    assert done.code == 64, done.said
    assert "::error::" in done.said
    assert done.outputs == {}


def test_the_summary_is_there_also_without_bundles(tmp_path: Path) -> None:
    """The run's page has a summary, also for a job that ended before the harness was installed."""
    done = shell([str(ROOT / ".ci/summary")], tmp_path)
    assert done.code == 0, done.said
    assert done.page.startswith("### Bundles\n```\n")


def test_only_the_job_that_publishes_a_release_may_write() -> None:
    """Contract: it runs on a pushed tag alone, has no long-lived key, and publishes what others built."""
    document = parsed(RELEASE)
    assert document["permissions"] == {"contents": "read"}
    assert document[True]["push"] == {"tags": ["v*"]}
    writing = {name: job for name, job in document["jobs"].items() if "permissions" in job}
    assert set(writing) == {"publish"}
    assert writing["publish"]["if"] == "github.event_name == 'push'"
    assert writing["publish"]["environment"] == "release"
    assert set(writing["publish"]["needs"]) == set(document["jobs"]) - {"publish"}
    assert "secrets." not in RELEASE.read_text()
    platforms = document["jobs"]["images"]["strategy"]["matrix"]["include"]
    assert [each["platform"] for each in platforms] == ["amd64", "arm64"]


def test_everything_that_is_published_has_a_provenance() -> None:
    """Contract: the packages before they are uploaded, and the index of each image."""
    publish = parsed(RELEASE)["jobs"]["publish"]["steps"]
    attested = [step["with"] for step in publish if "attest-build-provenance@" in step.get("uses", "")]
    names = [each["subject-name"].rpartition("/")[2] for each in attested if "subject-name" in each]
    assert names == ["worker", "tracker", "torchrun-controller"]
    assert attested[0] == {"subject-path": "packages/*"}
    assert "pypi-publish@" in publish[-1]["uses"]
    assert publish[-1]["with"] == {"packages-dir": "packages/"}


def test_every_newer_python_of_the_package_runs_the_tests() -> None:
    """Contract: the classifiers are the oldest Python, which all other jobs use, and those of the matrix."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: "
    listed = [each.removeprefix(prefix) for each in project["classifiers"] if each.startswith(prefix)]
    matrix = jobs()["python"]["strategy"]["matrix"]
    assert [project["requires-python"].removeprefix(">="), *matrix["python"]] == listed


def test_a_failure_with_a_new_version_is_searched_for(tmp_path: Path) -> None:
    """Contract: only a limited number of failures, on the cluster of the matrix, which is then deleted.

    The exit code is that of the matrix.
    """
    (tmp_path / "python").symlink_to(sys.executable)
    searches = [["harness", "bisect", "konduktor", "--good", "1", "--bad", str(number)] for number in (2, 3)]
    (tmp_path / "matrix.json").write_text(json.dumps({"bisects": searches}))
    (tmp_path / "harness").write_text(
        f'#!/bin/sh\necho "$HARNESS_CLUSTER_NAME: $*" >>{tmp_path}/calls\n'
        f'[ "$1" != matrix ] || {{ cat {tmp_path}/matrix.json; exit 1; }}\n'
    )
    (tmp_path / "harness").chmod(0o755)
    done = shell([str(tmp_path / "python"), str(ROOT / ".ci/versions.py"), "--searches", "1"], tmp_path)
    assert done.code == 1, done.said
    matrix, *others = (tmp_path / "calls").read_text().splitlines()
    assert matrix.startswith("versions: matrix --konduktor locked,>=0.1.0.dev")
    assert others == ["versions: bisect konduktor --good 1 --bad 2 --keep-cluster", "versions: down"]


def test_the_newest_controllers_are_the_highest_releases(tmp_path: Path) -> None:
    """Contract: 0.10 is newer than 0.9, and a pre-release or a tag of another form is no release."""
    own = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for name in ("jobset", "kueue"):
        subprocess.run(["git", "init", "--quiet", tmp_path / name], check=True)
        git = ["git", "-C", tmp_path / name, *own]
        subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=x"], check=True)
        for tag in ("v0.9.1", "v0.10.0", "v0.11.0-rc.0", "vendor-1", f"{name}/v9.0.0"):
            subprocess.run([*git, "tag", tag], check=True)
    script = str(ROOT / ".ci/newest-controllers")
    done = subprocess.run([script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == 'HARNESS_REPLACE={"jobset":"v0.10.0","kueue":"v0.10.0"}\n'
    absent = subprocess.run([script, str(tmp_path / "no")], capture_output=True, text=True, check=False)
    assert (absent.returncode, absent.stdout) == (2, "")
    assert "::error::" in absent.stderr
