"""What a rank's process records of itself: real programs, run as torchrun would start them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from interpreters import PYTHONS
from mounting import lay_out

from harness.evidence.schema.processes import ProcessEnd, ProcessLine, ProcessStart, decode
from harness.launch.mounts import recorder
from harness.workers.recorder import hooks

NONCE = "0123abcd"
RANK = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "0"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return lay_out(recorder.MOUNTED, tmp_path / "recorder")


def ran(
    folder: Path, program: str, python: str = sys.executable, **env: str
) -> tuple[int, list[ProcessLine], str]:
    """Run a program, with its output in a file. Return its exit code, what it recorded, and its output."""
    log = folder.parent / "log"
    log.touch()
    given = {"PYTHONPATH": str(folder), "HARNESS_NONCE": NONCE, "HARNESS_LOG": str(log), **RANK, **env}
    given = {name: value for name, value in given.items() if value}
    done = subprocess.run([python, "-c", program], env=given, capture_output=True, text=True, check=False)
    events = [event for line in log.read_text().splitlines() for event in decode(NONCE, line, "pod-0")]
    return done.returncode, events, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("program", "code", "how", "error"),
    [
        ("pass", 0, "exit", ""),
        ("import sys; sys.exit(3)", 3, "exit", ""),
        ("import sys; sys.exit('no data')", 1, "exit", ""),
        ("raise RuntimeError('boom')", 1, "exception", "RuntimeError: boom"),
        ("import os; os._exit(4)", 4, "os._exit", ""),
        ("import os\nif os.fork() == 0: os._exit(9)\nos.wait()", 0, "exit", ""),
        ("import sys\ntry: sys.exit(5)\nfinally: pass", 5, "exit", ""),
        ("exit(7)", 7, "exit", ""),
        ("quit('no data')", 1, "exit", ""),
        ("import sys\ntry: sys.exit(5)\nexcept SystemExit: pass", 0, "exit", ""),
        ("import sys\ntry: sys.exit(5)\nexcept SystemExit as error: print(error.code)", 0, "exit", ""),
        ("import argparse\ntry: argparse.ArgumentParser().parse_args(['-x'])\nexcept: pass", 0, "exit", ""),
        (
            "import sys, threading as t\none = t.Thread(target=sys.exit, args=[5])\none.start(); one.join()",
            0,
            "exit",
            "",
        ),
        ("import sys\ntry: raise ValueError\nexcept ValueError: sys.exit(256 + 4)", 4, "exit", ""),
    ],
)
@pytest.mark.parametrize("python", PYTHONS)
def test_a_rank_records_its_end(
    folder: Path, program: str, code: int, how: str, error: str, python: str
) -> None:
    seen, events, output = ran(folder, program, python)
    assert seen == code
    start, end = events
    assert isinstance(start, ProcessStart)
    assert (start.role, start.env["RANK"], start.env["WORLD_SIZE"]) == ("rank", "1", "2")
    assert isinstance(end, ProcessEnd)
    assert (end.code, end.how, end.error, end.id) == (code, how, error, start.id)
    assert "@process1" not in output
    assert "[harness]" not in output


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(3)",
        "def main(): return 3\nraise SystemExit(main())",
        "class End(SystemExit): pass\nraise End(3)",
    ],
)
def test_a_code_that_python_does_not_tell_is_unknown(folder: Path, program: str, python: str) -> None:
    seen, events, _ = ran(folder, program, python)
    asked = [python, "-c", "import sys; sys.exit(hasattr(sys, 'monitoring'))"]
    exit_code = subprocess.run(asked, check=False).returncode
    end = events[-1]
    assert seen == 3
    assert isinstance(end, ProcessEnd)
    assert end.code == (3 if exit_code else None)


def test_a_process_that_becomes_another_program_keeps_its_id(folder: Path) -> None:
    program = "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import sys; sys.exit(6)'])"
    code, events, _ = ran(folder, program)
    assert code == 6
    assert [event.kind for event in events] == ["start", "end", "start", "end"]
    assert [event.how for event in events if isinstance(event, ProcessEnd)] == ["exec", "exit"]
    assert len({event.id for event in events}) == 1


def test_a_process_that_a_signal_kills_records_no_end(folder: Path) -> None:
    _, events, _ = ran(folder, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert [event.kind for event in events] == ["start"]


def test_a_process_without_rank_or_client_records_nothing(folder: Path) -> None:
    _, events, _ = ran(folder, "pass", LOCAL_RANK="")
    assert events == []


def test_a_helper_that_a_rank_starts_records_nothing(folder: Path) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'])"
    _, events, _ = ran(folder, program)
    assert [event.kind for event in events] == ["start", "end"]


def test_an_event_of_another_launch_is_not_taken(folder: Path) -> None:
    ran(folder, "pass")
    lines = (folder.parent / "log").read_text().splitlines()
    assert not [event for line in lines for event in decode("another", line, "pod-0")]


def test_a_program_that_clears_its_environment_records_its_end(folder: Path) -> None:
    _, events, _ = ran(folder, "import os, sys; os.environ.clear(); sys.exit(3)")
    assert [event.kind for event in events] == ["start", "end"]


def test_no_event_goes_to_a_file_of_the_program(folder: Path) -> None:
    """A program that closes all files gets the number of the recorder's for one of its own."""
    own = folder.parent / "checkpoint"
    program = f"import os; os.closerange(3, 64); own = [os.open({str(own)!r}, 65) for _ in range(9)]"
    _, events, _ = ran(folder, program)
    assert own.read_text() == ""
    assert [event.kind for event in events] == ["start", "end"]


