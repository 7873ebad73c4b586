"""Run konduktor's own commands on the harness's cluster."""

import os
from typing import Annotated

import typer

from harness.cli import options
from harness.cli.options import progress
from harness.cli.view.lazy import load, run_context

SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""Settings that make typer pass all options after the first argument to konduktor."""


def konduktor(
    arguments: Annotated[list[str], typer.Argument(help="konduktor's command, e.g. logs JOB -N 1")],
    cluster_name: options.ClusterName = None,
    namespace: Annotated[
        str | None, typer.Option(help="the jobs' namespace (default: the newest launch's)")
    ] = None,
    quiet: options.Quiet = False,
) -> int:
    """Run konduktor on the harness's cluster.

    This uses the konduktor version with which the harness launches jobs.
    `konduktor logs JOB` requires a cluster started with `harness up --logs`.
    Options of this command must precede konduktor's command. The exit code is
    konduktor's.
    """
    from harness.launch.konduktor.interactive import command
    from harness.provision.kind.cluster import KindCluster

    settings = load(cluster_name=cluster_name)
    program, environment = command(KindCluster(settings), namespace, run_context(settings, progress(quiet)))
    os.execve(program, [program.name, *arguments], environment)  # noqa: S606
