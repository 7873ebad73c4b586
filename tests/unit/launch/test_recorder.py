"""The recorder around Pluto's client reaches a rank's container, and Python there runs it."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from mounting import lay_out

from harness.evidence.schema.processes import decode
from harness.launch import inits
from harness.launch.konduktor.config import Submission, konduktor_config
from harness.launch.mounts import recorder
from harness.provision.images import scripts

PRINTED = "import os, sys; print(os.environ.get('PYTHONPATH'), os.environ.get('HARNESS_LOG'))"
MODULES = {path: source for path, source in recorder.MOUNTED.sources.items() if path.endswith(".py")}


def test_the_mounted_package_imports_nothing_that_is_not_mounted() -> None:
    """Only the standard library and its own modules: the image need not have more."""
    for path, source in MODULES.items():
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= sys.stdlib_module_names, path
            elif isinstance(node, ast.ImportFrom) and not node.level:
                top = (node.module or "").partition(".")[0]
                assert top in sys.stdlib_module_names | {recorder.PACKAGE}, (path, node.module)
            elif isinstance(node, ast.ImportFrom):
                module = Path(path).parents[node.level - 1].joinpath(*(node.module or "").split("."))
                names = [f"{module}/{alias.name}.py" for alias in node.names]
                assert f"{module}.py" in MODULES or set(names) <= set(MODULES), (path, node.module)


@pytest.mark.parametrize("path", sorted(MODULES))
def test_the_files_are_python_3_9(path: str) -> None:
    """An image may have an older Python than the harness. Annotations are not evaluated."""
    tree = ast.parse(MODULES[path].read_text(), feature_version=(3, 9))
    assert not any(isinstance(n, ast.Match) for n in ast.walk(tree))
    annotations = [getattr(n, name, None) for n in ast.walk(tree) for name in ("annotation", "returns")]
    deferred = any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in tree.body)
    assert deferred or not any(annotations)
    evaluated = set(ast.walk(tree)) - {inner for given in annotations if given for inner in ast.walk(given)}
    assert not [ast.unparse(n) for n in evaluated if isinstance(n, ast.BinOp) and "| None" in ast.unparse(n)]


def test_konduktor_mounts_it_beside_changed_scripts() -> None:
    mounts = scripts.mounts({"a.py": b"", "b.py": b""})
    spec = konduktor_config(Submission("ns", "n", "", {}, files=mounts, recorder=True))["kubernetes"][
        "pod_config"
    ]
    container = spec["spec"]["containers"][0]
    assert container["volumeMounts"] == [*mounts, recorder.MOUNTED.mount()]
    assert [v["name"] for v in spec["spec"]["volumes"]] == [m["name"] for m in container["volumeMounts"]]


def test_off_nothing_is_mounted() -> None:
    spec = konduktor_config(Submission("ns", "n", "", {}))["kubernetes"]["pod_config"]["spec"]
    assert "volumes" not in spec
    assert "volumeMounts" not in spec["containers"][0]


@pytest.mark.parametrize("own", [None, "/image/lib"])
@pytest.mark.parametrize("kind", ["konduktor", "manifest"])
def test_inits_put_it_before_image_s_own_path(tmp_path: Path, kind: str, own: str | None) -> None:
    """Also where the image has a PYTHONPATH of its own, which no pod's environment could keep."""
    init = (inits.WORKER if kind == "manifest" else inits.KONDUKTOR).replace(recorder.FOLDER, str(tmp_path))
    command = [sys.executable, "-c", PRINTED]
    words = (
        ["sh", "-c", init, "sh", *command]
        if kind == "manifest"
        else ["bash", "-c", init, f'{command[0]} -c "{PRINTED}"']
    )
    environment = {"PATH": os.environ["PATH"], "HARNESS_NONCE": "n", "KONDUKTOR_OUTPUT_DIR": str(tmp_path)}
    environment |= {"PYTHONPATH": own} if own else {}
    environment |= {"TERMINATION_LOG": str(tmp_path / "message")}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True)
    path, log = done.stdout.splitlines()[0].split()
    assert path == ":".join([str(tmp_path), *([own] if own else [])])
    assert log.startswith("/proc/")
    assert log.endswith("/fd/1")


