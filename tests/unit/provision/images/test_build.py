"""Tags that change with their inputs, and only with them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.context import RunContext
from harness.launch.description import versions_of
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.provision.images import build, debian, locked_packages
from harness.provision.images.build import Recipe
from harness.provision.images.docker_images import files_of
from harness.provision.images.stack import Stack
from harness.provision.platforms import AMD64, ARM64
from harness.settings import load

LOCK = "starlette==1.0 \\\n    --hash=sha256:00\n"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "rank.py").write_text("print(1)\n")
    (tmp_path / "Dockerfile").write_text("FROM x\n")
    (tmp_path / "lock.txt").write_text(LOCK)
    return Recipe("worker", tmp_path / "Dockerfile", tmp_path / "lock.txt", (tmp_path / "workers",))


def test_a_tag_is_the_hash_of_its_inputs(recipe: Recipe) -> None:
    """12 hex digits, the same for the same inputs, never `latest`."""
    tag = recipe.tag({"BASE": "a"}, "3.13", AMD64)
    repository, _, digits = tag.partition(":")
    assert repository == "worker"
    assert len(digits) == 12
    assert int(digits, 16) >= 0
    assert recipe.tag({"BASE": "a"}, "3.13", AMD64) == tag


@pytest.mark.parametrize("changed", ["workers/rank.py", "workers/new.py", "Dockerfile", "lock.txt"])
def test_every_input_changes_the_tag(recipe: Recipe, tmp_path: Path, changed: str) -> None:
    """A worker that was edited is never run from an old image."""
    before = recipe.tag({"BASE": "a"}, "3.13", AMD64)
    path = tmp_path / changed
    path.write_text((path.read_text() if path.exists() else "") + "more==1\n")
    assert recipe.tag({"BASE": "a"}, "3.13", AMD64) != before


def test_base_python_and_platform_change_the_tag(recipe: Recipe) -> None:
    """Another base is another image."""
    before = recipe.tag({"BASE": "a"}, "3.13", AMD64)
    assert recipe.tag({"BASE": "b"}, "3.13", AMD64) != before
    assert recipe.tag({"BASE": "a"}, "3.14", AMD64) != before
    assert recipe.tag({"BASE": "a"}, "3.13", ARM64) != before


def test_bytecode_changes_nothing(recipe: Recipe, tmp_path: Path) -> None:
    """Running a worker on the host must not make another image."""
    before = recipe.tag({"BASE": "a"}, "3.13", AMD64)
    cache = tmp_path / "workers" / "__pycache__"
    cache.mkdir()
    (cache / "rank.cpython-313.pyc").write_bytes(b"\0")
    assert recipe.tag({"BASE": "a"}, "3.13", AMD64) == before
    assert [path.name for path in files_of(tmp_path / "workers")] == ["rank.py"]


def test_packages_are_kept_by_what_the_lock_pins() -> None:
    """A comment downloads nothing anew, a hash does."""
    assert locked_packages.lock_key(f"# made by uv\n\n{LOCK}", "3.13") == locked_packages.lock_key(
        LOCK, "3.13"
    )
    assert locked_packages.lock_key(LOCK.replace("00", "01"), "3.13") != locked_packages.lock_key(
        LOCK, "3.13"
    )


@pytest.mark.parametrize("recipe", [build.WORKER, build.TRACKER, build.CONTROLLER])
def test_what_the_images_are_made_of_is_there(recipe: Recipe) -> None:
    """Dockerfile, lock and parts are in the package, and the lock names no host."""
    assert recipe.dockerfile.is_file()
    assert "--hash=sha256:" in recipe.lock.read_text()
    assert "://" not in recipe.lock.read_text()
    assert all(part.exists() for part in recipe.parts + recipe.uses)


def test_the_bases_files_are_there() -> None:
    """What is hashed into a base's tag is what its build copies."""
    for names in debian._INPUTS.values():
        assert all((debian.FILES / name).is_file() for name in names)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> build.ImageRef:
    """One that is there already, by a Docker that has every image."""
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\ncase $1 in version) echo linux/amd64 ;; *) echo sha256:1 ;; esac\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    stack = Stack("source", "node", "v1", tmp_path, tmp_path, (), "torch-base:1", "python-base:1", {})
    return build.build_worker(stack, RunContext(settings=load(), progress=lambda _: None))


