"""`harness bisect`: find the version of a package, or the commit, that broke a launch."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.launch_options import NOTHING, Launch, launching
from harness.cli.options import dump, progress
from harness.cli.view.lazy import run_context


@launching
def bisect(
    name: Annotated[str, typer.Argument(help="konduktor, pluto-ml, or another package in the worker image")],
    good: Annotated[
        str | None,
        typer.Option(help="a version that works (default: search older versions for one)"),
    ] = None,
    bad: Annotated[
        str | None, typer.Option(help="a version that fails (default: latest; with --repo: HEAD)")
    ] = None,
    repo: Annotated[
        Path | None,
        typer.Option(
            help="search the commits of this Git checkout; --good and --bad are refs", metavar="PATH"
        ),
    ] = None,
    job: Annotated[Path, typer.Option(help="the job to launch")] = Path("jobs/multinode.yaml"),
    cause: Annotated[
        str | None,
        typer.Option(
            help="the cause that marks a version as bad, or any (default: the cause found with the bad "
            "version)",
            metavar="CAUSE",
        ),
    ] = None,
    max_error: Annotated[
        float,
        typer.Option(
            min=1e-6,
            max=1,
            help="maximum probability of a wrong result; with 1, launches are never repeated",
        ),
    ] = 0.01,
    launch: Launch = NOTHING,
) -> int:
    """Find the first version of a package with which a launch fails.

    The good and the bad version are verified first. A binary search then launches
    one version after another. A version is good if its launch passes, and bad if it
    fails in the same way as the bad version. A version that cannot be installed or
    fails in another way is skipped. The last good and the first bad version are
    launched again until the result is certain. If the good version is newer than the
    bad one, the search finds the version that fixed the failure.

    The same command continues an interrupted search. The exit code is 0 if one
    version was found, 2 if the result is not certain, and 64 for bad usage.
    """
    settings = launch.settings()
    from harness.versions import bisect_commands

    context = run_context(settings, progress(launch.quiet))
    result = bisect_commands.bisect(name, good, bad, repo, job, cause, max_error, context)
    if launch.as_json:
        dump(result.model_dump(mode="json"))
    else:
        from harness.report.terminal.console import wide
        from harness.versions.bisect_report import show

        show(result, wide())
    return 0 if result.certain else 2
