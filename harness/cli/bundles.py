"""`harness runs` and `harness diff`: list, prune and compare past bundles, without a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli.options import Json, RunsDir, dump
from harness.cli.view.lazy import load, opened
from harness.core.errors import UsageError


def runs(
    runs_dir: RunsDir = None,
    last: Annotated[int | None, typer.Option(min=1, help="list only this many of the newest bundles")] = None,
    keep_runs: Annotated[
        str | None,
        typer.Option(
            "--prune",
            metavar="failed|last:N",
            help="remove all bundles of passed launches (failed), or all but the newest N of them (last:N)",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """List past bundles, newest last, including damaged, truncated and unfinished bundles.

    --prune removes bundles, and prints their names and sizes. It never removes a
    bundle that did not pass, or the newest bundle (runs/latest).
    """
    runs_dir = load(runs_dir=runs_dir).runs_dir
    if keep_runs is not None:
        if last is not None:
            raise UsageError("--prune and --last cannot be combined", hint=f"--prune last:{last}")
        return _prune(runs_dir, keep_runs, as_json)
    from harness.evidence.io import runs_folder
    from harness.report.terminal import runs as listing
    from harness.report.terminal.console import wide

    bundles = runs_folder.past(runs_dir)
    rows = [listing.row(each) for each in bundles[-(last or len(bundles)) :]]
    if as_json:
        dump([each.model_dump() for each in rows])
    elif rows:
        listing.show(rows, wide())
    return 0


def diff(
    a: Annotated[Path, typer.Argument(help="a bundle folder, or a part of its name")],
    b: Annotated[Path, typer.Argument(help="the bundle to compare with")],
    any_values: Annotated[
        bool,
        typer.Option(
            "--any-values", help="ignore differences in logged values, for jobs that are not deterministic"
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Judge two bundles again and show their differences.

    The exit code is 0 if the verdict, causes, checks, versions and points are
    equal, 1 if any of them differ, and 64 for bad usage. Points differ if the
    logged values differ, if a rank logged a different number of points for a
    metric, or if the tracker's run contains a different number of points.

    Differences in names, times and events are shown, but do not affect the exit
    code. A stage's duration is marked if it differs by more than 1 s and by more
    than a factor of 1.25. The harness's own worker logs its
    launch's nonce, which always differs and is ignored.
    """
    from harness.report.diff.compare import compare
    from harness.report.diff.facts import facts
    from harness.report.diff.text import render
    from harness.report.terminal.console import wide

    runs_dir = load().runs_dir
    sides = [facts(opened(path, runs_dir), str(path)) for path in (a, b)]
    difference = compare(*sides, any_values=any_values)
    if as_json:
        dump(difference.model_dump(mode="json"))
    else:
        render(difference, wide())
    return 1 if difference.matters else 0


def _prune(runs_dir: Path, keep_runs: str, as_json: bool) -> int:
    from harness.evidence.io.runs_folder import Keep, prune
    from harness.report.amounts import amount

    keep = Keep.parse(keep_runs)
    if keep.last is None:
        raise UsageError("--prune all removes nothing", hint="use --prune failed or --prune last:N")
    removed = prune(runs_dir, keep)
    total = sum(each.bytes for each in removed)
    if as_json:
        bundles = [{"bundle": str(each.bundle), "bytes": each.bytes} for each in removed]
        dump({"keep": keep_runs, "removed": bundles, "bytes": total})
    else:
        for each in removed:
            print(f"removed {each.bundle}  {amount(each.bytes)}")
        print(f"{len(removed)} bundles removed, {total} bytes ({amount(total)})")
    return 0
