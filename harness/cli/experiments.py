"""`harness faults`, `harness programs` and `harness soak`: the commands that test the harness itself."""

from pathlib import Path
from typing import Annotated

import typer

from harness.cli import options
from harness.cli.options import KEEP_RUNS, dump, progress
from harness.cli.view.lazy import console, load, run_context
from harness.core.errors import UsageError


def faults(
    names: Annotated[list[str] | None, typer.Argument(help="names of faults, or their targets (all)")] = None,
    cluster_name: options.ClusterName = None,
    runs_dir: options.RunsDir = None,
    keep_cluster: options.Keep = None,
    parallel: Annotated[int, typer.Option(min=1, help="how many launches at the same time")] = 2,
    job: Annotated[Path, typer.Option(help="the healthy job")] = Path("jobs/multinode.yaml"),
    table: Annotated[Path | None, typer.Option(help="write the table of docs/faults.md there")] = None,
    records: Annotated[
        Path | None, typer.Option("--record", help="write small copies of the bundles there")
    ] = None,
    ledger: Annotated[
        list[Path] | None, typer.Option(help="inject nothing: report what these ledgers hold")
    ] = None,
    only_list: Annotated[
        bool, typer.Option("--list", help="list the faults and the verdict that each must get")
    ] = False,
    random: Annotated[
        int, typer.Option(min=0, help="inject so many drawn faults that nobody wrote down", metavar="N")
    ] = 0,
    generated: Annotated[
        bool, typer.Option("--programs", help="the ranks of drawn faults run generated programs")
    ] = False,
    programs_ledger: Annotated[
        Path | None, typer.Option(help="add the drawn faults with programs to this ledger")
    ] = None,
    seed: Annotated[int, typer.Option(help="of the drawn faults: the same seed draws the same ones")] = 0,
    skip: Annotated[int, typer.Option(min=0, help="of the drawn faults, leave out the first ones")] = 0,
    shard: Annotated[
        str | None, typer.Option(help="inject the I-th of N parts that take equally long", metavar="I/N")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="only undo what a killed run left injected")] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Inject faults into real launches, undo them, and check that each gets the right verdict and cause.

    With --random, disturbances drawn from a grammar: whether a verdict is right
    says an oracle, which compares the tracker's database with files of the ranks.
    """
    from harness.faults import commands as injecting

    settings = load(cluster_name=cluster_name, runs_dir=runs_dir, keep_cluster=keep_cluster)
    context = run_context(settings, progress(quiet))
    if random and names:
        raise UsageError("names of faults and --random were given: one of them was expected")
    if random and shard:
        raise UsageError("--shard and --random were given: one of them was expected")
    if only_list:
        injecting.show(injecting.faults(names or [], random, seed, skip, shard, generated))
        return 0
    if undo:
        if not injecting.undo_left(context):
            return 2
        print("nothing is left injected")
        return 0
    if ledger:
        rows, versions = injecting.recorded(ledger)
    else:
        rows, versions = injecting.inject(
            injecting.faults(names or [], random, seed, skip, shard, generated), parallel, job, context
        )
    return injecting.report(rows, versions, settings, table, records, programs_ledger, as_json)


def soak(
    launches: Annotated[int, typer.Argument(min=1, help="how many launches")],
    parallel: Annotated[int, typer.Option(min=1, help="how many launches at the same time")] = 1,
    job: Annotated[Path, typer.Option(help="the job of every launch")] = Path("jobs/multinode.yaml"),
    keep_runs: Annotated[str | None, typer.Option("--keep-runs", "--keep", help=KEEP_RUNS)] = None,
    table: Annotated[Path | None, typer.Option(help="write the result there, like docs/soak.md")] = None,
    cluster_name: options.ClusterName = None,
    workers: options.Workers = None,
    images: options.Images = None,
    runs_dir: options.RunsDir = None,
    keep_cluster: options.Keep = None,
    wait: Annotated[float | None, typer.Option(help="seconds from launch to verdict at most (600)")] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Launch a job many times on one cluster, and look for leaks.

    Every launch is a `harness run` of its own. Exit code 0: all are a PASS and
    nothing leaked.

    The ledger has a JSON line for each launch, written as it happens:
    RUNS_DIR/soak-…/ledger.jsonl, beside bundles, progress and summary.json.

    Namespaces, open jobs, processes, memory, disk, Docker objects and temporary
    files are compared before the first launch and after the last. What grew
    without an explanation is a leak. Use a machine that does nothing else: what
    other programs start meanwhile counts too.
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
    seconds: Annotated[float, typer.Option(min=0, help="start no new program after so many seconds")] = 60,
    seed: Annotated[int, typer.Option(help="the same seed draws the same programs")] = 0,
    ledger: Annotated[
        Path | None, typer.Option(help="continue after the programs of this file, and add to it")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="repeat the misses of the ledger")] = False,
    only: Annotated[list[int] | None, typer.Option(help="repeat this number of the seed")] = None,
    parallel: Annotated[int, typer.Option(min=1, help="how many launches at the same time")] = 2,
    runs_dir: options.RunsDir = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Run generated training programs without a cluster, and check their verdicts.

    Each program runs in containers of the worker image, with the real client,
    recorder, torchrun and tracker. An oracle reads the journals that the program
    wrote. Exit code 0: no PASS was wrong, and no judge raised an error. Bundles
    of verdicts that are not right stay in RUNS_DIR/programs-….
    """
    from harness.faults import program_run

    context = run_context(load(runs_dir=runs_dir), progress(quiet))
    outcomes = program_run.programs(seed, seconds, parallel, ledger, again, only or [], context)
    if as_json:
        dump([outcome.model_dump() for outcome in outcomes])
    else:
        for outcome in outcomes:
            if outcome.word != "right":
                print(outcome.line)
    return 1 if any(outcome.word in program_run.FATAL for outcome in outcomes) else 0
