"""Mounted modules run in a container: at once where the Python is the harness's own, and in any other."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mounting import lay_out

from harness.launch import netcheck, recorder
from harness.launch.mounted import MountedFolder

SAID = "import module; print(module.__file__, module.fails.__code__.co_filename)"


def run(folder: Path) -> str:
    """Import module.py out of a folder that Python may not write to, and return where it was."""
    words, env = [sys.executable, "-B", "-c", SAID], {"PYTHONPATH": str(folder)}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@pytest.mark.parametrize("mounted", [netcheck.MOUNTED, recorder.MOUNTED], ids=lambda one: one.name)
def test_the_volume_lays_out_every_file(mounted: MountedFolder, tmp_path: Path) -> None:
    """Contract: each file lies at its path, no key has a slash, and a ConfigMap can hold them."""
    folder = lay_out(mounted, tmp_path)
    for path, source in mounted.sources.items():
        assert (folder / path).read_bytes() == source.read_bytes()
    data = mounted.config_map("ns")["binaryData"]
    assert not any("/" in key for key in data)
    assert sum(map(len, data.values())) < 700_000, "a ConfigMap takes 1 MiB"


def test_this_python_need_not_compile(tmp_path: Path) -> None:
    """Contract: the bytecode is used, and says of itself where it lies now. Without it, the source is."""
    source = tmp_path / "module.py"
    source.write_text("def fails():\n    pass\n")
    folder = lay_out(MountedFolder("m", "/m", {"module.py": source}), tmp_path / "mount")
    module = folder / "module.py"
    module.write_text("raise SystemExit('compiled again')\n")
    assert run(folder).split() == [str(module), str(module)]
    shutil.rmtree(folder / "__pycache__")
    module.write_bytes(source.read_bytes())
    assert run(folder).split() == [str(module), str(module)]


def test_a_source_that_changed_is_compiled_again(tmp_path: Path) -> None:
    """Contract: source and bytecode of one mount are the same code."""
    source = tmp_path / "module.py"
    source.write_text("def fails():\n    pass\n")
    mounted = MountedFolder("m", "/m", {"module.py": source})
    before = mounted.files
    source.write_text("def fails():\n    return 1\n")
    after = mounted.files
    assert before.keys() == after.keys()
    assert all(before[path] != after[path] for path in before)