@pytest.fixture
def site_packages(tmp_path: Path) -> Path:
    """Return the site-packages of an interpreter on PATH, where the init's set-up put its .pth file."""
    return set_up(tmp_path, root=tmp_path)


def set_up(tmp_path: Path, root: Path) -> Path:
    """Run the init's set-up where `root` is the container's own file system. Return a site-packages."""
    folder = lay_out(recorder.MOUNTED, tmp_path / "recorder")
    found = tmp_path / "image" / "lib" / "python3.99" / "site-packages"
    found.mkdir(parents=True)
    (tmp_path / "image" / "bin").mkdir()
    for name in ("setup.sh", "harness_recorder.pth"):
        path = folder / name
        path.write_text(path.read_text().replace(recorder.FOLDER, str(folder)))
    # Folders of this machine are left alone: the test is about those on PATH.
    script = re.sub(r"^harness_pth (.*\\\n)*.*\n", "", (folder / "setup.sh").read_text(), flags=re.MULTILINE)
    script = script.replace("stat -c %d /", f"stat -c %d {root}", 1)
    environment = {"PATH": f"{tmp_path}/image/bin:/nowhere/bin:/bin"}
    subprocess.run(["sh", "-euc", script], env=environment, check=True, timeout=60)
    return found


def test_folder_of_volume_is_left_as_it_is(tmp_path: Path) -> None:
    assert list(set_up(tmp_path, root=Path("/proc")).iterdir()) == []


@pytest.mark.parametrize("options", [[], ["-I"], ["-E"]])
def test_a_program_with_a_clean_environment_is_recorded(
    site_packages: Path, tmp_path: Path, options: list[str]
) -> None:
    log = tmp_path / "log"
    log.touch()
    program = f"import site, sys; site.addsitedir({str(site_packages)!r}); sys.exit(3)"
    # The shell is the ancestor that has the launch's variables.
    script = f"env -i RANK=1 LOCAL_RANK=0 {shlex.join([sys.executable, *options, '-c', program])}; echo $?"
    environment = {"PATH": os.environ["PATH"], "HARNESS_NONCE": "n", "HARNESS_LOG": str(log)}
    done = subprocess.run(
        ["sh", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("3\n", "")
    events = [event for line in log.read_text().splitlines() for event in decode("n", line, "pod-0")]
    assert [event.kind for event in events] == ["start", "end"]


def test_a_process_with_an_empty_nonce_is_not_recorded(site_packages: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    program = f"import site; site.addsitedir({str(site_packages)!r})"
    script = f"env -i HARNESS_NONCE= RANK=1 LOCAL_RANK=0 {shlex.join([sys.executable, '-c', program])}"
    environment = {"PATH": os.environ["PATH"], "HARNESS_NONCE": "n", "HARNESS_LOG": str(log)}
    subprocess.run(["sh", "-c", f"{script}; true"], env=environment, timeout=60, check=True)
    assert log.read_text() == ""


def test_the_pth_file_does_nothing_without_the_recorder(tmp_path: Path) -> None:
    (tmp_path / "harness_recorder.pth").write_text(
        recorder.MOUNTED.sources["harness_recorder.pth"].read_text().replace(recorder.FOLDER, "/nowhere")
    )
    program = f"import site; site.addsitedir({str(tmp_path)!r}); print('fine')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


@pytest.mark.parametrize("init", [inits.WORKER, inits.KONDUKTOR], ids=["manifest", "konduktor"])
def test_kubernetes_leaves_the_inits_as_they_are(init: str) -> None:
    """It would halve a doubled dollar sign, and replace $(NAME) of a variable of the pod."""
    assert "$$" not in init