def test_what_the_worker_image_was_built_from_is_known(worker: build.ImageRef) -> None:
    """Contract: its base, and Pluto's client as the lock has it; `harness diff` compares both."""
    pins = (build.LOCKS / "worker.in").read_text().split()
    (pinned,) = (pin.removeprefix("pluto-ml==") for pin in pins if pin.startswith("pluto-ml=="))
    assert worker.components == {"worker_base": "torch-base:1", "pluto": pinned}


def test_nothing_is_known_of_image_of_user_s(worker: build.ImageRef, tmp_path: Path) -> None:
    """Contract: no version is recorded of an image that the ranks do not run."""
    ready = Ready(None, None, worker, 1, {"kueue": "v1"}, None)
    main = JobFile.load(Path("jobs/multinode.yaml"))
    assert versions_of(ready, main) == {"kueue": "v1", **worker.components}
    theirs = tmp_path / "job.yaml"
    theirs.write_text(
        Path("jobs/multinode.yaml").read_text().replace(main.image, "registry.example/theirs:1")
    )
    assert versions_of(ready, JobFile.load(theirs)) == {"kueue": "v1"}


def test_controller_image_has_what_it_imports() -> None:
    """Contract: every module of the harness that the controller loads is copied into its image."""
    program = "import sys, harness.torchrun_controller.__main__; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    loaded = {name for name in output.split() if name.startswith("harness.")}
    parts = {part.name for part in build.CONTROLLER.parts}
    parts |= {
        name
        for name in ("evidence",)
        if {f"{name}.kubernetes{file}" for file in ("", ".objects", ".unschedulable")}
        >= {m.removeprefix("harness.") for m in loaded if m.startswith(f"harness.{name}.")}
    }
    assert {name.split(".")[1] for name in loaded} <= parts
    copied = build.CONTROLLER.dockerfile.read_text()
    for part in build.CONTROLLER.parts:
        path = part.relative_to(build.ROOT)
        assert f"COPY --chmod=755 {path}" in copied or f"COPY --chmod=755 {path.with_suffix('.*')} " in copied


@pytest.mark.parametrize("recipe", [build.TRACKER, build.CONTROLLER], ids=lambda recipe: recipe.repository)
def test_image_is_readable_whatever_umask_of_its_builder_is(recipe: Recipe) -> None:
    """Contract: an image with a user of its own keeps no mode of the checkout or of the package cache. With
    umask 077, only root could read either.
    """
    lines = recipe.dockerfile.read_text().splitlines()
    assert "USER 65532:65532" in lines
    copies = [line for line in lines if "COPY " in line or "cp -a" in line]
    assert copies
    assert [line for line in copies if "--chmod=755" not in line and "--no-preserve=mode" not in line] == []


def test_the_tracker_starts_with_what_its_image_holds(tmp_path: Path) -> None:
    for part in build.TRACKER.parts:
        there = tmp_path / "app" / part.relative_to(build.PACKAGE.parent)
        if part.is_dir():
            shutil.copytree(part, there)
        else:
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(part, there)
    command = [sys.executable, "-P", "-c", "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "]
    command[-1] += "runpy.run_module('harness.tracker', run_name='__main__', alter_sys=True)"
    key = tmp_path / "key"
    key.write_bytes(b"k" * 5000)
    done = subprocess.run(
        [*command, str(tmp_path / "app"), "--key-file", str(key)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "more than 4096 bytes" in done.stderr
    assert done.returncode == 64
