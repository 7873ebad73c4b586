"""netcheck as one file: imported under any name, in any package, and run as a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.launch.mounts.netcheck_module import single_file
from harness.workers import netcheck

BARE = getattr(sys, "_base_executable", sys.executable)
"""The interpreter without what is installed for the tests."""


def python(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [BARE, "-B", "-W", "error", *arguments]
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("module", ["k8s_distributed", "netcheck", "colossalai.utils.k8s_distributed"])
def test_it_is_imported_as_the_guide_does(tmp_path: Path, module: str) -> None:
    """Contract: every public name, from a file in the folder or in another package, and no warning."""
    path = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(single_file())
    names = ", ".join(netcheck.__all__)
    script = (
        f"from {module} import {names}\ntry: validate_k8s_environment()\nexcept RuntimeError as e: print(e)"
    )
    done = python(tmp_path, "-c", script)
    assert done.stdout.startswith("variables.missing: "), done.stderr
    assert done.returncode == 0


def test_it_runs_as_a_script(tmp_path: Path, unused_tcp_port: int) -> None:
    (tmp_path / "check.py").write_text(single_file())
    job = {"NNODES": "1", "NODE_RANK": "0", "WORLD_SIZE": "1", "RDZV_ID": "one", "MASTER_ADDR": "127.0.0.1"}
    done = python(tmp_path, "check.py", "--port", str(unused_tcp_port), **job)
    assert done.stdout.startswith("netcheck: OK"), done.stderr
    assert done.returncode == 0


def test_an_error_in_it_names_the_module(tmp_path: Path) -> None:
    """Contract: a traceback names the file, the module in it and the module's line."""
    (tmp_path / "check.py").write_text(single_file())
    done = python(tmp_path, "-c", "import check; check.wait_for_master(variables={})")
    assert 'check.py:waiting", line' in done.stderr


def test_it_is_imported_from_the_installed_package(tmp_path: Path) -> None:
    script = "from harness.workers.netcheck import diagnose_distributed_issues; print(1)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "1\n", done.stderr
