"""The harness as a dependency: a wheel that was built from an sdist, in its own venv and folder."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from built_wheel import build, run

from harness.faults.recorded_bundles import extract
from harness.provision.images.build import CONTROLLER, TRACKER, WORKER
from harness.provision.platforms import ARM64

ROOT = Path(__file__).parents[2]
ARGUMENTS = {"BASE": "python:3.13", "TORCH": "2.9.1"}
TAGS = """
import json
from harness.provision.images.build import CONTROLLER, TRACKER, WORKER
from harness.provision.platforms import ARM64
print(json.dumps([recipe.tag({arguments}, "3.13", ARM64) for recipe in (WORKER, TRACKER, CONTROLLER)]))
"""


MODULES = """
import importlib, pkgutil, harness
for module in pkgutil.walk_packages(harness.__path__, "harness."):
    if not module.name.startswith("harness.workers") and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print("all")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel that was built offline from an sdist, which was built from a copy of the checkout."""
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def bin_(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the programs of a new venv with the wheel. Its dependencies are those of the
    tests."""
    venv = tmp_path_factory.mktemp("venv")
    run([sys.executable, "-m", "venv", "--without-pip", venv], venv)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", venv / "bin/python"]
    run([*pip, "install", "--no-index", "--no-deps", "--quiet", wheel], venv)
    (packages,) = venv.glob("lib/python*/site-packages")
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(others) + "\n")
    return venv / "bin"


def test_the_wheel_contains_exactly_the_package_files(wheel: Path) -> None:
    """Contract: the wheel also contains files that are not Python modules, such as Dockerfiles, locks, faults
    and templates. It has no other top-level name.
    """
    # The checkout may belong to another user, as under sudo.
    files = ["git", "-c", "safe.directory=*", "-C", ROOT, "ls-files", "--"]
    tracked = run([*files, "harness"], ROOT).split()
    linked = run([*files, "fixtures"], ROOT).split()
    wanted = {*tracked, *(f"harness/{path}" for path in linked)} - {"harness/fixtures"}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert linked
    assert wanted <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"harness", "pluto_e2e_harness"}


def test_the_command_is_the_installed_one(bin_: Path, tmp_path: Path) -> None:
    """Contract: nothing is imported from the checkout."""
    assert "judge" in run([bin_ / "harness", "--help"], tmp_path)
    where = run([bin_ / "python", "-c", "import harness; print(harness.__file__)"], tmp_path)
    assert where.startswith(str(bin_.parent))


def test_no_module_needs_the_repository(bin_: Path, tmp_path: Path) -> None:
    """Contract: commands import most modules only when they need them, and each can be imported."""
    assert run([bin_ / "python", "-c", MODULES], tmp_path) == "all\n"


def test_a_bundle_is_judged(bin_: Path, tmp_path: Path) -> None:
    """Contract: the verdict names the fault, and the exit code is 1."""
    bundle = extract(ROOT / "tests/recorded/client-drop-point.tar.xz", tmp_path / "bundle")
    verdict = json.loads(run([bin_ / "harness", "judge", "--json", bundle], tmp_path, code=1))
    assert (verdict["verdict"], verdict["cause"]) == ("FAIL", "unification.lost_points")


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["run", "jobs/multinode.yaml"], 64, "see jobs/ and manifests/ in the harness's repository"),
        (["soak", "1"], 64, "see jobs/ and manifests/ in the harness's repository"),
        (["faults", "rank-killed"], 64, "see jobs/multinode.yaml in the harness's repository"),
        (["faults", "--list"], 0, "rank-killed"),
        (["accept"], 64, "harness accept --nodes"),
        (["runs"], 0, ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_command_works_without_repository_or_tells_what_it_needs(
    bin_: Path, tmp_path: Path, words: list[str], code: int, expected: str
) -> None:
    """Contract: outside the checkout, there is no traceback and nothing is created."""
    command = [bin_ / "harness", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    output = done.stdout + done.stderr
    assert (done.returncode, "Traceback" in output) == (code, False), output
    assert expected in " ".join(output.split())
    assert [*tmp_path.iterdir()] == []


def test_images_are_made_of_the_same_files(bin_: Path, tmp_path: Path) -> None:
    """Contract: the image tags equal those of the checkout."""
    output = run([bin_ / "python", "-c", TAGS.format(arguments=ARGUMENTS)], tmp_path)
    assert json.loads(output) == [
        recipe.tag(ARGUMENTS, "3.13", ARM64) for recipe in (WORKER, TRACKER, CONTROLLER)
    ]


def test_the_fixtures_are_there(bin_: Path, tmp_path: Path) -> None:
    """The plugin is found by its entry point. `--setup-plan` resolves fixtures without creating them."""
    test = "def test_mine(launch, job, cluster, harness_settings): ..."
    (tmp_path / "test_mine.py").write_text(test)
    output = run([bin_ / "python", "-m", "pytest", "--setup-plan", "test_mine.py"], tmp_path)
    assert "SETUP    S cluster" in output
    assert "SETUP    F launch" in output


@pytest.mark.nightly
def test_a_suite_with_packages_of_common_names(bin_: Path, tmp_path: Path) -> None:
    """Contract: `fixtures` and `workers` of a repository are its own, wherever on sys.path they are."""
    for name in ("fixtures", "workers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True")
    test = "import fixtures, workers\n\ndef test_mine():\n    assert fixtures.MINE and workers.MINE\n"
    (tmp_path / "test_mine.py").write_text(test)
    assert "1 passed" in run([bin_ / "python", "-m", "pytest", "test_mine.py"], tmp_path)
    assert "1 passed" in run([bin_ / "python", "-P", "-m", "pytest", "test_mine.py"], tmp_path)
