"""The commands that a reader of the documents types, in a sensible order, and their expected output.

tests/k8s/test_reader.py types them on a real cluster. tests/unit/docs/test_docs.py checks that no command is
left out. The tutorial is typed as it stands and is not in here.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Typed:
    """One command of the documents, word for word."""

    words: str
    says: str
    """A part of its output, on either stream."""
    code: int = 0
    stdin: str = ""
    stands_for: tuple[str, str] | None = None
    """A word of the document that stands for a name of the reader's, and that name."""
    nightly: bool = False
    """`make test` leaves it out: another test launches the same."""

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.words)[1:])


FILES = {"PATH/TO/job.yaml": "jobs/multinode.yaml", "job.yaml": "jobs/multinode.yaml"}
"""The reader's own job files. Here they hold what ours do."""
NAMED = ("runs/A", "runs/B")
"""Past bundles, the newest first: a PASS, and the tutorial's FAIL."""

WORKBENCH = (
    Typed("harness status", says="1 ready"),
    Typed("harness pause", says="paused"),
    Typed("harness run PATH/TO/job.yaml", says="was paused; starting its nodes"),
    Typed("harness resume", says="was not paused"),
    Typed("harness run job.yaml", says="✓ PASS", nightly=True),
    Typed("harness run jobs/multinode.yaml --wait 120", says="✓ PASS", nightly=True),
    Typed("harness logs 27a4 --rank 1 --follow", says="done: 60 points", stands_for=("27a4", "latest")),
    Typed(
        "harness shell 27a4 --rank 1", stdin="echo rank $RANK", says="rank 1", stands_for=("27a4", "latest")
    ),
    Typed("harness shell runs/latest --rank 1", stdin="exit 3", says="a copy of its pod", code=3),
    Typed(
        "harness shell runs/latest --rank 1 -- python3 -c 'import torch; print(torch.__version__)'", says="2."
    ),
    Typed("harness diff runs/A runs/B", says="unification.lost_points", code=1),
    Typed("harness doctor", says="ready"),
    Typed("harness doctor --fix", says="ready"),
    Typed("harness faults rank-killed", says="1 of 1 rows are right", nightly=True),
    Typed("harness faults --undo", says="all faults are undone"),
)
"""Commands on the cluster that the tutorial leaves."""

THEIRS = (
    Typed(
        "harness preflight jobs/gpu.yaml --kubeconfig ~/.kube/config --context my-cluster",
        says="no node has nvidia.com/gpu",
        code=2,
    ),
    Typed("harness preflight jobs/gpu.yaml --kubeconfig F --context C", says="nvidia.com/gpu", code=2),
    Typed("harness preflight --install --kubeconfig ~/.kube/config --context my-cluster", says="✓ tracker"),
    Typed(
        "harness run jobs/multinode.yaml --kubeconfig ~/.kube/config --context my-cluster",
        says="✓ PASS",
        nightly=True,
    ),
)
"""Commands on the same cluster, used as if it were the reader's own, by their kubeconfig and names."""

