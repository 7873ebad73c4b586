"""Commands for a cluster: create, pause, resume and delete it, and look inside."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli import options
from harness.cli.options import dump, progress
from harness.cli.stdout import left
from harness.cli.view.lazy import load, opened, run_context

if TYPE_CHECKING:
    from harness.provision.kind.cluster import KindCluster


def up(
    cluster_name: options.ClusterName = None,
    workers: options.Workers = None,
    kubernetes: options.Kubernetes = None,
    images: options.Images = None,
    logs: Annotated[
        bool | None,
        typer.Option("--logs", help="start VictoriaLogs too, for `konduktor logs` (HARNESS_LOGS)"),
    ] = None,
    fresh: options.Fresh = None,
    runs_dir: options.RunsDir = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Create a ready cluster, or reuse it, and keep it. The next run installs and builds nothing."""
    from harness import run as running
    from harness.cli import status as looking

    settings = load(
        cluster_name=cluster_name,
        workers=workers,
        kubernetes=kubernetes,
        images=images,
        logs=logs,
        fresh=fresh,
        runs_dir=runs_dir,
    )
    with running.cluster(run_context(settings, progress(quiet))) as ready:
        ready.kind.keep()
        if as_json:
            dump(looking.status(settings).document())
        else:
            print(f"cluster {ready.kind.name} is ready")
            print(f"  export KUBECONFIG={ready.kind.kubeconfig}\n  harness run JOB")
    return 0


def down(
    cluster_name: options.ClusterName = None, quiet: options.Quiet = False, as_json: options.Json = False
) -> int:
    """Delete the cluster that the harness created, and nothing else."""
    kind = _kind(cluster_name)
    return _done(kind.name, kind.down(progress(quiet)), as_json, ("removed", "none that the harness made"))


def pause(
    cluster_name: options.ClusterName = None, quiet: options.Quiet = False, as_json: options.Json = False
) -> int:
    """Stop the cluster's nodes. Everything in it stays; `harness resume`, or the next run, starts them."""
    kind = _kind(cluster_name)
    return _done(kind.name, kind.pause(progress(quiet)), as_json, ("paused", "was paused already"))


def resume(
    cluster_name: options.ClusterName = None, quiet: options.Quiet = False, as_json: options.Json = False
) -> int:
    """Start a paused cluster and wait until everything in it serves again."""
    kind = _kind(cluster_name)
    done = kind.resume(progress(quiet))
    return _done(kind.name, done, as_json, ("resumed, and serves again", "was not paused"))


def _kind(name: str | None) -> "KindCluster":
    from harness.provision.kind.cluster import KindCluster

    return KindCluster(load(cluster_name=name))


def _done(cluster: str, done: bool, as_json: bool, words: tuple[str, str]) -> int:
    """Say whether there was anything to do. In JSON the first of `words` is the field."""
    if as_json:
        dump({"cluster": cluster, words[0].partition(",")[0]: done})
    else:
        print(f"cluster {cluster}: {words[0] if done else words[1]}")
    return 0


def status(cluster_name: options.ClusterName = None, as_json: options.Json = False) -> int:
    """Show cluster, nodes, controllers, queues, launches with what they wait for, and disk.

    Exit code 0: the cluster can be used. 2: there is none, it is paused, or it is not healthy.
    """
    from harness.cli import status as looking

    found = looking.status(load(cluster_name=cluster_name))
    dump(found.document()) if as_json else print(found.text())
    return 0 if found.healthy else 2


def logs(
    bundle: Annotated[Path, typer.Argument(help="a bundle, by its folder or a part of its name")] = Path(
        "runs/latest"
    ),
    rank: Annotated[int | None, typer.Option(help="of one rank only")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="as they are written, to their end")] = False,
    runs_dir: options.RunsDir = None,
) -> int:
    """Print the ranks' logs from the bundle, without the ground-truth frames."""
    from harness.cli import logs as reading

    found = opened(bundle, load(runs_dir=runs_dir).runs_dir)
    if follow:
        print(f"following {found.path}", file=sys.stderr)
    for line in reading.follow(found.path, rank) if follow else reading.lines(found, rank):
        print(line, flush=follow)
        if left():
            break
    return 0


def shell(
    bundle: Annotated[Path, typer.Argument(help="a bundle, by its folder or a part of its name")] = Path(
        "runs/latest"
    ),
    command: Annotated[list[str] | None, typer.Argument(help="what to run there, after -- (bash)")] = None,
    rank: Annotated[int, typer.Option(help="whose pod")] = 0,
    runs_dir: options.RunsDir = None,
    quiet: options.Quiet = False,
) -> int:
    """Open a shell where a rank runs. When the rank has ended, open it in a copy of its pod.

    The copy has the rank's image, environment, scripts and node, and waits instead of training.
    It is deleted when you leave. torchrun sets RANK and WORLD_SIZE of a worker, so the shell lacks them.
    """
    from harness.cli import shell as going

    settings = load(runs_dir=runs_dir)
    context = run_context(settings, progress(quiet))
    found = opened(bundle, settings.runs_dir)
    sys.stdout.flush()
    return going.shell(found, rank, command or [], context)


def preflight(
    job: Annotated[Path | None, typer.Argument(help="a job file, for what it asks for")] = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    install: Annotated[
        bool,
        typer.Option("--install", help="install JobSet, Kueue, queue and tracker where they are missing"),
    ] = False,
    tracker: Annotated[str | None, typer.Option(help="embedded or hosted (embedded)")] = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> int:
    """Show what a cluster of yours lacks for a launch. Changes nothing without --install, but for a namespace
    that exists for a moment: a dry run of a pod there shows what policies, limits and webhooks refuse.

    Exit code 0: nothing is missing. 2: something is.
    """
    from harness.launch.workload_file import load as load_workload
    from harness.provision.existing import ExistingCluster

    settings = load(kubeconfig=kubeconfig, context=context, tracker=tracker)
    theirs = ExistingCluster(settings)
    if install:
        theirs.install(run_context(settings, progress(quiet)))
    version, found = theirs.look(load_workload(job) if job else None)
    if as_json:
        rows = [{"what": n.what, "ok": n.problem is None, "seen": n.seen, "fix": n.fix} for n in found]
        dump({"kubernetes": version, "needs": rows})
    else:
        print(f"Kubernetes {version}")
        for requirement in found:
            print(f"{'✗' if requirement.problem else '✓'} {requirement.what:12} {requirement.seen}")
            if requirement.fix:
                print(f"  {'→':>12} {requirement.fix}")
    return 2 if any(requirement.problem for requirement in found) else 0


COMMANDS = (up, down, pause, resume, status, logs, shell, preflight)
