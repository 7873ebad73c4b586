"""`harness accept`: run the acceptance tests on a cluster, and give each node a verdict."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Literal

import typer

from harness.cli import options
from harness.cli.acceptance_results import fleet_of, mark_nodes, write_limits
from harness.cli.launch_options import NOTHING, Launch, launching
from harness.core.errors import UsageError

REPLICAS, GPUS = 64, 8
"""The default number of pods, and the default number of GPUs per pod. Both defaults come from the GPU
acceptance guide (docs/guides.md)."""
FULL_SECONDS = 3600.0
"""The maximum number of seconds from launch to verdict with --full."""


@launching
def accept(
    nodes: Annotated[
        bool, typer.Option("--nodes", help="test each node on its own, with one pod per node")
    ] = False,
    ddp: Annotated[bool, typer.Option("--ddp", help="test the collectives across many pods")] = False,
    screen: Annotated[
        bool, typer.Option("--screen", help="search many pods for bad nodes, links and boundaries")
    ] = False,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help=f"number of pods, with --ddp and --screen (default: {REPLICAS})"),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus-per-pod",
            min=1,
            max=64,
            help=f"GPUs per pod (default: all of the node's GPUs with --nodes, otherwise {GPUS})",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(help="auto, cuda or cpu; with cpu, the tests neither use nor accept GPUs"),
    ] = "auto",
    full: Annotated[
        bool,
        typer.Option(
            "--full/--quick",
            help="test all sizes, with a default --wait of 3600; --quick runs about one minute of tests",
        ),
    ] = False,
    selector: Annotated[
        list[str] | None,
        typer.Option(help="test only nodes with this label, given as LABEL=VALUE; may be repeated"),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="image with PyTorch, and CUDA to test GPUs (default with --device cpu: the worker image)"
        ),
    ] = None,
    limits: Annotated[
        Path | None,
        typer.Option(help="file with your own limits, which override those in docs/acceptance.md"),
    ] = None,
    busbw_limit: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="with --screen: minimum bus bandwidth of each group, in GB/s (default: compare the groups)",
        ),
    ] = None,
    print_manifests: options.PrintManifests = False,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="compute limits from this run, whose nodes must be good, and write them to this file"
        ),
    ] = None,
    label: Annotated[
        bool,
        typer.Option("--label", help="label each node with its verdict (mark-nodes --undo reverts this)"),
    ] = False,
    taint: Annotated[
        bool,
        typer.Option(
            "--taint", help="label all nodes, and taint those that are proved to be the cause of a failure"
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="with --taint: taint even if most nodes fail in the same way")
    ] = False,
    pod: options.Pod = None,
    env: options.Env = None,
    launch: Launch = NOTHING,
) -> int:
    """Test a cluster's nodes: their hardware, whether they compute correctly, and their speed.

    --nodes runs one pod on each node that has GPUs, or on each node that matches
    --selector. --ddp runs torchrun in a StatefulSet's pods and tests every
    collective. --screen also runs these pods, and tests different groups of them
    until the bad nodes or links are found.

    Each measurement is compared with a limit. The output shows where the limit comes
    from. A measurement without a limit is UNKNOWN. The exit code, bundle and report
    are like those of `harness run`. See docs/acceptance.md.
    """
    from harness.launch.labels import LOCAL_IMAGE
    from harness.launch.workloads import acceptance
    from harness.launch.workloads.pod_options import pod_options

    if [nodes, ddp, screen].count(True) != 1:
        raise UsageError(
            "exactly one of --nodes, --ddp or --screen is required",
            hint="for example: harness accept --nodes --device cpu",
        )
    if replicas is not None and nodes:
        raise UsageError("--replicas applies only to --ddp and --screen. --nodes runs one pod on each node.")
    if busbw_limit is not None and not screen:
        raise UsageError("--busbw-limit applies only to --screen. With --nodes and --ddp, use --limits FILE.")
    if limits is not None and screen:
        raise UsageError("--limits applies only to --nodes and --ddp. With --screen, use --busbw-limit.")
    if force and not taint:
        raise UsageError("--force applies only to --taint. Labels do not need --force.")
    spec = acceptance.AcceptanceSpec(
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
            "expected an image whose PyTorch has CUDA, but the worker image that is built here has no CUDA",
            hint="use --image IMAGE or HARNESS_WORKER_IMAGE; --device cpu tests nodes without their GPUs",
        )
    of_many = acceptance.ddp if ddp else acceptance.screen
    plain = acceptance.nodes(spec) if nodes else of_many(spec, replicas or REPLICAS)
    workload = pod_options(settings, env).applied(plain)
    if print_manifests:
        print(acceptance.manifests(workload, settings), end="")
        return 0
    if (label or taint) and settings.kubeconfig is None and not settings.keep_cluster:
        raise UsageError(
            "--label and --taint need a cluster that stays after the run",
            hint="add --kubeconfig or --keep-cluster",
        )
    outcome = launch.run(workload, settings)
    code = launch.show(outcome)
    if calibrate is not None:
        from harness.evidence.io.reader import Bundle

        bundle = Bundle.open(outcome.bundle)
        write_limits(fleet_of(bundle), bundle, calibrate)
    if (label or taint) and outcome.verdict.cause == "image.no_cuda":
        print("no node is marked, because the image cannot test a GPU", file=sys.stderr)
    elif label or taint:
        # The output goes to stderr, because stdout must contain only the verdict.
        with redirect_stdout(sys.stderr):
            mark_nodes(
                outcome.bundle, taint, False, force, settings.cluster_name, launch.kubeconfig, launch.context
            )
    return code


def _device(word: str) -> Literal["auto", "cpu", "cuda"]:
    if word not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device: expected auto, cpu or cuda, found {word!r}")
    return word  # type: ignore[return-value] # mypy does not narrow a str by `in`


def _selector(pairs: list[str]) -> tuple[tuple[str, str], ...]:
    """Return the values of --selector as (label, value) pairs.

    Raises UsageError if a value is not LABEL=VALUE.
    """
    for pair in pairs:
        if not pair.partition("=")[0] or "=" not in pair:
            raise UsageError(f"--selector: expected LABEL=VALUE, found {pair!r}")
    return tuple((pair.partition("=")[0], pair.partition("=")[2]) for pair in pairs)
