"""Outside programs end with the harness, in whichever thread they are waited for."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.core import processes
from harness.core.errors import HarnessError, ToolError

ENDLESS = ["sh", "-c", "echo $$ > $0; sleep 1000 & wait"]


def started(pid_file: Path) -> int:
    """Return the pid that the program wrote."""
    deadline = time.monotonic() + 10
    while not (pid_file.exists() and pid_file.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(pid_file.read_text())


def group_is_gone(group: int, seconds: float = 30) -> bool:
    """Whether the group ends soon: a killed process takes a moment."""
    deadline = time.monotonic() + seconds
    while _runs(group) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not _runs(group)


def _runs(group: int) -> bool:
    """A zombie does not count as running: a container without an init reaps none."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, own_group = stat.read_text().rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue
        if int(own_group) == group and state != "Z":
            return True
    return False


def test_an_environment_for_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: names are taken away by their beginning, changes come last, None takes a variable away."""
    for name in ("HARNESS_WORKERS", "PLUTO_RUN_ID", "KEEP_CLUSTER", "KUBECONFIG", "OTHER"):
        monkeypatch.setenv(name, "x")
    variables = processes.environment({"HARNESS_WORKERS": "2", "OTHER": None}, without=processes.CHOOSING)
    assert variables["HARNESS_WORKERS"] == "2"
    assert variables["PATH"] == os.environ["PATH"]
    assert not {"PLUTO_RUN_ID", "KEEP_CLUSTER", "KUBECONFIG", "OTHER"} & set(variables)
    assert processes.environment({"A": "b"}, only=("OTHER", "NOT_THERE")) == {"OTHER": "x", "A": "b"}


def test_processes_are_found_by_their_environment(tmp_path: Path) -> None:
    """Contract: only those with the text in a variable, by pid and command line; one that ended has none."""
    env = {**os.environ, "MARK": str(tmp_path)}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=env) as program:
        (found,) = processes.started_with(str(tmp_path))
        assert (found.pid, processes.command_line(found)) == (program.pid, "cat")
        program.communicate()
    assert processes.started_with(str(tmp_path)) == []
    assert processes.command_line(found) == ""


def test_text_and_files_as_input(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"from a file")
    with (tmp_path / "in").open("rb") as source:
        assert processes.run(["cat"], timeout=10, stdin=source).stdout == "from a file"
    assert processes.run(["cat"], timeout=10, stdin="text").stdout == "text"
    assert processes.run(["cat"], timeout=10).stdout == ""


def test_what_goes_wrong_is_told() -> None:
    with pytest.raises(ToolError, match="exit code 3:\nwhy"):
        processes.run(["sh", "-c", "echo why; exit 3"], timeout=10)
    with pytest.raises(HarnessError, match="not on PATH"):
        processes.run(["no-such-program"], timeout=10)


def test_a_timeout_takes_the_whole_group(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(ToolError, match="still running after 1 s"):
        processes.run([*ENDLESS, str(pid)], timeout=1)
    assert group_is_gone(started(pid))


def test_an_interruption_ends_what_other_threads_wait_for(tmp_path: Path) -> None:
    """The thread learns that it was interrupted: an exit by SIGKILL would look like the program's failure."""
    pid = tmp_path / "pid"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(processes.run, [*ENDLESS, str(pid)], timeout=100)
        group = started(pid)
        processes.interrupt_all("SIGTERM")
        assert isinstance(waiting.exception(60), KeyboardInterrupt)
        assert str(waiting.exception()) == "SIGTERM"
    assert group_is_gone(group)


def test_an_interruption_at_the_moment_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a program that another thread has just started, and does not wait for yet, ends too."""
    real = subprocess.Popen

    def interrupted(*arguments: object, **more: object) -> object:
        process_ = real(*arguments, **more)  # type: ignore[call-overload]
        processes.interrupt_all("SIGTERM")
        return process_

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        processes.run(["sleep", "30"], timeout=20)


@pytest.mark.parametrize("ours", [True, False], ids=["the harness's handlers", "Python's own"])
def test_a_signal_at_the_moment_of_the_start(monkeypatch: pytest.MonkeyPatch, ours: bool) -> None:
    """Contract: Ctrl-C comes when the program runs and Popen has not returned: it ends all the same."""
    real, children = subprocess.Popen, []
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)

    def signalled(*arguments: object, **more: object) -> object:
        children.append(real(*arguments, **more))  # type: ignore[call-overload]
        os.kill(os.getpid(), signal.SIGINT)
        return children[0]

    monkeypatch.setattr(subprocess, "Popen", signalled)
    try:
        with processes.signals_as_interrupt() if ours else nullcontext(), pytest.raises(KeyboardInterrupt):
            processes.run(["sleep", "30"], timeout=20)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, inherited)
    assert children[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_way_to_end_a_run_interrupts_it(signum: signal.Signals, tmp_path: Path) -> None:
    """Contract: each interrupts the run, and the handlers are restored afterwards."""
    inherited = signal.signal(signum, signal.default_int_handler)  # under nohup, SIGHUP is ignored
    before = signal.getsignal(signum)
    pid = tmp_path / "pid"

    def send() -> None:
        started(pid)
        os.kill(os.getpid(), signum)

    sender = threading.Thread(target=send)
    with processes.signals_as_interrupt():
        sender.start()
        with pytest.raises(KeyboardInterrupt, match=signum.name):
            processes.run([*ENDLESS, str(pid)], timeout=100)
    sender.join()
    assert group_is_gone(started(pid))
    assert signal.getsignal(signum) is before
    signal.signal(signum, inherited)


def test_an_ignored_signal_stays_ignored() -> None:
    """nohup: the run goes on when its terminal goes."""
    script = (
        "import os, signal; from harness.core import processes\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with processes.signals_as_interrupt(): os.kill(os.getpid(), signal.SIGHUP)\n"
        "print('went on')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "went on\n"
