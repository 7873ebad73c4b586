"""`harness accept`: launch the acceptance tests of a cluster, and say of each node what it is worth."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Literal

import typer

from harness.cli import options
from harness.cli.acceptance import fleet_of, mark_nodes, write_limits
from harness.cli.launch_options import NOTHING, Launch, launching
from harness.core.errors import UsageError

REPLICAS, GPUS = 64, 8
"""Pods, and GPUs of each, where nobody says (the guide's own numbers)."""
FULL_SECONDS = 3600.0
"""Seconds from launch to verdict at most, of --full."""


@launching
def accept(
    nodes: Annotated[bool, typer.Option("--nodes", help="test each node by itself, one pod on each")] = False,
    ddp: Annotated[bool, typer.Option("--ddp", help="test the collectives over many pods")] = False,
    screen: Annotated[
        bool, typer.Option("--screen", help="search for the bad nodes, links and boundaries among many pods")
    ] = False,
    replicas: Annotated[
        int | None, typer.Option(min=1, max=4096, help=f"with --ddp and --screen: pods ({REPLICAS})")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus-per-pod", min=1, max=64, help=f"GPUs of each pod (all of a node's; else {GPUS})"
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto, cuda, or cpu: tests nodes that have no GPU, and accepts none")
    ] = "auto",
    full: Annotated[
        bool, typer.Option("--full/--quick", help="all sizes (--wait is 3600 then), or a minute's worth")
    ] = False,
    selector: Annotated[
        list[str] | None, typer.Option(help="LABEL=VALUE of the nodes to test; may be repeated")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(help="one with PyTorch, for GPUs with CUDA (with --device cpu: the worker image)"),
    ] = None,
    limits: Annotated[
        Path | None, typer.Option(help="limits of your own, before those of docs/acceptance.md")
    ] = None,
    busbw_limit: Annotated[
        float | None,
        typer.Option(min=0, help="with --screen: GB/s that every group must give (groups are compared)"),
    ] = None,
    print_manifests: Annotated[
        bool, typer.Option("--print-manifests", help="print what `kubectl apply -f -` takes, launch nothing")
    ] = False,
    calibrate: Annotated[
        Path | None, typer.Option(help="write limits there, from these nodes, which are known to be good")
    ] = None,
    label: Annotated[
        bool, typer.Option("--label", help="label each node with its verdict (mark-nodes --undo restores)")
    ] = False,
    taint: Annotated[
        bool, typer.Option("--taint", help="label, and keep new pods off nodes whose own fault is proved")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="with --taint: also where most nodes fail in the same way")
    ] = False,
    pod: options.Pod = None,
    env: options.Env = None,
    launch: Launch = NOTHING,
) -> int:
    """Accept a cluster's nodes: what they have, whether they compute right, and how fast.

    --nodes runs one pod on each node that has GPUs (or the labels of --selector),
    once. --ddp runs torchrun over a StatefulSet, and tries every collective.
    --screen tests groups of its pods until the bad ones are found. Each figure is
    judged by a limit with a source; without one it is UNKNOWN. Exit code, bundle
    and report are those of `harness run`. See docs/acceptance.md.
    """
    from harness.launch.names import LOCAL_IMAGE
    from harness.launch.workloads import acceptance
    from harness.launch.workloads.pod_options import pod_options

    if [nodes, ddp, screen].count(True) != 1:
        raise UsageError(
            "one of --nodes, --ddp and --screen is expected", hint="harness accept --nodes --device cpu"
        )
    if replicas is not None and nodes:
        raise UsageError("--replicas is for --ddp and --screen: --nodes has one pod on each node")
    if busbw_limit is not None and not screen:
        raise UsageError("--busbw-limit is for --screen: the others have --limits FILE")
    if limits is not None and screen:
        raise UsageError("--limits is for --nodes and --ddp: a search has --busbw-limit")
    if force and not taint:
        raise UsageError("--force is for --taint: labels say the verdict of each node anyway")
    asked = acceptance.Asked(
        device=_device(device),
        full=full,
        image=image or LOCAL_IMAGE,
        limits=limits,
        gpus=gpus or (None if nodes or device == "cpu" else GPUS),
        selector=_selector(selector or []),
        busbw_limit=busbw_limit,
    )
    settings = launch.settings(pod=pod, wait_seconds=launch.wait or (FULL_SECONDS if full else None))
    if device != "cpu" and image is None and settings.worker_image is None:
        raise UsageError(
            "an image whose PyTorch has CUDA is expected: the worker image that is built here has none",
            hint="--image IMAGE, or HARNESS_WORKER_IMAGE; --device cpu tests nodes without their GPUs",
        )
    of_many = acceptance.ddp if ddp else acceptance.screen
    made = acceptance.nodes(asked) if nodes else of_many(asked, replicas or REPLICAS)
    workload = pod_options(settings, env).applied(made)
    if print_manifests:
        print(acceptance.manifests(workload, settings), end="")
        return 0
    if (label or taint) and settings.kubeconfig is None and not settings.keep_cluster:
        raise UsageError(
            "--label and --taint are for a cluster that stays", hint="--kubeconfig, or --keep-cluster"
        )
    outcome = launch.run(workload, settings)
    code = launch.show(outcome)
    if calibrate is not None:
        from harness.evidence.io.reader import Bundle

        bundle = Bundle.open(outcome.bundle)
        write_limits(fleet_of(bundle), bundle, calibrate)
    if (label or taint) and outcome.verdict.cause == "image.no_cuda":
        print("no node is marked, because the image can judge none", file=sys.stderr)
    elif label or taint:
        with redirect_stdout(sys.stderr):  # stdout has the verdict
            mark_nodes(
                outcome.bundle, taint, False, force, settings.cluster_name, launch.kubeconfig, launch.context
            )
    return code


def _device(word: str) -> Literal["auto", "cpu", "cuda"]:
    if word not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device: auto, cpu or cuda is expected; seen {word!r}")
    return word  # type: ignore[return-value] # mypy does not narrow a str by `in`


def _selector(pairs: list[str]) -> tuple[tuple[str, str], ...]:
    """Return labels and values. Raises UsageError."""
    for pair in pairs:
        if not pair.partition("=")[0] or "=" not in pair:
            raise UsageError(f"--selector: LABEL=VALUE is expected; seen {pair!r}")
    return tuple((pair.partition("=")[0], pair.partition("=")[2]) for pair in pairs)