def test_a_forked_daemon_records_its_end(folder: Path) -> None:
    program = """
import os, sys
if os.fork(): os.wait(); os._exit(0)
from _harness_recorder.recorder import process_events
process_events.start()
"""
    _, events, _ = ran(folder, program, LOCAL_RANK="", RANK="0")
    assert [event.kind for event in events] == ["start", "end"]


def test_the_timeout_around_a_rank_is_recorded(folder: Path) -> None:
    log = folder.parent / "log"
    log.touch()
    given = {"PYTHONPATH": str(folder), "HARNESS_NONCE": NONCE, "HARNESS_LOG": str(log), "RANK": "0"}
    began = time.time()
    command = ["timeout", "-k", "5", "2m", "sh", "-c", f"LOCAL_RANK=0 {sys.executable} -c 'pass'; :"]
    subprocess.run(command, env=given, check=True)
    start = next(decode(NONCE, log.read_text().splitlines()[0], "pod-0"))
    assert isinstance(start, ProcessStart)
    assert start.limit == "timeout -k 5 2m"
    assert abs((start.limit_since_ms or 0) / 1000 - began) < 2


@pytest.mark.parametrize("python", PYTHONS)
def test_a_torchrun_is_recorded_before_it_reads_its_options(folder: Path, python: str) -> None:
    log, torchrun = folder.parent / "log", folder.parent / "torchrun"
    log.touch()
    torchrun.write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    given = {"PYTHONPATH": str(folder), "HARNESS_NONCE": NONCE, "HARNESS_LOG": str(log), "RANK": "1"}
    words = [python, "-u", str(torchrun), "--no-such-option"]
    assert subprocess.run(words, env=given, check=False, capture_output=True).returncode == 2
    start, end = (event for line in log.read_text().splitlines() for event in decode(NONCE, line, "pod-0"))
    assert isinstance(start, ProcessStart)
    assert isinstance(end, ProcessEnd)
    assert (start.role, end.code) == ("agent", 2)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("python3 /usr/bin/torchrun --nnodes=2 train.py", "torchrun"),
        ("python3 -u -X dev -m torch.distributed.run train.py", "torchrun"),
        ("python3 -m torch.distributed.launch train.py", "torchrun"),
        ("python3 /opt/bin/accelerate launch --num_machines 2 train.py", "accelerate launch"),
        ("python3 -m accelerate.commands.launch train.py", "accelerate launch"),
        ("python3 /opt/bin/accelerate env", ""),
        ("python3 /opt/bin/deepspeed --num_nodes 2 train.py", "deepspeed"),
        ("python3 -W ignore train.py /usr/bin/torchrun", ""),
        ("python3 -c torchrun", ""),
        ("python3 -", ""),
        ("python3", ""),
    ],
)
def test_a_launcher_is_known_by_its_command_line(words: str, name: str) -> None:
    assert hooks.launcher(words.split()) == name


@pytest.mark.parametrize(
    ("program", "gpu"),
    [
        ("import torch; torch.cuda.used = True", True),
        ("import torch; torch.xpu.used = True", True),
        ("import torch", False),
        ("import torch; del torch.xpu", False),
        ("import torch; del torch.cuda", None),
        ("import torch, jax", False),
        ("import torch, jax; device = open('/dev/dri/renderD128')", None),
        ("import jax", None),
        ("pass", None),
    ],
)
def test_a_rank_records_whether_pytorch_used_a_gpu(folder: Path, program: str, gpu: bool | None) -> None:
    """Contract: if another library may have used a GPU, it is unknown.

    The modules are named as PyTorch and JAX, and have only the attributes that the recorder reads.
    tests/k8s/test_multinode.py uses the real PyTorch.
    """
    modules = """
        import os, sys, types
        class Device:
            used = False
            def is_initialized(self): return self.used
        sys.modules["torch"] = types.SimpleNamespace(cuda=Device(), xpu=Device())
        def open(path): os.readlink = lambda file, **o: path
    """
    if "jax" in program:
        modules += """
        sys.modules["jax"] = types.ModuleType("jax")
        """
    if "import torch" not in program:
        modules += """
        del sys.modules["torch"]
        """
    _, events, output = ran(folder, textwrap.dedent(modules) + program)
    end = events[-1]
    assert isinstance(end, ProcessEnd), output
    assert end.gpu is gpu, output