_TORCHRUN = "tests/k8s/test_torchrun_cli.py types it with its own names"
_PROGRAMS = "tests/k8s/test_programs.py runs the same function"
_STORED = "tests/k8s/test_training_transfer.py launches with the same options"
_BISECTED = "tests/k8s/test_version_bisect.py searches the commits of a checkout"
_REPLACED = "tests/k8s/test_versions.py launches with the same replacements"
_MATRIX = "tests/k8s/test_version_matrix.py launches a matrix of two launchers and two clients"
_RECORDED = "tests/k8s/test_recorder.py types it"
_ATTACH = "tests/integration/test_attach.py and tests/k8s/test_attach.py attach to such jobs"
_ATTACH_RECORDED = "tests/integration/test_attach_recorded.py and tests/k8s/test_attach.py attach like this"
ELSEWHERE = {
    "harness matrix --konduktor 'latest,>=0.1.0.dev20261025,<0.1.0.dev20261027' --pluto-ml locked,0.0.28 "
    "--newest 1": _MATRIX,
    "harness matrix --konduktor '>=0.1.0.dev20261001' --pluto-ml '>=0.0.26' --newest 8 --repeat 3": _MATRIX,
    "harness run jobs/multinode.yaml --replace pluto-ml=0.0.28": _REPLACED,
    "harness run jobs/multinode.yaml --replace pluto-ml=PATH/TO/checkout --keep-cluster": _REPLACED,
    "harness run jobs/multinode.yaml --replace konduktor=latest": _REPLACED,
    "harness run PATH/TO/pluto-e2e-harness/jobs/multinode.yaml --replace pluto-ml=.": _REPLACED,
    "harness run PATH/TO/pluto-e2e-harness/jobs/multinode.yaml --replace konduktor=.": _REPLACED,
    "harness attach --print-rbac -n team-a": _ATTACH,
    "harness attach job/train -n team-a --secret pluto": _ATTACH_RECORDED,
    "harness why job/train -n team-a": _ATTACH,
    "harness why job/losing -n team-a --secret pluto": _ATTACH_RECORDED,
    "harness why jobset/slow -n team-a": _ATTACH,
    "harness bisect konduktor --good 0.1.0.dev20261001": _BISECTED,
    "harness bisect pluto-ml --bad 0.0.15 --good 0.0.8 --keep-cluster": _BISECTED,
    "harness bisect pluto-ml --repo PATH/TO/checkout --good v0.0.28 --bad HEAD": _BISECTED,
    "harness up --logs": "tests/k8s/test_konduktor_logs.py starts the same",
    "harness konduktor logs JOB": "tests/k8s/test_known_commands.py types it",
    "harness torchrun submit --queue cpu --nodes 2 --name vit 'python train.py --epochs 10'": _TORCHRUN,
    "harness torchrun submit --queue cpu --nodes 2 --watch 'python train.py'": _TORCHRUN,
    "harness torchrun sync vit": _TORCHRUN,
    "harness torchrun list": _TORCHRUN,
    "harness torchrun status vit": _TORCHRUN,
    "harness torchrun logs vit --follow": _TORCHRUN,
    "harness torchrun suspend vit": _TORCHRUN,
    "harness torchrun resume vit": _TORCHRUN,
    "harness torchrun delete vit": _TORCHRUN,
    "harness programs --seconds 60": _PROGRAMS,
    "harness programs --seconds 600 --seed 1 --ledger docs/programs.json": _PROGRAMS,
    "harness programs --seed 1 --only 21": _PROGRAMS,
    "harness programs --ledger docs/programs.json --again": _PROGRAMS,
    "harness recorder install --namespace research": _RECORDED,
    "harness recorder status": _RECORDED,
    "harness recorder uninstall": _RECORDED,
    "harness tracker open": "tests/k8s/test_tracker_open.py opens it in a browser",
    "harness tracker key my-project": "tests/k8s/test_tracker_open.py types it with its own project",
    "harness tracker serve --key-file tracker.key": "tests/integration/tracker_server.py serves the same way",
    "harness netcheck --bandwidth --nodes 4": (
        "tests/integration/test_netcheck_bandwidth.py measures as its pods do, between network namespaces"
    ),
    "harness netcheck --print-module >k8s_distributed.py": "tests/k8s/guides/networking.toml types it",
    "harness netcheck": "tests/k8s/test_netcheck.py launches the same, healthy and with faults",
    "harness netcheck --pod FILE --env NCCL_DEBUG=INFO --kubeconfig F": (
        "tests/k8s/test_tainted_nodes.py launches it with both on tainted nodes"
    ),
    "harness netcheck --image python:3.9-slim --nodes 8": "it needs an image that the cluster can pull",
    "harness run jobs/multinode.yaml --netcheck": "tests/k8s/test_netcheck.py launches with it",
    "harness netcheck runs/latest --rank 1": "tests/k8s/test_netcheck_faults.py looks into a job that waits",
    "harness accept --nodes --kubeconfig F": "test_acceptance.py launches it on CPUs",
    "harness accept --ddp --replicas 64 --gpus-per-pod 8 --kubeconfig F": "it needs 512 GPUs",
    "harness accept --screen --replicas 64 --kubeconfig F": "it needs 64 nodes",
    "harness train --run llama --upload s3://runs/llama": _STORED,
    "harness train --run llama --resume-from s3://runs/llama --upload s3://runs/llama -- --epochs 5": _STORED,
    "harness accept --nodes --device cpu": "tests/k8s/test_acceptance.py launches the same",
    "harness accept --ddp --print-manifests --image IMAGE": "unit/launch/test_acceptance.py prints it",
    "harness train": "tests/k8s/test_training.py launches the same with fewer steps",
    "harness train --kind job --replicas 2 -- --epochs 5": "test_training.py launches an Indexed Job",
    "harness train --print-manifests": "tests/unit/launch/test_training.py prints it",
    "harness train --smoke": "tests/k8s/test_training.py launches it",
    "harness train --kind job --rdzv etcd": "tests/k8s/test_training.py launches it in the nightly set",
    "harness train --replicas 64 --gpus-per-pod 8 --storage-class CLASS --kubeconfig F": "it needs 512 GPUs",
    "harness mark-nodes runs/latest": "tests/k8s/test_node_marks.py marks the nodes of a cluster",
    "harness mark-nodes runs/latest --taint": "tests/k8s/test_node_marks.py marks the nodes of a cluster",
    "harness mark-nodes --undo": "tests/k8s/test_node_marks.py restores them",
    "harness run jobs/gpu.yaml --kubeconfig F --context C --tracker hosted": "needs GPUs and a hosted Pluto; "
    "tests/k8s/test_gpu.py and test_hosted.py do as much of it as can be done",
    "harness run examples/unchanged/job.yaml": "tests/k8s/test_unchanged.py launches it",
    "harness accepted runs/latest": "tests/unit/cli/test_acceptance_results.py types it, with each verdict",
    "harness accepted runs/latest --json": "tests/unit/cli/test_acceptance_results.py types it",
    "harness accepted runs/latest --calibrate runs/limits.toml": (
        "tests/unit/cli/test_acceptance_results.py types it"
    ),
    "harness faults rank-killed tracker": "tests/k8s/test_faults.py injects them",
    "harness faults --random 20 --seed 7": "tests/k8s/test_random_faults.py injects two",
    "harness faults --random 20 --seed 40 --programs --programs-ledger docs/programs.json": (
        "tests/k8s/test_random_faults.py injects one with a program"
    ),
}
"""Commands that another test types, or that nobody can type, and why."""
