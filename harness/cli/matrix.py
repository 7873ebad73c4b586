"""`harness matrix`: launch a job with every combination of versions."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import options
from harness.cli.options import dump
from harness.cli.view.lazy import console, load, run_context

SPECS = "comma-separated SPECs, as for --replace; may be repeated"


def matrix(
    file: Annotated[
        Path | None, typer.Argument(help="a YAML file with versions, rules and expected failures")
    ] = None,
    job: Annotated[Path | None, typer.Option(help="the job to launch (default: jobs/multinode.yaml)")] = None,
    konduktor: Annotated[
        list[str] | None, typer.Option(metavar="SPEC,…", help=f"versions of konduktor: {SPECS}")
    ] = None,
    pluto_ml: Annotated[
        list[str] | None, typer.Option("--pluto-ml", metavar="SPEC,…", help="versions of the Pluto client")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SPEC,…", help="versions of any package that --replace accepts"),
    ] = None,
    newest: Annotated[
        int | None, typer.Option(min=1, help="use only the newest N versions in each range")
    ] = None,
    each: Annotated[
        bool | None,
        typer.Option(
            "--each", help="replace one package at a time; the other packages keep their locked versions"
        ),
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(
            min=1, help="maximum number of launches for a cell with an unexpected result (default: 1)"
        ),
    ] = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="maximum number of concurrent launches")] = None,
    continued: Annotated[
        Path | None,
        typer.Option(
            "--continue", metavar="FOLDER", help="continue the matrix whose results are in this folder"
        ),
    ] = None,
    cluster_name: options.ClusterName = None,
    workers: options.Workers = None,
    kubernetes: options.Kubernetes = None,
    images: options.Images = None,
    runs_dir: options.RunsDir = None,
    keep_cluster: options.Keep = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    wait: options.Wait = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Launch a job with every combination of versions of konduktor, the Pluto client and other packages.

    Launches with the same versions of JobSet and Kueue share one cluster. A SPEC
    is a version, a range, latest, locked (the version that the harness pins), a
    wheel, an sdist, a folder with a checkout, or git+file:///PATH@REF. For JobSet
    and Kueue, a SPEC is a version or locked. A range stands for all versions in it.
    Comparisons separated by a comma form one range: `latest,>=1,<2` contains two
    SPECs.

    If a cell's packages cannot be installed, that is the cell's result, and the
    other cells are still launched. The exit code is that of the worst unexpected
    result: first 1 for FAIL, then 2 for UNKNOWN, then 64 for packages that cannot
    be installed. Without an unexpected result, the exit code is 0. Flaky cells do
    not affect the exit code.

    The results are RUNS_DIR/matrix-…/matrix.html, matrix.json, matrix.md and ctrf.json.
    """
    from harness.cli.view.matrix import watching
    from harness.versions import matrix_commands, matrix_text
    from harness.versions.matrix_definition import read

    specs = {"konduktor": konduktor or [], "pluto-ml": pluto_ml or []}
    definition = read(
        file, vary or [], specs, job=job, newest=newest, each=each, repeat=repeat, parallel=parallel
    )
    settings = load(
        cluster_name=cluster_name,
        workers=workers,
        kubernetes=kubernetes,
        images=images,
        runs_dir=runs_dir,
        keep_cluster=keep_cluster,
        kubeconfig=kubeconfig,
        context=context,
        wait_seconds=wait,
    )
    say, view = watching(quiet)
    document = matrix_commands.matrix(definition, continued, run_context(settings, say), view)
    dump(document.model_dump(mode="json")) if as_json else matrix_text.show(document, console())
    return document.exit_code
