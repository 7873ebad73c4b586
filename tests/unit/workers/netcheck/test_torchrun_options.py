"""What torchrun's options say of a job: in a process's words, in a script, and in the container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.workers.netcheck.torchrun_names import compared, published
from harness.workers.netcheck.torchrun_options import from_script, gpus, of_container
from harness.workers.netcheck.variables import _Reader, validate_environment

TEAM = {"MASTER_ADDR": "job-0.pods", "NNODES": "2", "NODE_RANK": "1"}
GUIDE = """# Enhanced torchrun command
sleep $((RANDOM % 30 + 30))
# torchrun --nnodes 9 old.py
torchrun \\
  --nnodes=4 \\
  --nproc_per_node=8 \\
  --node_rank=$JOB_COMPLETION_INDEX \\
  --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT \\
  --rdzv_conf=timeout=1800,read_timeout=120 \\
  train.py --nnodes=7
"""


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (
            GUIDE,
            {
                "NNODES": "4",
                "NPROC_PER_NODE": "8",
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": "$MASTER_ADDR:$MASTER_PORT",
                "PET_RDZV_CONF": "timeout=1800,read_timeout=120",
            },
        ),
        ("cd /app && torchrun --nnodes 2 x.py; echo --nnodes=3", {"NNODES": "2"}),
        ("exec python3 -m torch.distributed.run --nnodes=1:3 x.py", {"NNODES": "1:3"}),
        ("torchrun --nnodes=${NNODES} --nproc-per-node='2' x.py", {"NPROC_PER_NODE": "2"}),
        ("torchrun --nnodes=2 'it is\nunfinished", {"NNODES": "2"}),
        ("python3 train.py --with torchrunner --nnodes=3", {}),
        ("", {}),
    ],
)
def test_literal_options_of_a_script_count(script: str, found: dict[str, str]) -> None:
    assert from_script(script) == found


@pytest.mark.parametrize(
    ("script", "text"),
    [
        pytest.param(
            "python -m torch.distributed.run --nproc_per_node=1 --nnodes=2 "
            "--rdzv_id=ID1--rdzv_backend=c10d --rdzv_endpoint=IP1:2222 train.py",
            "--rdzv_id=ID1--rdzv_backend=c10d as one value: a space is missing before --rdzv_backend",
            id="pytorch/pytorch#76367",
        ),
        pytest.param(
            "torchrun --nnodes=2--nproc-per-node=8 train.py", "missing before --nproc-per-node", id="nnodes"
        ),
        pytest.param(
            "torchrun --nnodes=2 --rdzv-endpoint=job-0.pods:29400--rdzv-id=7 train.py",
            "--rdzv_endpoint=job-0.pods:29400--rdzv-id=7 as one value",
            id="endpoint",
        ),
        pytest.param(
            "torchrun --nnodes 2 --rdzv_id $RANDOM --rdzv_backend c10d train.py",
            "--rdzv_id=$RANDOM has a different value in each pod",
            id="pytorch/examples#1254",
        ),
        pytest.param(
            "torchrun --nnodes=2 --rdzv-id=$(uuidgen) train.py",
            "has a different value in each pod",
            id="axolotl-ai-cloud/axolotl#3879",
        ),
        pytest.param(
            'torchrun --nnodes=2 --rdzv_id="job-$(date +%s)" train.py',
            "has a different value in each pod",
            id="time",
        ),
        pytest.param(
            "torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$(hostname):29400 train.py",
            "--rdzv_endpoint=$(hostname):29400 refers to the pod itself in every pod",
            id="awslabs/ai-on-eks#240",
        ),
        pytest.param(
            'torchrun --nnodes=2 --node_rank=$RANK --master_addr "$HOSTNAME" train.py',
            "--master_addr=$HOSTNAME refers to the pod itself in every pod",
            id="host name",
        ),
        pytest.param(
            "torchrun --nnodes=2 --master-addr=$(hostname -i) train.py",
            "--master_addr=$(hostname -i) refers to the pod itself",
            id="address",
        ),
        pytest.param(
            "torchrun --nnodes=2 --master-addr=$(hostname -I | awk '{print $1}') train.py",
            "--master_addr=$(hostname -I ",
            id="first address",
        ),
    ],
)
def test_options_with_which_pods_disagree_are_named(script: str, text: str) -> None:
    found = _Reader(TEAM, from_script(script)).environment(None).findings
    assert (found[0].cause, found[0].status) == ("variables.torchrun", "failed"), found
    assert text in found[0].text


@pytest.mark.parametrize(
    ("options", "publishes", "compares"),
    [
        ("--rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:29400", True, True),
        ("--rdzv-backend c10d --rdzv-endpoint ${MASTER_ADDR}:29400", True, True),
        ("--rdzv_backend=c10d --rdzv_endpoint=job-0.pods", True, True),
        ('--rdzv_backend=c10d --rdzv_endpoint=job-0.pods:29400 --local-addr="$(hostname -i)"', False, True),
        ("--rdzv_backend=c10d --rdzv_endpoint=job-0.pods --rdzv_conf=is_host=$((RANK==0)),x=1", True, False),
        ("--rdzv_backend=c10d --rdzv_endpoint=job-0.pods --rdzv_conf=timeout=60,$MORE", True, False),
        ("--rdzv_backend=c10d --rdzv_endpoint=job-0.pods --rdzv_conf=timeout=$SECONDS", True, True),
        ("--rdzv_backend=c10d --rdzv_endpoint=$HEAD:29400", True, False),
        ("--rdzv_backend=etcd-v2 --rdzv_endpoint=etcd:2379", True, False),
        ("--rdzv_backend=c10d --rdzv_endpoint=job-0.pods $EXTRA", False, False),
        ('--rdzv_backend=c10d --rdzv_endpoint=job-0.pods "$@"', False, False),
        ("--rdzv_backend=$BACKEND --rdzv_endpoint=job-0.pods", False, False),
        ("--node_rank=1 --master_addr=job-0.pods", False, False),
    ],
)
def test_host_name_rules_depend_on_torchrun_options(options: str, publishes: bool, compares: bool) -> None:
    """Contract: an option that only the shell knows is not held against the job."""
    known = _Reader(TEAM, from_script(f"torchrun --nnodes=2 {options} train.py")).environment(None)
    found = published(known.torchrun), compared(known.torchrun, known.master_addr)
    assert found == (publishes, compares), known.torchrun


@pytest.mark.parametrize(
    "before", ["export MASTER_ADDR=$(hostname -i);", "[ $RANK != 0 ] || MASTER_ADDR=localhost\n"]
)
def test_master_addr_from_script_is_not_pod_s(before: str) -> None:
    """Contract: if the script sets MASTER_ADDR in the pod of rank 0, torchrun opens the store there."""
    options = "--rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:29400"
    known = _Reader(TEAM, from_script(f"{before} torchrun --nnodes=2 {options} train.py")).environment(None)
    assert not compared(known.torchrun, known.master_addr), known.torchrun


@pytest.mark.parametrize(
    "run_id",
    [
        *("7", "job-7", "$JOB_ID", "${RDZV_ID}", "$(date +%F)", "run--7", "a--b", "$RANDOMNESS_ID"),
        *("${HOSTNAME%-*}", "$(hostname | cut -d- -f1)", "`hostname -d`"),
    ],
)
def test_a_run_id_that_all_pods_share_is_accepted(run_id: str) -> None:
    """Contract: dashes are allowed in an id, and a variable of the pod template has one value."""
    script = f"torchrun --nnodes=2 --rdzv_id={run_id} --rdzv_backend=c10d train.py"
    assert _Reader(TEAM, from_script(script)).environment(None).ok


@pytest.mark.parametrize(
    "script",
    [
        "torchrun --nnodes=2 --rdzv_endpoint=$HOSTNAME_OF_RANK_0:29400 --rdzv_backend=c10d train.py",
        "torchrun --nnodes=2 --local-addr=$(hostname -i) --rdzv_endpoint=job-0.pods:29400 train.py",
        "torchrun --nnodes=2 --master_addr=${HOSTNAME%-*}-0.pods train.py",
        "torchrun --nnodes=2 --rdzv_endpoint=${HOSTNAME/%[0-9]/0}.pods:29400 --rdzv_backend=c10d train.py",
        "torchrun --nnodes=2 --master_addr=$(hostname | sed 's/[0-9]*$/0/').pods train.py",
        "torchrun --nnodes=2 --master_addr=`hostname -s | cut -d- -f1`-0.pods train.py",
        "torchrun --nnodes=2 --master_addr=$(hostname -d) train.py",
        "if [ $RANK = 0 ]; then torchrun --nnodes=2 --master_addr=$(hostname) train.py; "
        "else torchrun --nnodes=2 --node_rank=1 --master_addr=job-0.pods train.py; fi",
        "if [ $RANK = 0 ]; then torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=$HOSTNAME:1 a.py; "
        "else torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=job-0.pods:1 train.py; fi",
    ],
)
def test_an_address_of_rank_0_alone_is_accepted(script: str) -> None:
    known = _Reader(TEAM, from_script(script)).environment(None)
    assert known.ok, known.findings


@pytest.mark.parametrize(
    "options",
    ["--node_rank=0 --master_addr=$(hostname)", "--rdzv_backend=c10d --rdzv_endpoint=$HOSTNAME:29400"],
)
def test_rank_0_may_name_itself(options: str) -> None:
    """Contract: a master and its workers can be two replicated jobs of a JobSet, with a script each."""
    known = _Reader({**TEAM, "NODE_RANK": "0"}, from_script(f"torchrun --nnodes=2 {options} train.py"))
    assert known.environment(None).ok, known.wrong


@pytest.mark.parametrize("nodes", ["--nnodes=1", "--nnodes=1:1", "--standalone"])
def test_a_single_pod_can_have_any_run_id(nodes: str) -> None:
    script = f"torchrun {nodes} --nproc-per-node=8 --rdzv_id=$RANDOM train.py"
    known = _Reader({"NODE_RANK": "0"}, from_script(script)).environment(
        1 if nodes == "--standalone" else None
    )
    assert known.ok, known.findings


@pytest.mark.parametrize(
    ("options", "cause", "text"),
    [
        pytest.param(
            "--rdzv_backend=c10d --rdzv_endpoint=localhost:29500",
            "variables.master_addr",
            "MASTER_ADDR=localhost refers to this pod itself",
            id="mlc-ai/pith-train#91",
        ),
        pytest.param(
            "--node_rank=2 --master_addr=job-0.pods",
            "variables.node_rank",
            "there are 2 nodes",
            id="node rank",
        ),
    ],
)
def test_literal_option_counts_more_than_variable_that_is_right(options: str, cause: str, text: str) -> None:
    """Contract: torchrun does not read MASTER_ADDR and NODE_RANK if it has the option."""
    found = _Reader(TEAM, from_script(f"torchrun --nnodes=2 {options} train.py")).environment(None)
    assert [finding.cause for finding in found.findings] == [cause]
    assert text in found.findings[0].text


def test_a_port_as_an_address_is_refused() -> None:
    """kubeflow/pytorch-operator#313: the script takes MASTER_PORT for MASTER_ADDR."""
    found = validate_environment({**TEAM, "MASTER_ADDR": "23456"}).findings
    assert [finding.cause for finding in found] == ["variables.master_addr"]


