"""A reader with a checkout types the commands of the documents into bash, word for word."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from harness.evidence.io.reader import Bundle
from harness.settings import Settings
from tests import reader
from tests.reader import Typed

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs/tutorial.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL)
MADE = (".git", ".venv", "runs", "build", "*.egg-info", ".hypothesis", ".*_cache")
"""Files that are in a working folder and not in a checkout. Packages may have these names."""
SECONDS = 600


def parameters(commands: Iterable[Typed]) -> list[ParameterSet]:
    """Return one test parameter for each command, named by its words."""
    marks = {True: [pytest.mark.nightly], False: []}
    return [pytest.param(typed, id=typed.words, marks=marks[typed.nightly]) for typed in commands]


@dataclass
class Reader:
    """A terminal in a checkout. Its output is read through a pipe, so there are no live views."""

    checkout: Path
    environ: dict[str, str]

    def type(self, line: str, code: int = 0, stdin: str = "") -> str:
        """Run one line of a block and return its output, both streams.

        Another exit code than `code` fails the test.
        """
        activate = "if [ -f .venv/bin/activate ]; then . .venv/bin/activate; fi\n"
        done = subprocess.run(
            ["bash", "-c", activate + line],
            cwd=self.checkout,
            env=self.environ,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == code, f"$ {line}\nexit code {done.returncode}, not {code}\n{done.stdout}"
        return done.stdout

    def follow(self, typed: Typed) -> None:
        words, (means, name) = typed.words, typed.stands_for or ("", "")
        output = self.type(words.replace(means, name) if means else words, typed.code, typed.stdin)
        assert typed.says in output, f"$ {words}\n{output}"

    @property
    def bundles(self) -> list[Path]:
        """Return the bundles, newest first."""
        return sorted((self.checkout / "runs").glob("2*-*"), reverse=True)


def not_checked_out(folder: str, names: list[str]) -> set[str]:
    """Return which names of a folder are not in a checkout, for shutil.copytree."""
    patterns = ("__pycache__", *MADE) if Path(folder) == ROOT else ("__pycache__",)
    return shutil.ignore_patterns(*patterns)(folder, names)


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory, harness_settings: Settings) -> Iterator[Reader]:
    """A terminal in a copy of this checkout: its own repository, and a cluster with a name of its own."""
    folder = tmp_path_factory.mktemp("reader")
    checkout, home = folder / "checkout", folder / "home"
    shutil.copytree(ROOT, checkout, symlinks=True, ignore=not_checked_out)
    author = dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "reader@localhost")
    author |= dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "reader")
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "as it is"]):
        subprocess.run(["git", *words], cwd=checkout, env={**os.environ, **author}, check=True, timeout=60)
    for own, ours in reader.FILES.items():
        (checkout / own).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkout / ours, checkout / own)
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("HARNESS_", "PYTEST_", "VIRTUAL_", "GITHUB_", "MAKE", "MFLAGS"))
    }
    kept |= {
        "HOME": str(home),
        "HARNESS_CLUSTER_NAME": f"e2e-docs-{secrets.token_hex(3)}",
        "HARNESS_CACHE_DIR": str(harness_settings.cache_dir.absolute()),
        "HARNESS_IMAGES": harness_settings.images,
    }
    for name, path in (
        ("XDG_CONFIG_HOME", ".config"),
        ("XDG_CACHE_HOME", ".cache"),
        ("DOCKER_CONFIG", ".docker"),
    ):
        kept.setdefault(name, str(Path.home() / path))  # where packages come from; their cache
    (home / ".kube").mkdir(parents=True)
    one = Reader(checkout, kept)
    try:
        yield one
    finally:
        one.type("if command -v harness; then harness down; fi")


@pytest.fixture(scope="module")
def tutorial(terminal: Reader) -> dict[tuple[str, bool], str]:
    """Type every block, except the last line, which removes the cluster.

    Returns what each line printed, by the line and whether the worker was broken then.
    """
    lines = [line for block in BLOCKS for line in block.splitlines()]
    assert lines.pop() == "harness down"
    assert lines[:3] == ["make doctor", ". .venv/bin/activate", "harness up"]
    broken, outputs = False, {}
    for line in lines:
        code = (
            1
            if broken and line.split()[:2] in (["harness", "run"], ["harness", "show"], ["harness", "judge"])
            else 0
        )
        outputs[(line, broken)] = terminal.type(line, code)
        if line.startswith("sed "):
            broken = True
        elif line.startswith("git checkout "):
            broken = False
    return outputs


def test_the_tutorial_commands_print_the_promised_verdicts(tutorial: dict[tuple[str, bool], str]) -> None:
    """The tutorial gives what it promises: PASS, then the lost point by name, then PASS."""
    run, outputs = "harness run jobs/multinode.yaml", tutorial
    assert "✓ PASS" in outputs[(run, False)]
    (promised,) = re.findall(r"^```text\n(.*)\n```$", TUTORIAL, re.MULTILINE)
    for text in (
        outputs[(run, True)],
        outputs[("harness show", True)],
        outputs[("harness judge runs/latest", True)],
    ):
        assert promised in text
        assert "step 3" in text
        assert "never passed to the client" in text
    assert {"PASS", "FAIL"} <= set(outputs[("harness runs", False)].split())


@pytest.mark.parametrize("typed", parameters(reader.WORKBENCH))
@pytest.mark.usefixtures("tutorial")
def test_the_kept_cluster(terminal: Reader, typed: Typed) -> None:
    """README.md and the how-to guides work on the cluster that the tutorial leaves."""
    newest, failed = terminal.bundles[0], terminal.bundles[-2]
    for name, bundle in zip(reader.NAMED, (newest, failed), strict=True):
        link = terminal.checkout / name
        link.unlink(missing_ok=True)
        link.symlink_to(bundle.name)
    terminal.follow(typed)


@pytest.mark.parametrize("typed", parameters(reader.THEIRS))
@pytest.mark.usefixtures("tutorial")
def test_a_cluster_of_ones_own(terminal: Reader, typed: Typed) -> None:
    """docs/how-to/own-cluster.md works as if the cluster were the reader's, under their own name for it."""
    manifest = Bundle.open(terminal.bundles[-1]).manifest
    assert manifest is not None
    text = Path(manifest.cluster["kubeconfig"]).read_text()
    context = manifest.cluster["context"]
    (terminal.checkout / "F").write_text(text.replace(context, "C"))
    (Path(terminal.environ["HOME"]) / ".kube/config").write_text(text.replace(context, "my-cluster"))
    terminal.environ["HARNESS_WORKER_IMAGE"] = manifest.versions["worker"]
    terminal.follow(typed)


@pytest.mark.usefixtures("tutorial")
def test_the_cluster_goes(terminal: Reader) -> None:
    assert "removed" in terminal.type("harness down")
