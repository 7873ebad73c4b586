"""The torchrun command, run by a real bash with a torchrun that shows its arguments."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.torchrun_controller.api.models import Distributed, JobSpec, Reliability
from harness.torchrun_controller.objects import command, etcd
from harness.torchrun_controller.plan.gpu_layout import Plan, Refused

ONE, TWO, ELASTIC = Plan(1, 1, 0, 2), Plan(2, 2, 8, 8), Plan(4, 2, 0, 1)
SHOW = "#!/usr/bin/env python3\nimport sys\nprint('\\0'.join(sys.argv[1:]), end='')\n"


def spec(text: str, **fields: object) -> JobSpec:
    return JobSpec.model_validate({"jobQueue": "q", "command": text, **fields})


def shown(tmp_path: Path, script: str, index: int = 0) -> list[str]:
    """Return the arguments that torchrun gets when a pod runs the script."""
    for name, text in (("torchrun", SHOW), ("getent", "#!/bin/sh\necho 10.0.0.1 $2\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "JOB_COMPLETION_INDEX": str(index),
        command.RUN_ID: "uid-1",
        command.POD_IP: "10.0.0.1" if index == 0 else "10.0.0.2",
    }
    with socket.create_server(("127.0.0.1", 0)) as first:  # stands for pod 0, which listens
        there = f"/dev/tcp/127.0.0.1/{first.getsockname()[1]}"
        script = re.sub(r"/dev/tcp/demo-node-0-0\.demo/\d+", there, script)
        ended = subprocess.run(
            ["bash", "-c", script],
            check=False,
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            timeout=30,
        )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split("\0")


def distributed(**fields: object) -> Distributed:
    return Distributed.model_validate(fields)


def test_c10d_rendezvous_is_hosted_by_the_first_pod(tmp_path: Path) -> None:
    """Contract: the default endpoint is the first pod's name, not an etcd; only pod 0 is the host."""
    text = command.script("demo", spec("python train.py --epochs 100"), TWO, distributed())
    for index, host in ((0, "true"), (1, "false")):
        assert shown(tmp_path, text, index) == [
            "--nnodes=2",
            "--rdzv-id=uid-1",
            f"--local-addr=10.0.0.{index + 1}",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=demo-node-0-0.demo:29500",
            f"--rdzv-conf=is_host={host},join_timeout=600",
            "--nproc-per-node=8",
            "train.py",
            "--epochs",
            "100",
        ]


def test_first_pod_waits_for_its_own_address(tmp_path: Path) -> None:
    """Contract: while DNS has the pod before it, torchrun does not start: its host would be that one."""
    text = command.script("demo", spec("python train.py"), TWO, distributed())
    short = text.replace(f"SECONDS + {command.NAMES_SECONDS}", "SECONDS + 1")
    assert short != text
    (tmp_path / "getent").write_text("#!/bin/sh\necho 10.0.0.11 $2\n")
    (tmp_path / "getent").chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "JOB_COMPLETION_INDEX": "0",
        command.POD_IP: "10.0.0.1",
    }
    ended = subprocess.run(
        ["bash", "-c", short], check=False, capture_output=True, text=True, env=environment, timeout=30
    )
    assert ended.returncode == 1
    assert "expected demo-node-0-0.demo:29500" in ended.stderr
    assert "seen 10.0.0.11" in ended.stderr


def test_static_rendezvous_has_node_ranks_and_one_master(tmp_path: Path) -> None:
    """Contract: each pod has its own node rank; all have the same master."""
    text = command.script("demo", spec("python train.py"), TWO, distributed(rdzvBackend="static", port=3000))
    arguments = shown(tmp_path, text, index=1)
    assert arguments[:5] == [
        "--nnodes=2",
        "--rdzv-backend=static",
        "--node-rank=1",
        "--master-addr=demo-node-0-0.demo",
        "--master-port=3000",
    ]


@pytest.mark.parametrize("backend", ["static", "c10d", "etcd-v2"])
def test_an_endpoint_is_one_word_of_the_shown_command(backend: str) -> None:
    """Contract: the job's status shows the command, which people copy into a shell."""
    given = distributed(rdzvBackend=backend, rdzvEndpoint="a$(b):1;touch $(c)")
    text = command.torchrun("demo", spec("python train.py"), TWO, given)
    words = shlex.split(text)
    assert words[-1] == "train.py"
    assert any(word.endswith("1;touch $(c)") for word in words), text
    outside = "".join(re.split(r"'[^']*'", text))
    assert "touch" not in outside


