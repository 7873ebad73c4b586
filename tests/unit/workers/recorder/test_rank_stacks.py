"""Where a rank was when it got SIGTERM: real programs, started as torchrun's agent starts its ranks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from interpreters import PYTHONS
from mounting import lay_out

from harness.launch.mounts import recorder
from harness.workers.recorder.rank_stacks import MAX_TEXT, first_stack

AGENT = """
import json, os, subprocess, sys
from _harness_recorder.recorder import rank_stacks
rank_stacks.provide([0, 1])
env = {**os.environ, "RANK": "1", "LOCAL_RANK": "1"}
rank = subprocess.Popen([sys.executable, sys.argv[1]], env=env, stdout=subprocess.PIPE, text=True)
rank.stdout.readline()
rank.terminate()
said, code = rank.communicate(timeout=60)[0], rank.returncode
print(json.dumps([said.split(), code, rank_stacks.taken(), rank_stacks.taken()]))
"""
RANK = """
import faulthandler, os, signal, sys, threading, time
def handle(number, frame):
    os.write(1, b"handled\\n")
    {handle}
def wait():
    os.write(1, b"ready\\n")
    time.sleep(100)
threading.Thread(target=time.sleep, args=[100], daemon=True).start()
{before}
wait()
"""
INSTALL = "signal.signal(signal.SIGTERM, handle)"
DEFAULT = "signal.signal(signal.SIGTERM, signal.SIG_DFL); signal.raise_signal(number)"
FORK = "pid = os.fork()\nif not pid: time.sleep(100)\nos.kill(pid, 15); assert os.waitpid(pid, 0)[1] == 15"


def terminated(folder: Path, python: str, before: str, handle: str) -> tuple[list[str], int, list[str]]:
    """Return what a rank printed after it got SIGTERM, its exit code, and its stacks that were recorded."""
    script = folder.parent / "train.py"
    script.write_text(RANK.format(before=before, handle=handle))
    env = {"PYTHONPATH": str(folder), "HARNESS_NONCE": "0123abcd", "HARNESS_LOG": "/dev/null"}
    done = subprocess.run(
        [python, "-c", AGENT, str(script)], env=env, capture_output=True, text=True, check=True, timeout=90
    )
    output, code, stacks, again = json.loads(done.stdout)
    assert not again, "a stack is recorded once"
    assert all(local == 1 for local, _ in stacks)
    return output, code, [text for _, text in stacks]


@pytest.mark.parametrize(
    ("before", "handle", "output", "code"),
    [
        ("", "", [], -15),
        (INSTALL, "os._exit(7)", ["handled"], 7),
        (INSTALL, DEFAULT, ["handled"], -15),
        (INSTALL + "\nsignal.signal(signal.SIGTERM, signal.SIG_DFL)", "", [], -15),
        (FORK, "", [], -15),
    ],
    ids=["no handler", "a handler", "a handler that resets itself", "a handler that was reset", "a fork"],
)
@pytest.mark.parametrize("python", PYTHONS)
def test_stack_is_recorded_and_program_ends_as_before(
    tmp_path: Path, python: str, before: str, handle: str, output: list[str], code: int
) -> None:
    """Contract: the program's own handler runs, and a forked process that is ended is not the rank."""
    folder = lay_out(recorder.MOUNTED, tmp_path / "recorder")
    printed, exited, [stack] = terminated(folder, python, before, handle)
    assert (printed, exited) == (output, code)
    lines = stack.splitlines()
    assert lines[0] == "Stack (most recent call first):"
    assert lines[1].endswith("in wait")


@pytest.mark.parametrize("python", PYTHONS)
def test_a_program_that_uses_faulthandler_itself_keeps_it(tmp_path: Path, python: str) -> None:
    folder = lay_out(recorder.MOUNTED, tmp_path / "recorder")
    theirs = "faulthandler.register(signal.SIGTERM, file=sys.stdout, chain=True)"
    printed, exited, stacks = terminated(folder, python, theirs, "")
    assert (exited, stacks) == (-15, [])
    assert "wait" in printed


def test_only_first_whole_stack_of_main_thread_counts() -> None:
    """Contract: the second one can be that of the program's handler, and a long one is cut at a line."""
    head, frame = "Stack (most recent call first):\n", '  File "/a/train.py", line 7 in load\n'
    assert first_stack(f'{head}{frame}{head}  File "/b.py", line 1 in handle\n') == f"{head}{frame}".rstrip()
    assert first_stack(f"{head}{frame}"[:-9]) == ""
    assert first_stack("") == ""
    thread = '  File "/usr/lib/python3.13/threading.py", line 1014 in _bootstrap\n'
    assert first_stack(f"{head}{frame}{thread}") == ""
    cut = first_stack(head + frame * 100)
    assert len(cut) <= MAX_TEXT + len(head)
    assert set(cut.splitlines()[1:]) == {frame.rstrip()}
