"""`harness netcheck`: check which ranks can reach each other, in a new launch or in a running job."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli import options
from harness.cli.launch_options import NOTHING, Launch, launching
from harness.cli.options import dump, progress
from harness.cli.view.lazy import load, opened, run_context
from harness.core.errors import UsageError


@launching
def netcheck(
    bundle: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="check the job of this bundle while it runs")
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            min=0, help="with RUN: show the table for this rank (default: the lowest rank that has one)"
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=256, help="number of pods, one for each rank (default: 4)")
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(help="any image with a shell and Python 3.9 or later (default: the worker image)"),
    ] = None,
    bandwidth: Annotated[
        bool,
        typer.Option(
            "--bandwidth",
            help="also measure the bandwidth (MB/s) and latency of each pair of pods, which takes up to 30 "
            "s longer",
        ),
    ] = False,
    pod: options.Pod = None,
    env: options.Env = None,
    print_module: Annotated[
        bool,
        typer.Option("--print-module", help="print netcheck as a single Python file, and exit"),
    ] = False,
    launch: Launch = NOTHING,
) -> int:
    """Check from inside the pods whether a job's ranks can reach each other.

    Without RUN, the command launches an Indexed Job with a headless Service. Each
    pod connects to every other pod. The command prints the matrix of all pairs and,
    if a pair fails, the cause. The exit code, bundle and report are like those of
    `harness run`. With --bandwidth, a link or node that is five times slower than
    the others is also a failure.

    With RUN, netcheck runs in all running pods of that launch at the same time. The
    job continues, and no files remain in the pods. Pods that are not running are
    listed with their state. The exit code is 0 if all pairs passed, 1 if the cause
    of a failure was found, and 2 if a step could not be checked.

    --print-module prints a Python file that can be copied into an image under any
    name. Its functions can be imported. Running the file runs netcheck.
    """
    if print_module:
        from harness.launch.mounts.netcheck_module import single_file

        print(single_file(), end="")
        return 0
    if bundle is not None:
        if any(option is not None for option in (nodes, image, pod)) or env or bandwidth:
            raise UsageError(
                "--nodes, --image, --bandwidth, --pod and --env apply only to a new launch, not to RUN"
            )
        return _inside(bundle, rank, launch)
    if rank is not None:
        raise UsageError(
            "--rank requires RUN, the bundle of a running job", hint="harness netcheck runs/latest"
        )
    from harness.launch.workloads.netcheck_job import job
    from harness.launch.workloads.pod_options import pod_options

    settings = launch.settings(pod=pod)
    workload = pod_options(settings, env).applied(job(nodes or 4, image, bandwidth))
    return launch.show(launch.run(workload, settings))


def _inside(bundle: Path, rank: int | None, launch: Launch) -> int:
    from harness.cli import netcheck_running_job as inside
    from harness.workers.netcheck import diagnosis_text as table

    settings = load(runs_dir=launch.runs_dir)
    context = run_context(settings, progress(launch.quiet))
    outcome = inside.run_netcheck(opened(bundle, settings.runs_dir), context)
    rank = min(outcome.results, default=0) if rank is None else rank
    diagnosis = outcome.diagnosis(rank)
    dump(outcome.as_dict(rank)) if launch.as_json else print(table.text(diagnosis, sys.stdout.isatty()))
    return {"ok": 0, "failed": 1, "unknown": 2}[diagnosis.verdict]