def test_etcd_rendezvous_uses_the_given_or_default_endpoint(tmp_path: Path) -> None:
    """Contract: etcd-v2 goes to the endpoint that is given, or to the original's default."""
    given_one = distributed(rdzvBackend="etcd-v2", rdzvEndpoint="etcd.other:2379")
    text = command.script("demo", spec("python train.py"), TWO, given_one)
    assert "--rdzv-endpoint=etcd.other:2379" in text
    assert f"--rdzv-endpoint={etcd.ENDPOINT}" in command.script(
        "demo", spec("x"), TWO, distributed(rdzvBackend="etcd-v2")
    )


@pytest.mark.parametrize(
    ("module", "says"),
    [("raise ImportError", "the package python-etcd"), ("", "expected an etcd at 127.0.0.1:")],
)
def test_an_unusable_etcd_ends_the_pod_before_torchrun(
    tmp_path: Path, module: str, says: str, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: without the package, or without a server, the pod ends at once with the reason, and what to
    do instead. A module of the user's code with the name of a standard one changes nothing.
    """
    monkeypatch.setattr(etcd, "SECONDS", 1)
    packages, code = tmp_path / "packages", tmp_path / "code"
    for folder in (packages, code):
        folder.mkdir()
    (packages / "etcd.py").write_text(module)
    (code / "http.py").write_text("raise SystemExit(77)")
    lines = etcd.check(f"127.0.0.1:{unused_tcp_port}")
    ended = subprocess.run(
        ["bash", "-ec", "\n".join(lines)],
        cwd=code,
        env={**os.environ, "PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert ended.returncode == 1, ended.stderr
    assert says in ended.stderr
    assert "c10d" in ended.stderr


def test_each_meeting_has_a_store_of_its_own(tmp_path: Path) -> None:
    """Contract: the address of a node that was lost is not asked again; who sets the variable is obeyed."""
    text = command.script("demo", spec("x"), TWO, distributed())
    [line] = [line for line in text.splitlines() if "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" in line]
    outputs = [
        subprocess.run(
            ["bash", "-c", f"{line}\nprintenv TORCH_DISABLE_SHARE_RDZV_TCP_STORE"],
            env={**os.environ, **given},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for given in ({}, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"})
    ]
    assert outputs == ["1", "0"]


def test_one_node_is_standalone(tmp_path: Path) -> None:
    """Contract: a job of one node needs no name and no other pod."""
    assert shown(tmp_path, command.script("demo", spec("python -m pkg.train"), ONE, distributed())) == [
        "--standalone",
        "--nnodes=1",
        "--nproc-per-node=2",
        "-m",
        "pkg.train",
    ]


def test_elastic_bounds_become_the_nnodes_range(tmp_path: Path) -> None:
    """Contract: minNodes and maxNodes are torchrun's own range; a static rendezvous has none."""
    asked = spec("python train.py", minNodes=2, maxNodes=4)
    arguments = shown(tmp_path, command.script("demo", asked, ELASTIC, distributed()))
    assert arguments[0] == "--nnodes=2:4"
    assert f"--max-restarts={Reliability().max_restarts}" in arguments
    with pytest.raises(Refused, match="fixed size"):
        command.script("demo", asked, ELASTIC, distributed(rdzvBackend="static"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cd src && python train.py", ["--no-python", "bash", "-c", "cd src && python train.py"]),
        ("LR=0.1 python train.py", ["--no-python", "bash", "-c", "LR=0.1 python train.py"]),
        ("python -u train.py", ["--no-python", "python", "-u", "train.py"]),
        ("./train --name 'a b'", ["--no-python", "./train", "--name", "a b"]),
        ("python train.py --lr=$LR", ["--no-python", "bash", "-c", "python train.py --lr=$LR"]),
    ],
)
def test_commands_other_than_scripts_use_no_python(tmp_path: Path, text: str, expected: list[str]) -> None:
    """Contract: what needs a shell gets one in each rank; other programs run without Python."""
    assert shown(tmp_path, command.script("demo", spec(text), ONE, distributed()))[3:] == expected


def test_setup_of_several_lines(tmp_path: Path) -> None:
    """Contract: the original's own example, with its line end, is no syntax error, and its cd counts."""
    setup = "mkdir -p models && cd models\n# a comment at the end\n"
    text = command.script("demo", spec("./where", setupCommand=setup), ONE, distributed())
    assert "&&\n" not in text
    (tmp_path / "torchrun").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "torchrun").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run(
        ["bash", "-c", text], check=False, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert ended.stdout.strip() == str(tmp_path / "models"), ended.stderr


@pytest.mark.parametrize(("ends", "code"), [("exit 3", 3), ("kill -KILL $$", 137), ("exit 0", 0)])
def test_exit_code_is_torchruns(tmp_path: Path, ends: str, code: int) -> None:
    """Contract: a failed rank is no success: what torchrun ends with, the pod ends with."""
    (tmp_path / "torchrun").write_text(f"#!/bin/sh\n{ends}\n")
    (tmp_path / "torchrun").chmod(0o755)
    text = command.script("demo", spec("./x"), ONE, distributed())
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run(["bash", "-c", text], check=False, env=environment).returncode == code


def test_sigterm_reaches_torchrun_and_its_exit_code_counts(tmp_path: Path) -> None:
    """Contract: torchrun may end in its own way, e.g. write a checkpoint, and says with which code."""
    (tmp_path / "torchrun").write_text(
        "#!/bin/bash\ntrap 'echo saved; exit 5' TERM\necho ready\nwhile :; do sleep 0.05; done\n"
    )
    (tmp_path / "torchrun").chmod(0o755)
    text = command.script("demo", spec("./x"), ONE, distributed())
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(
        ["bash", "-c", text], stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.terminate()
        assert running.wait(timeout=30) == 5
        assert running.stdout.read() == "saved\n"


@pytest.mark.parametrize("elastic", [False, True])
def test_sigterm_counts_whenever_it_comes(tmp_path: Path, elastic: bool) -> None:
    """Contract: a pod that is told to end ends, between whichever two commands of its script that may be. A
    lost signal costs the whole grace period. Where torchrun has ended already, its exit code stays.
    """
    plan = Plan(nodes=2, least=1, gpus=0, processes=1) if elastic else ONE
    asked = distributed(rdzvEndpoint="nowhere:1") if elastic else distributed()
    text = command.script("demo", spec("./x", setupCommand="true"), plan, asked)
    # A signal to itself before the command of this number. What the script starts is without it.
    (tmp_path / "at").write_text(
        "unset BASH_ENV\ncommands=0\n"
        "trap 'echo \"$BASH_COMMAND\" >>seen; [ $((++commands)) != $AT ] || kill -TERM $$' DEBUG\n"
    )
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "BASH_ENV": "at"}

    def ends(torchrun: str, at: int) -> int:
        (tmp_path / "torchrun").write_text(f"#!/bin/bash\n{torchrun}\n")
        (tmp_path / "torchrun").chmod(0o755)
        command = ["bash", "-c", text]
        return subprocess.run(
            command, check=False, env={**environment, "AT": str(at)}, cwd=tmp_path, timeout=30
        ).returncode

    assert ends("exit 7", 0) == 7
    seen = (tmp_path / "seen").read_text().splitlines()
    waits = next(number for number, line in enumerate(seen, 1) if line.startswith("wait "))
    trapped = next(number for number, line in enumerate(seen, 1) if line.startswith("trap "))
    assert trapped == 2, "the first command after `set -e`"
    # torchrun is told too, perhaps before it has a trap of its own.
    lasting = "trap 'exit 5' TERM\nwhile :; do sleep 0.02; done"
    assert {ends(lasting, at) for at in range(trapped + 1, waits + 1)} <= {143, 5}
    assert {ends("exit 7", at) for at in range(trapped + 1, waits + 1)} <= {143, 7}
    assert {ends("exit 7", at) for at in range(waits + 1, len(seen) + 1)} == {7}


def test_second_sigterm_is_not_passed_on(tmp_path: Path) -> None:
    """Contract: torchrun ends once, in its own time, also where the kubelet asks twice."""
    (tmp_path / "torchrun").write_text(
        "#!/bin/bash\nheard=0\ntrap 'heard=$((heard + 1)); echo $heard' TERM\necho ready\n"
        "until [ -e done ]; do sleep 0.05; done\nexit $heard\n"
    )
    (tmp_path / "torchrun").chmod(0o755)
    text = command.script("demo", spec("./x"), ONE, distributed())
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(
        ["bash", "-c", text], stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.terminate()
        assert running.stdout.readline() == "1\n"
        for _ in range(3):
            running.terminate()
            time.sleep(0.1)
        (tmp_path / "done").touch()
        assert running.wait(timeout=30) == 1


def test_elastic_torchrun_does_not_close_its_rendezvous(tmp_path: Path) -> None:
    """Contract: the ranks of a pod that must go hear SIGTERM; its torchrun, which would close the rendezvous
    for the nodes that are left, does not. The pod waits for its ranks, and has not succeeded.
    """
    rank = "trap 'sleep 0.3; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    (tmp_path / "torchrun").write_text(
        f"#!/bin/bash\ntrap 'echo closed; exit 1' TERM\nbash -c \"{rank}\" &\nwait\n"
    )
    (tmp_path / "torchrun").chmod(0o755)
    plan = Plan(nodes=2, least=1, gpus=0, processes=1)
    text = command.script("demo", spec("./x"), plan, distributed(rdzvEndpoint="nowhere:1"))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(
        ["bash", "-c", text], stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.terminate()
        assert running.wait(timeout=30) == 143
        assert running.stdout.read() == "saved\n"


def test_setup_that_fails_ends_the_pod(tmp_path: Path) -> None:
    """Contract: ranks do not start after a setup that failed."""
    text = command.script("demo", spec("./x", setupCommand="false\necho later\n"), ONE, distributed())
    ended = subprocess.run(["bash", "-c", text], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")


@pytest.mark.parametrize("text", ["torchrun train.py", "python 'train.py", "   "])
def test_nested_torchrun_and_malformed_commands_are_refused(text: str) -> None:
    """Contract: torchrun within torchrun, and what no shell reads, are refused before any pod."""
    with pytest.raises(Refused, match="expected"):
        command.torchrun("demo", spec(text), ONE, distributed())


@given(words=st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1), max_size=4))
def test_words_arrive_as_they_are(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Contract: an argument in quotes reaches the program unchanged, whatever is in it."""
    text = shlex.join(["python", "train.py", *words])
    line = command.torchrun("demo", spec(text), ONE, distributed())
    parts = shlex.split(line)
    program = parts[parts.index("--nproc-per-node=2") + 1 :]
    if program[:3] == ["--no-python", "bash", "-c"]:
        assert shlex.split(program[3])[2:] == words
    else:
        assert program == ["train.py", *words]


def serve(listener: socket.socket, store: str, asked: threading.Event) -> None:
    """Answer as a store does: always, once ("hangs"), or never, as one of another version ("other")."""
    connections = []
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connections.append(connection)
        query = connection.recv(10)
        if len(query) < 10 or store == "other" or (store == "hangs" and asked.is_set()):
            continue
        assert query == b"\x00" + (0x3C85F7CE).to_bytes(4, "little") + b"\x0d\x01\x01\x01\x01"
        connection.sendall(query[-4:])
        asked.set()


def programs(folder: Path, torchrun: str) -> str:
    """Return a PATH with this torchrun, and a getent that knows node 0."""
    for name, text in (("torchrun", torchrun), ("getent", "echo 127.0.0.1 demo")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("store", "code", "message"),
    [("answers", 0, ""), ("hangs", 1, "has not answered for 2 s: its torchrun hangs"), ("other", 0, "")],
)
@pytest.mark.parametrize("index", [0, 1])
def test_a_store_that_does_not_answer_ends_the_pod(
    tmp_path: Path, store: str, code: int, message: str, index: int
) -> None:
    """Contract: torchrun would wait for it without end. A store that never answered is of another version,
    and one that refuses or closes connections is torchrun's own affair. Node 0 asks at its own address: one
    that is cut off finds no names.
    """
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        threading.Thread(target=serve, args=[listener, store, asked], daemon=True).start()
        given = distributed(port=port) if index == 0 else distributed(rdzvEndpoint=f"127.0.0.1:{port}")
        script = command.script("demo", spec("./x"), TWO, given)
        times = {"timeout 15 ": "timeout 1 ", "sleep 15": "sleep 0.2", "-ge 90 ]": "-ge 2 ]", "90 s": "2 s"}
        for old, new in times.items():
            assert old in script
            script = script.replace(old, new)
        torchrun = f"exec sleep {50 if code else 4}"
        environment = {"PATH": programs(tmp_path, torchrun), "JOB_COMPLETION_INDEX": str(index)}
        environment |= {"TMPDIR": str(tmp_path / "scratch"), command.POD_IP: "127.0.0.1"}
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, env=environment, timeout=60, check=False
        )
    assert (done.returncode, message in done.stderr) == (code, True), done
    assert asked.is_set() == (store != "other")


@pytest.mark.parametrize(
    ("store", "renewed"), [("answers", True), ("other", True), ("hangs", True), (None, False)]
)
def test_node_0_says_until_when_it_is_alive(tmp_path: Path, store: str | None, renewed: bool) -> None:
    """Contract: for 300 s after its setup, then for 90 s after each answer of its store; also where that is
    of another version. Where nobody listens the time is not renewed, and ends. It asks at its own address:
    a node 0 that is cut off finds no names.
    """
    until = 'until=$(cat "$TMPDIR/torchrun/alive-until"); [ "${until:-0}" -gt 1 ]'
    now = int(time.time())
    sooner = (
        f"for n in $(seq 300); do {until} && [ $until -lt {now + 250} ] && exit 0; sleep 0.1; done; exit 1"
    )
    first = f"sleep 4; {until} && [ $until -ge {now + 250} ]"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if store is None:
            listener.close()
        else:
            threading.Thread(target=serve, args=[listener, store, threading.Event()], daemon=True).start()
        script = command.script("demo", spec("./x"), TWO, distributed(port=port))
        for old, new in {"timeout 15 ": "timeout 1 ", "sleep 15": "sleep 1"}.items():
            assert old in script
            script = script.replace(old, new)
        torchrun = sooner if renewed else first
        environment = {"PATH": programs(tmp_path, torchrun), "JOB_COMPLETION_INDEX": "0"}
        environment |= {"TMPDIR": str(tmp_path / "scratch"), command.POD_IP: "127.0.0.1"}
        subprocess.run(["bash", "-c", script], env=environment, timeout=60, check=True)


@pytest.mark.parametrize(("index", "left", "code"), [(0, 60, 0), (0, -1, 1), (1, -1, 0), (0, None, 0)])
def test_kubelet_ends_node_0_whose_time_is_over(
    tmp_path: Path, index: int, left: int | None, code: int
) -> None:
    """Contract: all of its processes hang, or its store never listens. Without the file the probe passes:
    its setup runs, or it cannot write.
    """
    probe = command.liveness("demo", TWO, distributed())
    assert probe is not None
    words = [word.replace("$$", "$") for word in probe["exec"]["command"]]  # type: ignore[index]
    if left is not None:
        (tmp_path / "torchrun").mkdir()
        (tmp_path / "torchrun" / "alive-until").write_text(f"{int(time.time()) + left}\n")
    environment = {"JOB_COMPLETION_INDEX": str(index), "TMPDIR": str(tmp_path), "PATH": os.environ["PATH"]}
    assert subprocess.run(words, env=environment, check=False).returncode == code


def test_a_node_that_cannot_write_trains(tmp_path: Path) -> None:
    """Contract: where the file of the liveness probe cannot be written, the script goes on."""
    (tmp_path / "torchrun").touch()
    environment = {"JOB_COMPLETION_INDEX": "0", "TMPDIR": str(tmp_path), "PATH": os.environ["PATH"]}
    subprocess.run(["bash", "-ec", command.ALIVE_AT_FIRST], env=environment, check=True)


def test_where_the_store_is_elsewhere_no_trainer_is_probed() -> None:
    assert command.liveness("demo", ONE, distributed()) is None
    for asked in ({"rdzvEndpoint": "store:1"}, {"rdzvBackend": "static"}, {"rdzvBackend": "etcd-v2"}):
        assert command.liveness("demo", TWO, distributed(**asked)) is None
