"""`harness netcheck`: launch netcheck alone, or look from inside a running job, and show who reaches whom."""

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
        Path | None, typer.Argument(metavar="RUN", help="look inside this running job: its bundle")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="with RUN: whose table (the lowest that gave one)")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=256, help="how many pods, one for each rank (4)")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="any image with a shell and Python 3.9 or later (the worker image)")
    ] = None,
    bandwidth: Annotated[
        bool, typer.Option("--bandwidth", help="measure MB/s and latency of each pair, in 30 s more at most")
    ] = False,
    pod: options.Pod = None,
    env: options.Env = None,
    print_module: Annotated[
        bool, typer.Option("--print-module", help="print netcheck as one Python file, and launch nothing")
    ] = False,
    launch: Launch = NOTHING,
) -> int:
    """Check on the cluster, from inside pods, whether the ranks of a job can meet.

    Launches an Indexed Job with a headless Service. Each pod tries every other
    one. Prints the matrix of all pairs, and the cause when a pair fails. Exit
    code, bundle and report are those of `harness run`. With --bandwidth, a link
    or a node that is five times slower than the others is a cause.

    With RUN, netcheck is brought into every running pod of that launch, and
    started in all at the same time. The job goes on, and no file is left there.
    Pods that do not run are named with their state. Exit code 0: all pairs are
    fine. 1: a cause is named. 2: something could not be seen.

    --print-module prints one Python file to copy into an image, under any name:
    its functions can be imported, and it runs as netcheck does.
    """
    if print_module:
        from harness.launch.mounts.netcheck_module import single_file

        print(single_file(), end="")
        return 0
    if bundle is not None:
        if any(given is not None for given in (nodes, image, pod)) or env or bandwidth:
            wrong = (
                "--nodes, --image, --bandwidth, --pod and --env are for a launch, and RUN has been launched"
            )
            raise UsageError(wrong)
        return _inside(bundle, rank, launch)
    if rank is not None:
        raise UsageError("--rank looks inside a running job: name it", hint="harness netcheck runs/latest")
    from harness.launch.workloads.netcheck_job import job
    from harness.launch.workloads.pod_options import pod_options

    settings = launch.settings(pod=pod)
    workload = pod_options(settings, env).applied(job(nodes or 4, image, bandwidth))
    return launch.show(launch.run(workload, settings))


def _inside(bundle: Path, rank: int | None, launch: Launch) -> int:
    from harness.cli import inside
    from harness.workers.netcheck import show as table

    settings = load(runs_dir=launch.runs_dir)
    context = run_context(settings, progress(launch.quiet))
    seen = inside.look(opened(bundle, settings.runs_dir), context)
    rank = min(seen.results, default=0) if rank is None else rank
    found = seen.diagnosis(rank)
    dump(seen.as_dict(rank)) if launch.as_json else print(table.text(found, sys.stdout.isatty()))
    return {"ok": 0, "failed": 1, "unknown": 2}[found.verdict]
