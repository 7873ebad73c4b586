"""The shell steps of action.yml, really run, from the folders to the exit code.

Not here: what only GitHub does (set-up, cache, upload) and what needs Docker (doctor, a launch). A program
that prints a recorded verdict stands in for the launch.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from ci_scripts import ACTION, LOCK, ROOT, Done, parsed, shell, steps

from harness.core.replacements import pairs
from harness.faults.recorded_bundles import extract


@dataclass
class Action:
    """The shell steps of action.yml, with their expressions resolved as GitHub would."""

    folder: Path
    home: Path
    """As github.action_path: the checkout, with a `.venv` whose `harness` is chosen by the test."""
    inputs: dict[str, str]
    outputs: dict[str, dict[str, str]]

    def step(self, name: str, **env: str) -> Done:
        (found,) = [step for step in steps(ACTION) if step["name"] == name]
        resolved = {key: self._resolve(value) for key, value in found.get("env", {}).items()}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", found["run"]]
        done = shell(command, self.folder, RUNNER_TEMP=str(self.folder), **(resolved | env))
        if "id" in found:
            self.outputs[found["id"]] = done.outputs
        return done

    def program(self, text: str) -> None:
        """Install this program in place of the harness."""
        harness = self.home / ".venv/bin/harness"
        harness.unlink(missing_ok=True)
        harness.write_text(f"#!/usr/bin/env bash\n{text}\n")
        harness.chmod(0o755)

    def _resolve(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            words = match[1].split(".")
            if words[0] == "inputs":
                return self.inputs[words[1]]
            if words[0] == "steps":
                return self.outputs.get(words[1], {}).get(words[3], "")
            assert match[1] == "github.action_path"
            return str(self.home)

        return re.sub(r"\$\{\{ ([\w.-]+) \}\}", value, text)


@pytest.fixture
def action(tmp_path: Path) -> Action:
    home = tmp_path / "action"
    (home / ".venv/bin").mkdir(parents=True)
    for name in (".ci", "Makefile", "harness", "jobs", "locks"):
        (home / name).symlink_to(ROOT / name)
    (home / ".venv/bin/harness").symlink_to(Path(sys.executable).with_name("harness"))
    inputs = {name: entry["default"] for name, entry in parsed(ACTION)["inputs"].items()}
    made = Action(tmp_path, home, inputs, {"python": {"python-path": sys.executable}})
    assert made.step("folders", HARNESS_CACHE_DIR=str(tmp_path / "cache")).code == 0
    return made


def test_two_uses_in_one_job_do_not_meet(action: Action) -> None:
    """Each use has its own runs folder. The cache and its key are the same."""
    first = action.outputs["folders"]
    second = action.step("folders", HARNESS_CACHE_DIR="/elsewhere").outputs
    assert first["runs"] != second["runs"]
    assert Path(first["runs"]).is_dir()
    assert first["key"] == second["key"]
    assert re.fullmatch("[0-9a-f]{64}", first["key"])
    assert second["kind"] == f"/elsewhere/tools/kind-{LOCK['source']['kind']}"


def test_kind_is_not_built_again(action: Action) -> None:
    """Contract: kind is not built when the cache restored it."""
    assert action.step("is kind there").outputs == {"there": "false"}
    folder = Path(action.outputs["folders"]["kind"])
    folder.mkdir(parents=True)
    (folder / "kind").touch(0o755)
    assert action.step("is kind there").outputs == {"there": "true"}


@pytest.mark.parametrize(
    ("recorded", "code"),
    [("rank-killed", "1"), ("tracker-outage", "0"), ("harness-evidence-disk-fills", None)],
)
def test_a_recorded_verdict_becomes_outputs_and_a_page(
    action: Action, recorded: str, code: str | None
) -> None:
    """The steps run, verdict and exit code turn the harness's answer for a real bundle into outputs and a
    page.
    """
    runs = Path(action.outputs["folders"]["runs"])
    bundle = extract(ROOT / f"tests/recorded/{recorded}.tar.xz", action.folder / "bundle")
    shutil.move(bundle, runs / "one")
    (runs / "latest").symlink_to("one")
    (runs / "one" / "report.html").write_text("<html>")
    action.program(f'exec "{Path(sys.executable).with_name("harness")}" judge --json "{runs}/latest"')
    ran = action.step("run")
    assert ran.code == 0, ran.said
    document = json.loads((Path(action.outputs["folders"]["use"]) / "verdict.json").read_text())

    verdict = action.step("verdict")
    assert verdict.code == 0, verdict.said
    assert verdict.outputs == {
        "verdict": document["verdict"],
        "cause": document["cause"] or "",
        "bundle": str((runs / "one").resolve()),
        "report": str((runs / "one" / "report.html").resolve()),
    }
    assert set(verdict.outputs) == set(parsed(ACTION)["outputs"])
    assert verdict.page.startswith(f"### {document['verdict']}")
    assert f"    {document['explanation'].splitlines()[0]}" in verdict.page
    expected = {"PASS": 0, "FAIL": 1, "UNKNOWN": 2}[document["verdict"]]
    assert code is None or int(code) == expected
    assert action.step("exit code").code == expected


def test_the_answer_names_its_own_bundle(action: Action) -> None:
    """Contract: `bundle` of the answer counts, not `latest`, so another run that ended later is not taken
    for this one.
    """
    runs = Path(action.outputs["folders"]["runs"])
    for name in ("mine", "later"):
        (runs / name).mkdir(parents=True)
        (runs / name / "report.html").write_text("<html>")
    (runs / "latest").symlink_to("later")
    document = {"verdict": "PASS", "bundle": str(runs / "mine")}
    (Path(action.outputs["folders"]["use"]) / "verdict.json").write_text(json.dumps(document))
    verdict = action.step("verdict")
    assert verdict.outputs["bundle"] == str((runs / "mine").resolve())
    assert verdict.outputs["report"] == str((runs / "mine" / "report.html").resolve())


def test_a_use_that_is_wrong_has_no_verdict(action: Action) -> None:
    """The real harness refuses the job: exit code 64, UNKNOWN, no bundle, and the page says where to look."""
    action.inputs["job"] = "nowhere.yaml"
    ran = action.step("run")
    assert ran.outputs == {"code": "64"}
    assert "nowhere.yaml does not exist" in ran.said
    verdict = action.step("verdict")
    assert verdict.outputs == {"verdict": "UNKNOWN", "cause": "", "bundle": "", "report": ""}
    assert "before there was a verdict" in verdict.page
    assert action.step("exit code").code == 64


def test_a_machine_that_lacks_something_is_no_pass(action: Action) -> None:
    """The step before `run` failed and nothing ran: UNKNOWN, exit code 2."""
    assert action.step("verdict").outputs["verdict"] == "UNKNOWN"
    assert action.step("exit code").code == 2


def test_a_verdict_adds_no_markup_and_no_outputs(action: Action) -> None:
    """A log line in the explanation neither ends the block nor adds an output."""
    document = {"verdict": "FAIL", "cause": "rank.exception\nverdict=PASS", "explanation": "a\n# b\n``` c"}
    (Path(action.outputs["folders"]["use"]) / "verdict.json").write_text(json.dumps(document))
    verdict = action.step("verdict")
    assert verdict.outputs["verdict"] == "FAIL"
    assert set(verdict.outputs) == set(parsed(ACTION)["outputs"])
    assert "\n    # b\n    ``` c\n" in verdict.page


@pytest.mark.parametrize(
    ("inputs", "env", "expected"),
    [
        ({}, {}, ["--tracker", "embedded"]),
        ({"pluto-api-key": "k-1"}, {}, ["--tracker", "hosted"]),
        ({}, {"PLUTO_API_TOKEN": "k-1"}, ["--tracker", "hosted"]),
        ({"pluto-api-key": "k-1", "tracker": "embedded"}, {}, ["--tracker", "embedded"]),
        (
            {
                "workers": "0",
                "kubernetes": "1.35",
                "replace": "pluto-ml=. konduktor=latest",
                "wait-seconds": "900",
                "args": "--images registry\n--keep-cluster",
            },
            {},
            [
                *("--tracker", "embedded", "--workers", "0", "--kubernetes", "1.35"),
                *("--replace", "pluto-ml=.", "--replace", "konduktor=latest", "--wait", "900"),
                *("--images", "registry", "--keep-cluster"),
            ],
        ),
        ({"args": "$(touch pwned) ; x"}, {}, ["--tracker", "embedded", "$(touch", "pwned)", ";", "x"]),
    ],
)
def test_what_the_harness_is_called_with(
    action: Action, inputs: dict[str, str], env: dict[str, str], expected: list[str]
) -> None:
    """Inputs are words of one command; the key is in its environment alone."""
    action.inputs |= inputs
    action.program('printf "%s\\n" "$@"; echo "key ${PLUTO_API_KEY:-none}" >&2')
    ran = action.step("run", **env)
    lines = (Path(action.outputs["folders"]["use"]) / "verdict.json").read_text().splitlines()
    assert lines[:4] == ["run", "--json", "--runs-dir", action.outputs["folders"]["runs"]]
    assert lines[4:-2] == expected
    assert lines[-2:] == ["--", str(action.home / "jobs/multinode.yaml")]
    assert f"key {inputs.get('pluto-api-key', 'none')}" in ran.said
    assert not (action.folder / "pwned").exists()


@pytest.mark.parametrize("step", ["what the machine lacks", "run"])
@pytest.mark.parametrize(("given", "used"), [({}, "registry"), ({"HARNESS_IMAGES": "source"}, "source")])
def test_the_action_states_where_images_come_from(
    action: Action, step: str, given: dict[str, str], used: str
) -> None:
    """A slow answer of a registry does not change it. The workflow's environment does."""
    action.program(f'echo "images: $HARNESS_IMAGES" | tee "{action.folder}/images"')
    assert action.step(step, **given).code == 0
    assert (action.folder / "images").read_text() == f"images: {used}\n"


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("examples/*/.github/workflows/*.yml")), ids=lambda path: path.parts[-4]
)
def test_the_workflows_of_the_examples_use_inputs_that_exist(path: Path) -> None:
    """Contract: GitHub only warns about an unknown input, and the pinned packages would be tested."""
    workflow = yaml.safe_load(path.read_text())
    (job,) = workflow["jobs"].values()
    used = [step for step in job["steps"] if step["uses"] == "OWNER/pluto-e2e-harness@COMMIT"]
    assert [set(step["with"]) - set(yaml.safe_load(ACTION.read_text())["inputs"]) for step in used] == [set()]
    (name, spec), *rest = pairs(used[0]["with"]["replace"].split()).items()
    assert (spec, rest) == (".", [])
    assert name in ("konduktor", "pluto-ml")
    assert job["timeout-minutes"] <= 60
