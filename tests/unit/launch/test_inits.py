"""An init in a container that shares its process ids: in a cgroup of its own, beside everybody's processes.

As with hostPID, /proc here has every process of the machine. Whatever an init does wrong would reach the
process that each test starts outside the container.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from harness.core.own_processes import OWN_PROCESSES
from harness.launch import inits
from harness.workers.own_processes import OwnProcesses

WORDS: dict[str, Callable[[str, str], list[str]]] = {
    "dash": lambda init, script: ["dash", "-c", init, "sh", "bash", "-c", script],
    "bash": lambda init, script: ["bash", "-c", init, "sh", "bash", "-c", script],
    "busybox": lambda init, script: ["busybox", "sh", "-c", init, "sh", "bash", "-c", script],
    "konduktor": lambda init, script: ["bash", "-c", init, script],
}
LASTING = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.05; done"


def hierarchies() -> list[Path]:
    """Return where cgroups can be made: below this process's own, of version 2 and of a controller of 1."""
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        options = kind.rpartition(" ")[2].split(",")
        for name, path in own.items():
            if (kind.startswith("cgroup2 ") and not name) or ("memory" in options and name == "memory"):
                found.append(Path(mount.split()[4] + path))
    return [folder for folder in found if os.access(folder, os.W_OK)]


@pytest.fixture(params=["version 1", "version 2"])
def cgroup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A cgroup for a container. Every process in it ends with the test."""
    version = request.param
    for parent in hierarchies():
        if ("memory.usage_in_bytes" in os.listdir(parent) or "memory" in parent.parts) == (
            version[-1] == "1"
        ):
            folder = parent / f"container-{os.getpid()}-{tmp_path.name[:40]}"
            break
    else:
        pytest.skip(f"no cgroup of {version} can be made here")
    folder.mkdir()
    yield folder
    for each in [*folder.glob("*/cgroup.procs"), folder / "cgroup.procs"]:
        deadline = time.monotonic() + 20
        while pids := each.read_text().split():
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)
            assert time.monotonic() < deadline
            time.sleep(0.01)
        each.parent.rmdir()


@pytest.fixture
def outside() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else, which a signal to everybody would end."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def started(
    cgroup: Path, words: Sequence[str], *, namespace: bool = False, **more: str
) -> subprocess.Popen[str]:
    """Start a container's first process: in its cgroup, which is the root of a cgroup namespace if asked."""
    enter = f'echo "$$" >{cgroup}/cgroup.procs && exec {"unshare --cgroup " if namespace else ""}"$@"'
    env = {"PATH": os.environ["PATH"], "HARNESS_NONCE": "n", "TERMINATION_LOG": "/dev/null", **more}
    env.setdefault("KONDUKTOR_OUTPUT_DIR", "/nonexistent")
    return subprocess.Popen(["sh", "-c", enter, "sh", *words], env=env, stdout=subprocess.PIPE, text=True)


def alive(cgroup: Path) -> dict[str, str]:
    """Return each process of a container and its lines of /proc/PID/cgroup."""
    pids = (cgroup / "cgroup.procs").read_text().split()
    return {pid: Path(f"/proc/{pid}/cgroup").read_text() for pid in [*pids, "self"]}


def words(shell: str, script: str) -> list[str]:
    """Return the container's command. Skips where this machine lacks the shell."""
    init = inits.KONDUKTOR if shell == "konduktor" else inits.WORKER
    command = WORDS[shell](init, script)
    if subprocess.run(["which", command[0]], capture_output=True, check=False).returncode:
        pytest.skip(f"no {command[0]} here")
    return command


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


@pytest.mark.parametrize("namespace", [False, True], ids=["no namespace", "namespace"])
@pytest.mark.parametrize("shell", WORDS)
def test_sigterm_reaches_every_process_of_container_and_no_other(
    cgroup: Path, outside: subprocess.Popen[bytes], shell: str, namespace: bool
) -> None:
    """Also one in a session of its own whose parent has ended, and one in a cgroup below."""
    below = cgroup / "below"
    below.mkdir()
    orphan = f"(setsid bash -c {LASTING!r} & echo started)"
    lower = f"bash -c 'echo $BASHPID >{below}/cgroup.procs; {LASTING.replace(chr(39), chr(34))}' &"
    script = f"{orphan}; {lower} {LASTING}"
    container = started(cgroup, words(shell, script), namespace=namespace)
    lines = [line_of(container) for _ in range(4)]
    assert sorted(lines) == ["ready", "ready", "ready", "started"]
    container.send_signal(signal.SIGTERM)
    output, _ = container.communicate(timeout=300)
    assert output.splitlines().count("told") == 3
    assert outside.poll() is None


