"""`harness faults`, `harness programs` and `harness soak`: the commands that test the harness itself."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import options
from harness.cli.options import KEEP_RUNS, dump, progress
from harness.cli.view.lazy import console, load, run_context
from harness.core.errors import UsageError


def faults(
    names: Annotated[
        list[str] | None, typer.Argument(help="faults or fault targets, by name (default: all)")
    ] = None,
    cluster_name: options.ClusterName = None,
    runs_dir: options.RunsDir = None,
    keep_cluster: options.Keep = None,
    parallel: Annotated[int, typer.Option(min=1, help="maximum number of concurrent launches")] = 2,
    job: Annotated[Path, typer.Option(help="the job into which faults are injected")] = Path(
        "jobs/multinode.yaml"
    ),
    table: Annotated[Path | None, typer.Option(help="write the table of docs/faults.md to this file")] = None,
    records: Annotated[
        Path | None, typer.Option("--record", help="write small copies of the bundles to this folder")
    ] = None,
    ledger: Annotated[
        list[Path] | None,
        typer.Option(help="report on the launches recorded in these ledgers, without injecting faults"),
    ] = None,
    only_list: Annotated[
        bool, typer.Option("--list", help="list the faults, each with its expected verdict")
    ] = False,
    random: Annotated[
        int,
        typer.Option(
            min=0,
            help="inject N randomly generated faults instead of the faults in the catalogue",
            metavar="N",
        ),
    ] = 0,
    generated: Annotated[
        bool,
        typer.Option("--programs", help="with --random: run generated training programs in the ranks"),
    ] = False,
    programs_ledger: Annotated[
        Path | None, typer.Option(help="with --random and --programs: append the results to this ledger")
    ] = None,
    seed: Annotated[int, typer.Option(help="with --random: the seed from which faults are generated")] = 0,
    skip: Annotated[int, typer.Option(min=0, help="with --random: skip this many faults")] = 0,
    shard: Annotated[
        str | None,
        typer.Option(
            help="split the faults into N parts of about equal duration, and inject only part I",
            metavar="I/N",
        ),
    ] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="undo the faults that a killed run left in place, and exit")
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Inject faults into real launches, undo them, and compare each verdict with the expected one.

    The cause and the ranks in each verdict are compared, too. With --random, the
    faults are generated from a grammar. An oracle then judges whether each verdict
    is right, by comparing the tracker's database with files that the ranks wrote.
    """
    from harness.faults import commands as injecting

    settings = load(cluster_name=cluster_name, runs_dir=runs_dir, keep_cluster=keep_cluster)
    context = run_context(settings, progress(quiet))
    if random and names:
        raise UsageError("--random cannot be combined with names of faults")
    if random and shard:
        raise UsageError("--shard and --random cannot be combined")
    if only_list:
        injecting.show(injecting.faults(names or [], random, seed, skip, shard, generated))
        return 0
    if undo:
        if not injecting.undo_leftovers(context):
            return 2
        print("all faults are undone")
        return 0
    if ledger:
        rows, versions = injecting.recorded(ledger)
    else:
        rows, versions = injecting.inject(
            injecting.faults(names or [], random, seed, skip, shard, generated), parallel, job, context
        )
    return injecting.report(rows, versions, settings, table, records, programs_ledger, as_json)


def soak(
    launches: Annotated[int, typer.Argument(min=1, help="number of launches")],
    parallel: Annotated[int, typer.Option(min=1, help="maximum number of concurrent launches")] = 1,
    job: Annotated[Path, typer.Option(help="the job to launch")] = Path("jobs/multinode.yaml"),
    keep_runs: Annotated[str | None, typer.Option("--keep-runs", "--keep", help=KEEP_RUNS)] = None,
    table: Annotated[
        Path | None, typer.Option(help="write the result to this file, in the format of docs/soak.md")
    ] = None,
    cluster_name: options.ClusterName = None,
    workers: options.Workers = None,
    images: options.Images = None,
    runs_dir: options.RunsDir = None,
    keep_cluster: options.Keep = None,
    wait: options.Wait = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Launch a job many times on one cluster, and check for leaks.

    Every launch is a separate `harness run` process. The exit code is 0 if every
    launch is a PASS and nothing leaked, and otherwise 1.

    After each launch, a JSON line is appended to RUNS_DIR/soak-…/ledger.jsonl. The
    same folder contains the bundles, the progress output and summary.json.

    Namespaces, open jobs, processes, memory, disk usage, Docker objects and
    temporary files are compared before the first launch and after the last one.
    Growth that the launches do not explain is reported as a leak. Use an otherwise
    idle machine, because objects that other programs create during the soak are
    counted, too.
    """
    from harness.soak import commands as soaking

    settings = load(
        cluster_name=cluster_name,
        workers=workers,
        images=images,
        runs_dir=runs_dir,
        keep_cluster=keep_cluster,
        wait_seconds=wait,
        keep_runs=keep_runs,
    )
    context = run_context(settings, progress(quiet))
    result = soaking.soak(launches, job, parallel, table, context)
    dump(result.model_dump()) if as_json else soaking.show(result, console())
    return 0 if result.clean else 1


def programs(
    seconds: Annotated[
        float, typer.Option(min=0, help="stop starting new programs after this many seconds")
    ] = 60,
    seed: Annotated[int, typer.Option(help="seed from which the programs are generated")] = 0,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="skip the programs that are already in this file, and append the results of the others to it"
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="rerun only the programs in the ledger whose verdict was not right"),
    ] = False,
    only: Annotated[
        list[int] | None, typer.Option(help="run only the program with this number; may be repeated")
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, help="maximum number of concurrent launches")] = 2,
    runs_dir: options.RunsDir = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Run generated training programs without a cluster, and check their verdicts.

    Each program runs in containers that use the worker image, with the real Pluto
    client, recorder, torchrun and tracker. The program writes a journal of its
    calls, and an oracle uses the journals to judge whether the verdict is right.
    The exit code is 0 if no PASS was wrong and no judge raised an error, and
    otherwise 1. Bundles whose verdict is not right are kept in RUNS_DIR/programs-….
    """
    from harness.faults.programs import session as program_run

    context = run_context(load(runs_dir=runs_dir), progress(quiet))
    outcomes = program_run.programs(seed, seconds, parallel, ledger, again, only or [], context)
    if as_json:
        dump([outcome.model_dump() for outcome in outcomes])
    else:
        for outcome in outcomes:
            if outcome.word != "right":
                print(outcome.line)
    return 1 if any(outcome.word in program_run.FATAL for outcome in outcomes) else 0