def test_brackets_around_an_address_are_unknown() -> None:
    """Contract: torchrun's options accept [fd00::1]. TCPStore of PyTorch 2.6 looks it up as a name."""
    found = validate_environment({**TEAM, "MASTER_ADDR": "[fd00::1]"})
    assert (found.ok, found.master_addr) == (True, "fd00::1"), found
    assert [finding.status for finding in found.findings] == ["ok", "unknown"]
    assert "Use fd00::1" in found.findings[1].text


def container(proc: Path, of: dict[int, tuple[int, list[str]]]) -> Path:
    """/proc of a container: each process's parent and words."""
    for pid, (parent, words) in of.items():
        folder = proc / str(pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "ns/mnt").symlink_to("mnt:[1]")
        (folder / "cmdline").write_text("\0".join(words))
        (folder / "stat").write_text(f"{pid} (a b) S {parent} 1")
    return proc


@pytest.mark.parametrize(
    ("of", "nodes"),
    [
        ({1: (0, ["bash", "-c", GUIDE]), 9: (1, ["python3"])}, "4"),
        ({1: (0, ["sh"]), 5: (1, ["python3", "/bin/torchrun", "--nnodes=3", "t.py"]), 9: (0, ["x"])}, "3"),
        (
            {1: (0, ["sh", "-c", GUIDE]), 5: (1, ["torchrun", "--nnodes=2", "t.py"]), 9: (5, ["python3"])},
            "2",
        ),
        ({1: (0, ["sleep"]), 9: (1, ["python3"])}, None),
    ],
)
def test_the_options_of_the_containers_torchrun_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: dict[int, tuple[int, list[str]]], nodes: str | None
) -> None:
    """Contract: a parent counts first, then one that runs, then one that the first process will start."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert of_container(container(tmp_path, of), 9).get("NNODES") == nodes


def test_outside_a_pod_only_the_own_parents_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    other = {1: (0, ["init"]), 5: (1, ["torchrun", "--nnodes=3", "t.py"]), 9: (1, ["python3"])}
    assert of_container(container(tmp_path, other), 9) == {}


def test_variables_of_unseen_torchrun_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a script that netcheck cannot read may pass --local-addr."""
    for name, value in {**TEAM, "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "job-0.pods:29400"}.items():
        monkeypatch.setenv(name, value)
    assert validate_environment().torchrun == {}


def test_gpus_are_counted_by_their_device_files(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpus(tmp_path) == 2
    assert gpus(tmp_path / "absent") == 0


JOB = {"MASTER_ADDR": "job", "WORLD_SIZE": "32", "NODE_RANK": "1"}
"""The variables of ColossalAI's guide: nothing says how many nodes there are."""


@pytest.mark.parametrize(
    ("more", "options", "has", "nodes"),
    [
        ({}, {"NNODES": "4", "NPROC_PER_NODE": "8"}, 0, 4),
        ({}, {"NPROC_PER_NODE": "8"}, 0, 4),
        ({}, {}, 8, 4),
        ({"JOB_COMPLETIONS": "4"}, {}, 8, 4),
        ({"LOCAL_WORLD_SIZE": "8"}, {}, 0, 4),
        ({"NNODES": "2:8", "GROUP_WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "8"}, {}, 0, 4),
        ({"NNODES": "4"}, {"NNODES": "1:4", "NPROC_PER_NODE": "8"}, 0, 4),
        ({"NPROC_PER_NODE": "1"}, {"NPROC_PER_NODE": "8"}, 0, 4),
        ({}, {}, 5, None),
        ({}, {}, 0, None),
    ],
)
def test_what_is_known_says_how_many_nodes(
    more: dict[str, str], options: dict[str, str], has: int, nodes: int | None
) -> None:
    known = _Reader({**JOB, **more}, options, has).environment(None)
    assert (known.ok, known.nodes) == (True, nodes), known.findings


@pytest.mark.parametrize(
    ("more", "options", "has", "text"),
    [
        (
            {},
            {"NNODES": "2", "NPROC_PER_NODE": "1"},
            0,
            "2 nodes × 1 processes are expected by torchrun's op",
        ),
        (
            {"JOB_COMPLETIONS": "2"},
            {},
            8,
            "WORLD_SIZE=32 on 2 nodes means 16 processes per node, but this pod has 8",
        ),
        ({"JOB_COMPLETIONS": "3"}, {}, 0, "WORLD_SIZE=32 is not a multiple of 3 nodes"),
        ({"NNODES": "4", "JOB_COMPLETIONS": "2"}, {}, 0, "NNODES=4, but JOB_COMPLETIONS=2"),
        ({"NNODES": "4"}, {"NNODES": "2"}, 0, "NNODES=4, but torchrun --nnodes=2"),
        ({"PET_NNODES": "2", "NNODES": "4"}, {}, 0, "NNODES=4, but PET_NNODES=2"),
    ],
)
def test_a_contradiction_is_named(more: dict[str, str], options: dict[str, str], has: int, text: str) -> None:
    known = _Reader({**JOB, **more}, options, has).environment(None)
    assert not known.ok
    assert text in known.findings[0].text


def test_the_environment_of_this_process_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: without torchrun around it, nothing is added."""
    monkeypatch.setattr(os, "environ", dict(JOB))
    from harness.workers.netcheck import validate_environment

    assert validate_environment().nodes is None
