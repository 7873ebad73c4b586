"""`harness netcheck`: launch netcheck alone, and show which ranks reach each other."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.cli import options
from harness.cli.live import watching
from harness.cli.verdict import show
from harness.context import RunContext
from harness.settings import load


def netcheck(
    nodes: Annotated[int, typer.Option(min=1, max=256, help="how many pods, one for each rank")] = 4,
    image: Annotated[
        str | None, typer.Option(help="any image with a shell and Python 3.9 or later (the worker image)")
    ] = None,
    cluster_name: options.ClusterName = None,
    workers: options.Workers = None,
    kubernetes: options.Kubernetes = None,
    images: options.Images = None,
    runs_dir: options.RunsDir = None,
    keep_runs: options.KeepRuns = None,
    keep_cluster: options.Keep = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    wait: Annotated[float | None, typer.Option(help="seconds from launch to verdict at most (600)")] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Check on the cluster, from inside pods, whether the ranks of a job can meet.

    Launches an Indexed Job with a headless Service. Each pod tries every other
    one. Prints the matrix of all pairs, and the cause when a pair fails. Exit
    code, bundle and report are those of `harness run`.
    """
    from harness import run as running
    from harness.launch.netcheck_job import job

    settings = load(
        cluster_name=cluster_name,
        workers=workers,
        kubernetes=kubernetes,
        images=images,
        runs_dir=runs_dir,
        keep_runs=keep_runs,
        keep_cluster=keep_cluster,
        wait_seconds=wait,
        kubeconfig=kubeconfig,
        context=context,
    )
    with watching(quiet) as (tell, listener):
        outcome = running.run(job(nodes, image), RunContext(settings=settings, progress=tell), listener)
    return show(outcome.verdict, outcome.bundle, as_json)