@pytest.mark.parametrize("namespace", [False, True], ids=["no namespace", "namespace"])
@pytest.mark.parametrize("shell", WORDS)
def test_the_init_waits_only_for_its_container_processes(
    cgroup: Path, outside: subprocess.Popen[bytes], shell: str, namespace: bool
) -> None:
    """The process outside lives on, and so would an init that waited for everybody."""
    script = "setsid bash -c 'read -r line <$PIPE; echo last' & echo ready; kill -KILL $BASHPID"
    pipe = cgroup.name
    os.mkfifo(f"/tmp/{pipe}")
    try:
        container = started(cgroup, words(shell, script), namespace=namespace, PIPE=f"/tmp/{pipe}")
        assert line_of(container) == "ready"
        time.sleep(0.5)
        assert container.poll() is None, f"a process of the container still runs: {alive(cgroup)}"
        Path(f"/tmp/{pipe}").write_text("go\n")
        output, _ = container.communicate(timeout=300)
    finally:
        os.unlink(f"/tmp/{pipe}")
    assert output.splitlines()[0] == "last"
    assert container.returncode == 137
    assert outside.poll() is None


ROOT_CGROUP = """for each in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs; do
  [ ! -e "$each" ] || echo $$ >"$each" 2>/dev/null || :
done
! grep -q ':/.' /proc/self/cgroup || exit 77
exec unshare --mount "$@"
"""
"""The machine's root cgroup, in a mount namespace of its own: a runtime that makes no cgroups."""


@pytest.mark.parametrize("shell", WORDS)
def test_where_cgroups_do_not_tell_only_command_is_signalled(
    outside: subprocess.Popen[bytes], shell: str
) -> None:
    """Every process of the machine seems to be in the container's cgroup, or below it."""
    if os.geteuid() != 0:
        pytest.skip("the root cgroup is for root")
    env = {"PATH": os.environ["PATH"], "TERMINATION_LOG": "/dev/null", "KONDUKTOR_OUTPUT_DIR": "/nonexistent"}
    command = ["sh", "-c", ROOT_CGROUP, "sh", *words(shell, LASTING)]
    container = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    if line_of(container) != "ready":
        assert container.wait(20) == 77
        pytest.skip("this process may not enter the machine's root cgroup")
    container.send_signal(signal.SIGTERM)
    output, _ = container.communicate(timeout=300)
    assert output.splitlines()[0] == "told"
    assert outside.poll() is None


OWN = ["0::/", "0::/kubepods/pod1/a", "3:cpu:/kubepods/pod1/a\n1:name=systemd:/x\n0::/"]
LIST = OWN_PROCESSES + 'shown() { echo "$1"; }\nown_each shown\n'


OTHERS = [
    ("{own}", True),
    ("{own}/below", True),
    ("0::/..", False),
    ("0::/../b", False),
    ("0::/../../../kubelet.slice", False),
    ("0::/kubepods/pod1/ab", False),
    ("0::/kubepods/pod1", False),
    ("3:cpu:/kubepods/pod1/a", False),
    ("3:cpu:/kubepods/pod1/b\n1:name=systemd:/x\n0::/", False),
    ("3:cpu:/kubepods/pod1/a/sub\n1:name=systemd:/\n0::/", False),
    ("", False),
]


@pytest.mark.parametrize(
    ("own", "other", "is_own"),
    [
        (own, *other)
        for own in OWN
        for other in OTHERS
        if own != "0::/" or other[0].startswith(("{own}", "0::/.."))  # A root has all that is not outside it.
    ],
)
@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_which_cgroups_are_the_container_s(
    tmp_path: Path, shell: str, own: str, other: str, is_own: bool
) -> None:
    """The same function on a /proc made of files: what kernels with other cgroups show."""
    for name, text in (("self", own), ("1", "0::/.."), ("7", other.replace("{own}", own))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup").write_text("".join(f"{line}\n" for line in text.splitlines()))
    (tmp_path / "self" / "stat").write_text("5 (sh) S 1\n")
    words = ["busybox", "sh"] if shell == "busybox" else [shell]
    command = [*words, "-c", LIST.replace("/proc", str(tmp_path))]
    if subprocess.run(["which", command[0]], capture_output=True, check=False).returncode:
        pytest.skip(f"no {command[0]} here")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == (["7"] if is_own else [])
    assert OwnProcesses(tmp_path).pids() == ([7] if is_own else [])


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_a_hierarchy_that_is_mounted_later_hides_no_process(tmp_path: Path, shell: str) -> None:
    """Contract: every process gains a line in /proc/PID/cgroup, such as by kind's nodes on a new machine."""
    before, after = "0::/pod/a\n", "1:name=systemd:/\n0::/pod/a\n"
    for name in ("self", "1", "7"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup").write_text("0::/..\n" if name == "1" else before)
    (tmp_path / "self" / "stat").write_text("5 (sh) S 1\n")
    own = OwnProcesses(tmp_path)
    add = f"for each in self 7; do printf '{after}' >{tmp_path}/$each/cgroup; done\n".replace("\n'", "\\n'")
    text = OWN_PROCESSES.replace("/proc", str(tmp_path)) + add + 'shown() { echo "$1"; }\nown_each shown\n'
    command = [*(["busybox", "sh"] if shell == "busybox" else [shell]), "-c", text]
    if subprocess.run(["which", command[0]], capture_output=True, check=False).returncode:
        pytest.skip(f"no {command[0]} here")
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["7"]
    assert own.pids() == [7]
